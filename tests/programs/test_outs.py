"""out= of the right size is part of the graph; one that eager resizes is a break."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchweld


def _to_a_view(a, b):
    view = a[1:]
    torch.sum(b, 0, out=view)
    return view


def _to_an_argument(a, b):
    seen = a.t()
    torch.add(b[:2], 1, out=a)
    return a, seen


def _to_two(a, b):
    places = torch.empty(0, dtype=torch.long)
    torch.max(b, 0, out=(a, places))
    return a, places


def _to_what_has_a_view(a, b):
    made = torch.empty(0)
    seen = made[:]
    torch.mul(a, b, out=made)
    return made, seen


def _to_the_layout_of_an_argument(a, b):
    return torch.mul(a.t(), 2, out=torch.empty(0)), b


def _to_an_empty_argument(a, b):
    return torch.mul(b, 2, out=a[6:, 0]) + 1


RESIZED = (_to_a_view, _to_an_argument, _to_two, _to_what_has_a_view, _to_an_empty_argument,
           _to_the_layout_of_an_argument)


@pytest.mark.parametrize("fn", RESIZED)
def test_what_eager_resizes_is_one_break(fn):
    torchweld.reset()
    torch.manual_seed(0)
    mine = [torch.randn(6, 4), torch.randn(6, 4)]
    theirs = [x.clone() for x in mine]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, want = torchweld.compile(fn)(*mine), fn(*theirs)
    for x, y in zip([*_listed(got), *mine], [*_listed(want), *theirs], strict=True):
        assert (x.shape, x.stride()) == (y.shape, y.stride())
        assert torch.equal(x, y)
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (1, 0)


def _listed(x):
    return x if isinstance(x, tuple) else (x,)


def _new_and_empty(a, b):
    return torch.mul(a, b, out=torch.empty(0)).add_(1)


def _part_of_an_argument(a, b):
    torch.sum(b, 1, out=a[:, 0])
    return a * 2


def _two_of_the_right_size(a, b):
    values, places = a[0], torch.empty(4, dtype=torch.long)
    torch.max(b, 0, out=(values, places))
    return a, places


@pytest.mark.parametrize("fn", [_new_and_empty, _part_of_an_argument, _two_of_the_right_size])
def test_what_has_its_size_is_part_of_the_graph(fn):
    torchweld.reset()
    torch.manual_seed(0)
    mine = [torch.randn(6, 4), torch.randn(6, 4)]
    theirs = [x.clone() for x in mine]
    got, want = torchweld.compile(fn, fullgraph=True)(*mine), fn(*theirs)
    for x, y in zip([*_listed(got), *mine], [*_listed(want), *theirs], strict=True):
        torch.testing.assert_close(x, y)


def test_a_new_one_grows_behind_a_function_that_was_mapped():
    def f(a, b):
        scaled = torch.vmap(lambda q, r: q * r.sum())(a, b)
        out = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.sort(scaled, 0, out=out)
        return scaled, out[0]

    torchweld.reset()
    x = torch.randn(3, 4)
    for y, z in zip(torchweld.compile(f, fullgraph=True)(x, x), f(x, x), strict=True):
        torch.testing.assert_close(y, z)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (1, 0, 0)
