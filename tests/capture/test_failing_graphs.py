"""A graph that fails on its data: the frame does what eager does before and after the error."""

from __future__ import annotations

import builtins
import contextlib

import pytest
import torch
from break_twin import check
from torch import Tensor

import torchweld
from torchweld.ir.raising import may_raise
from torchweld.pipeline import STATISTICS

X = torch.arange(6.0).reshape(2, 3)
GOOD, BAD = torch.tensor([1, 0]), torch.tensor([1, 5])
CALLS = ((X, GOOD, []), (X, BAD, []))


class Swallow:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, kind, *rest):
        self.log.append(getattr(kind, "__name__", None))
        return True


def handled(x, i, log):
    try:
        return x.index_select(0, i).sin()
    except (RuntimeError, IndexError):
        log.append("handled")
    return x


def in_finally(x, i, log):
    try:
        y = x[i] * 2
    finally:
        log.append("last")
    return y


def in_with(x, i, log):
    with Swallow(log):
        return torch.gather(x, 0, i.expand(3, 2).t()) + 1


@contextlib.contextmanager
def noted(log):
    try:
        yield
    finally:
        log.append("left")


def in_generator(x, i, log):
    with noted(log):
        return torch.nn.functional.embedding(i, x)


def after_effects(x, i, log):
    print("before")
    log.append(x.shape)
    y = x[i]
    log.append("after")
    return y


def integers(x, i, log):
    log.append("divided")
    return torch.tensor([4, 2]) // (i - 1), x


@pytest.mark.parametrize("fn", [handled, in_finally, in_with, in_generator, after_effects])
def test_errors_of_data_are_handled_where_eager_handles_them(fn):
    check(fn, *CALLS, graphs=1, breaks=0)


def test_a_division_of_integers_by_zero():
    check(integers, (X, torch.tensor([3, 2]), []), (X, torch.tensor([1, 2]), []), graphs=1)


def by_name(x, i, log):
    with torch.no_grad():
        return {"y": x[i]}


def test_a_mode_of_torch_around_an_index_costs_no_second_chance():
    region = _finish_source(by_name)
    assert "try" not in region
    assert "try" in _finish_source(handled)


def _finish_source(fn):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    compiled(X, GOOD, [])
    (entry,) = compiled.entries
    return entry.info.region.finish.source


@pytest.mark.parametrize(("target", "integers", "answer"), [
    (torch.ops.aten.index.Tensor, False, True), (torch.ops.aten.add.Tensor, True, False),
    (torch.ops.aten.div.Tensor_mode, True, True), (torch.ops.aten.div.Tensor, False, False),
    ("index_add_", False, True), (torch.linalg.inv, False, True), (Tensor.sin, False, False),
    (torch.ops.aten._assert_async.msg, False, True),
])  # fmt: skip
def test_which_operators_may_raise(target, integers, answer):
    assert may_raise(target, integers) is answer


def writes_and_handles(x, i, log):
    x.mul_(2)
    try:
        y = x[i] * 2
    except IndexError:
        log.append("handled")
        y = x
    finally:
        log.append("last")
    x.add_(1)
    return y


def test_a_handled_operator_is_apart_from_what_writes_an_input():
    check(writes_and_handles, *CALLS, graphs=3)


def names_other_errors(x, i, log):
    x.mul_(2)
    try:
        return x[i] * 2
    except (KeyError, AttributeError):
        log.append("never")
    except TypeError:
        log.append("nor this")
    except NotImplementedError:
        log.append("there is a kernel")
    finally:
        log.append("last")


def matches_by_a_tuple(x, i, log):
    x.mul_(2)
    try:
        y = x[i] * 2
    except (builtins.KeyError, builtins.LookupError):
        y = x
    x.add_(1)
    return y


def suppresses(x, i, log):
    x.mul_(2)
    y = x
    with contextlib.suppress(IndexError):
        y = x[i] * 2
    x.add_(1)
    return y


@pytest.mark.parametrize(("fn", "catches"), [
    (names_other_errors, False), (matches_by_a_tuple, True), (suppresses, True),
])  # fmt: skip
def test_only_what_may_catch_an_operators_error_parts_it_from_writes(fn, catches):
    x = torch.randn(6)
    torchweld.reset()
    compiled, twin = torchweld.compile(fn), x.clone()
    torch.testing.assert_close(compiled(x, torch.tensor([1]), []), fn(twin, torch.tensor([1]), []))
    assert torch.equal(x, twin)
    assert (STATISTICS.breaks, STATISTICS.graphs) == ((1, 0) if catches else (0, 1))
    if catches:
        bad = torch.tensor([9])
        torch.testing.assert_close(compiled(x, bad, []), fn(twin, bad, []))
        assert torch.equal(x, twin)


def test_what_operators_on_lists_wrote_is_not_written_twice():
    """The frame does not run again eagerly after its graph has changed an input."""
    log = []

    def fn(a, b, x, i, table):
        log.append(len(log))
        torch._foreach_add_([a, b], 1.0)
        return table[i] + x, torch.nn.functional.embedding(i, table)

    for f in (fn, torchweld.compile(fn)):
        a, b, table = torch.zeros(3), torch.zeros(3), torch.randn(4, 3)
        for i in (1, 2):
            f(a, b, torch.ones(3), torch.tensor([i]), table)
        with pytest.raises(IndexError):
            f(a, b, torch.ones(3), torch.tensor([7]), table)
        assert a.tolist() == b.tolist() == [3.0] * 3
