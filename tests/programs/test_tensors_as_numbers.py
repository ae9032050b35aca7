"""A tensor of one integer where Python wants a number, a size or a bound: as `item()` is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

import torchweld
from torchweld.pipeline import STATISTICS

X = torch.randn(6, 8)
VALUES = (3, 5, 2, 1, 6, 0, 4)

ONE_GRAPH = {
    "ones": lambda x, t: torch.ones(6, t) * 2 + x.sum(),
    "ones of a tuple": lambda x, t: torch.ones((6, t)) * 2 + x.sum(),
    "full": lambda x, t: torch.full((t, 2), 1.5) + x.sum(),
    "new_zeros": lambda x, t: x.new_zeros(t, 3) + x.sum(),
    "from": lambda x, t: x[:, t:] * 2 + 1,
    "to": lambda x, t: x[:, :t] * 2 + 1,
    "rows": lambda x, t: x[t:] * 2 + 1,
    "between": lambda x, t: x[:, t : t + 2] * 2 + 1,
    "arange": lambda x, t: torch.arange(t) * 2 + x.sum(),
    "arange from": lambda x, t: torch.arange(t, t + 3) * 2 + x.sum(),
    "narrow": lambda x, t: x.narrow(1, 0, t) * 2,
    "expand": lambda x, t: x[0, :1].expand(t) * 2,
    "roll": lambda x, t: x.roll(t, 1) * 2,
    "triu": lambda x, t: torch.triu(x, diagonal=t) * 2,
    "pad": lambda x, t: F.pad(x, (0, t)) * 2,
    "repeat": lambda x, t: x.repeat(t, 1) * 2,
}


def calls(fn, given, graphs, breaks=0):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for t in given:
        torch.testing.assert_close(compiled(X, t), fn(X, t))
    counts = STATISTICS.counts()
    assert counts["internal_errors"] == 0
    assert (counts["graphs"], counts["breaks"]) == (graphs, breaks)


@pytest.mark.parametrize("name", ONE_GRAPH)
@pytest.mark.parametrize("make", [torch.tensor, lambda n: torch.tensor([n]),
                                  lambda n: torch.tensor(n, dtype=torch.int32)],
                         ids=["of no dimension", "of one", "of 32 bits"])  # fmt: skip
def test_a_tensor_as_a_size_or_bound(name, make):
    if make(1).dim() and "arange" in name:  # which eager refuses
        with pytest.raises(TypeError):
            torchweld.compile(ONE_GRAPH[name])(X, make(3))
        return
    calls(ONE_GRAPH[name], [make(n) for n in VALUES], 1)


def test_a_tensor_that_the_frame_computes():
    given = [torch.tensor([1, n + 1]) for n in VALUES]
    calls(lambda x, t: x[:, : t.max() - 1] * 2 + t.sum(), given, 1)


@pytest.mark.parametrize("fn", [
    lambda x, t: x[:, t] * 2 + 1, lambda x, t: x[t] * 2 + 1, lambda x, t: x[t, t - 1] + x.sum(),
    lambda x, t: x[..., t, None] * 2,
], ids=["column", "row", "element", "behind an ellipsis"])  # fmt: skip
def test_a_tensor_as_a_place(fn):
    calls(fn, [torch.tensor(n) for n in (3, 5, 2, 1, 0, 4)], 1)


def test_a_place_is_a_view_as_in_eager():
    def fn(x, t):
        y = x * 2
        row = y[t]
        row.add_(1)
        y[:, t:] = 0.5
        y[t, 0] += 3
        return y, row

    calls(fn, [torch.tensor(n) for n in (3, 5, 2, 1, 0, 4)], 1)


def test_a_tensor_that_is_written_is_read_again():
    def fn(x, t):
        t = t.clone()
        a = x[:, :t] * 2
        t += 1
        b = x[:, :t] * 3
        t.view(1)[0] = 2
        return a, b, x[:, :t] * 4, torch.ones(t.item(), t) * 2

    calls(fn, [torch.tensor(n) for n in VALUES], 1)


def test_one_tensor_is_one_number():
    def fn(x, t):
        return x[:, :t] * torch.ones(6, t) + torch.arange(t) + x[:, : t.item()]

    calls(fn, [torch.tensor(n) for n in VALUES], 1)


def test_a_bound_that_gradients_go_through():
    def fn(x, t):
        x = x.detach().requires_grad_()
        y = (x[:, t:].sin() * 2).sum() + x[t].cos().sum()
        return torch.autograd.grad(y, x)[0]

    calls(fn, [torch.tensor(n) for n in (3, 5, 2, 1, 0, 4)], 1)


def test_a_loop_over_a_tensor_is_compiled_once():
    def fn(x, t):
        y = x * 2
        for i in range(t):
            y = (y * 0.5 + i).cos() + y * 0.25
        return y * 2

    torchweld.reset()
    compiled = torchweld.compile(fn)
    for n in VALUES:
        torch.testing.assert_close(compiled(X, torch.tensor(n)), fn(X, torch.tensor(n)))
    counts = STATISTICS.counts()
    assert counts["graphs"] <= 3
    assert counts["breaks"] <= 2
    assert counts["recompiles"] == 0


@pytest.mark.parametrize("fn", [lambda x, t: x[:, t:], lambda x, t: torch.ones(t, 2),
                                lambda x, t: range(t), lambda x, t: x.narrow(1, 0, t)])  # fmt: skip
@pytest.mark.parametrize("t", [torch.tensor(1.5), torch.tensor([1, 2]), torch.tensor(99)])
def test_what_is_no_such_number_is_eager_s_error(fn, t):
    def outcome(f):
        try:
            return f(X, t)
        except (TypeError, RuntimeError, IndexError) as error:
            return type(error)

    got, expected = outcome(torchweld.compile(fn)), outcome(fn)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    else:
        assert got == expected


def test_a_norm_with_a_cumulative_average_is_one_graph():
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8, momentum=None))
    twin = copy.deepcopy(plain)
    torchweld.reset()
    compiled = torchweld.compile(twin)
    for i in range(4):
        x = torch.randn(6, 8) + i
        expected, got = plain(x), compiled(x)
        torch.testing.assert_close(got, expected)
        weights = torch.randn(6, 8)
        for y in (expected, got):
            (y * weights).sum().backward()
    torch.testing.assert_close(dict(twin.state_dict()), dict(plain.state_dict()))
    for p, q in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4)
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"]) == (1, 0)


@pytest.mark.parametrize("n", [1, 3, 0])
def test_a_float_of_an_integer_is_computed_by_the_graph(n):
    def fn(x, t):
        return x * float(t) + float(t[0]) ** 2, x / (float(t.sum()) + 1)

    t = torch.tensor([n])
    calls(fn, [t, t + 1, t * 5], 1)
