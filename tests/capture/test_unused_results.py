"""An operator that may raise on its data runs although nobody uses its result (ADR 0025)."""

from __future__ import annotations

import pytest
import torch
from kept_graphs import Graphs

import torchweld

X = torch.arange(3.0)


def index(x, i):
    x[i]
    return x + 1


def gather_used_in_vain(x, i):
    x.gather(0, i).sin().sum()
    return x * 2


def division(x, i):
    i // (i - 9)
    return x + 1


def embedding(x, i):
    torch.nn.functional.embedding(i, x[:, None])
    return x - 1


def inverse(x, i):
    torch.linalg.inv(torch.eye(3) * (i.max() - 9))
    return x - 1


def of_two_results(x, i):
    torch.linalg.cholesky_ex(torch.eye(3) * (5 - i.max()), check_errors=True)
    return x - 1


PROGRAMS = [index, gather_used_in_vain, division, embedding, inverse, of_two_results]


def outcome(fn, i, grad):
    x = X.clone().requires_grad_(grad)
    try:
        y = fn(x, torch.tensor(i))
    except (IndexError, RuntimeError) as error:
        return type(error)
    if grad:
        y.sum().backward()
    return y.tolist(), None if x.grad is None else x.grad.tolist()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_what_eager_raises_is_raised(fn, grad):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for i in ([0, 1], [0, 9], [2, 1]):
        assert outcome(compiled, i, grad) == outcome(fn, i, grad), i
    assert outcome(compiled, [0, 9], grad) != outcome(compiled, [0, 1], grad)
    assert torchweld.statistics()["breaks"] == 0


def outputs_of(fn, *args):
    torchweld.reset()
    seen = Graphs()
    torchweld.compile(fn, backend=seen)(*args)
    (graph,) = seen.graphs
    return len(graph.graph.output_node().args[0])


def harmless(x, i):
    (x * 2).sin()
    x[1:], x[:, None]
    y = x.clone()
    y += 1
    return x[i] + 1


def test_only_what_may_raise_is_kept_and_only_if_it_is_not_used():
    assert outputs_of(harmless, X, torch.tensor([1])) == 1
    assert outputs_of(index, X, torch.tensor([1])) == 2


@pytest.mark.parametrize("check", [
    lambda x: torch._assert_async((x > 100).all(), "small"),
    lambda x: torch.linalg.inv(torch.outer(x, x) * 0),
])  # fmt: skip
def test_checks_stay_in_the_forward_of_a_training_step(check):
    def fn(x):
        y = check(x)
        return x.sin() if y is None else x.sin() + y

    torchweld.reset()
    with pytest.raises(RuntimeError):
        torchweld.compile(fn)(X.clone().requires_grad_())
