"""Generators of random numbers that are given: which one it is does not matter."""

from __future__ import annotations

import torch

import torchweld

X = torch.randn(3, 4)


def both(fn, *makes, made):
    """`fn` with generators made anew in each call draws as in eager, and leaves their states."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for make in makes:
        ours, theirs = make(), make()
        torch.testing.assert_close(compiled(X, *ours), fn(X, *theirs), rtol=0, atol=0)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.get_state(), b.get_state())
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (made, 0, 0)


def seeded(n):
    return torch.Generator().manual_seed(n)


def test_a_generator_made_anew():
    def fn(x, g):
        return torch.randn(3, 4, generator=g) * 2 + x + torch.empty(4).uniform_(generator=g)

    both(fn, *(lambda n=n: (seeded(n),) for n in range(4)), made=1)


def test_two_generators_that_are_one_in_another_call():
    def fn(x, g, h):
        g.manual_seed(5)
        h.manual_seed(6)
        return torch.randn(4, generator=g) + x * torch.rand(4, generator=h)

    def one():
        g = seeded(3)
        return g, g

    both(fn, lambda: (seeded(1), seeded(2)), one, lambda: (seeded(4), seeded(3)), one, made=2)


def test_the_default_generator_is_another_kind():
    def fn(x, g):
        return torch.randn(3, 4, generator=g) + x

    def default():
        torch.manual_seed(7)
        return (torch.default_generator,)

    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for make in (lambda: (seeded(1),), default, lambda: (seeded(2),), default):
        got = compiled(X, *make())
        torch.testing.assert_close(got, fn(X, *make()), rtol=0, atol=0)
    assert torchweld.statistics()["graphs"] == 2


def test_what_is_asked_of_a_generator_is_guarded():
    def fn(x, g):
        return torch.randn(3, 4, generator=g, device=g.device) + x * (g is not None)

    both(fn, *(lambda n=n: (seeded(n),) for n in range(2)), made=2)
