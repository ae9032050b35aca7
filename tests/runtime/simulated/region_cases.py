"""Backwards that work in the memory of their forwards' graphs: run by test_runtime_simulated.py."""

from __future__ import annotations

import gc

import pytest
import torch
from simulated_lists import GRAPHS, N, broken, count, program, spec, twice, x_of
from training_cases import backward, differentiable, forward, gradient, leaf

from torchweld.runtime import _driver, cudagraph
from torchweld.runtime.cudagraph_plan import Lending, analyse, releases

pytest_plugins = ("simulated_lists",)


def step(f, b, value):
    """A forward and a backward that uses up what it saved; the gradients."""
    _, saved = f(x_of(value))
    given = [*saved, x_of(5.0)]
    del saved
    found = b.consume(given)
    assert not given
    assert [g[0].item() for g in found] == [2 * value + 3, 4 * value + 1, 10.0]
    return found


def stepped():
    """A forward and its backward, after four steps in one region."""
    f = forward()
    b = backward(f)
    for i in range(4):
        step(f, b, float(i))
    return f, b


def blocks(f) -> list[tuple[int, int]]:
    """Where the forward's graph keeps what it saves."""
    (region,) = {r for address in f.lent() if (r := f.region(address)) is not None}
    return list(region.blocks)


def shares(f, found) -> int:
    """How many results lie where the forward saved something."""
    return sum(a <= g.data_ptr() < a + n for g in found for a, n in blocks(f))


def test_gradients_take_the_place_of_what_was_saved():
    f = forward()
    b = backward(f)
    for i in range(5):
        step(f, b, float(i))
    found = step(f, b, 5.0)
    assert shares(f, found) == 2 and (len(f.graphs), len(b.graphs)) == (1, 1)
    assert f.graphs[0][5] == b.graphs[0][5] == 5


def test_gradients_that_are_kept_are_not_overwritten_by_the_next_forward():
    f = forward()
    b = backward(f)
    kept = [(i, step(f, b, float(i))) for i in range(8)]
    for i, found in kept:
        assert [g[0].item() for g in found] == [2.0 * i + 3, 4.0 * i + 1, 10.0]
    kept.clear()
    before = count(GRAPHS)
    found = step(f, b, 3.0)
    assert count(GRAPHS) == before + 2 and f.region(next(iter(f.lent()))) is None


def test_a_call_that_may_not_use_up_what_is_saved_leaves_it_there():
    f, b = stepped()
    for i in range(4):
        _, saved = f(x_of(float(i)))
        for _ in range(3):
            assert b(*saved, x_of(5.0))[0].tolist() == [2.0 * i + 3] * N
        assert [t[0].item() for t in saved] == [i + 1.0, 2.0 * i]
        del saved
        step(f, b, float(i))
    assert len(b.graphs) == 2


def test_what_is_saved_outlives_its_graph():
    f, b = stepped()
    _, saved = f(x_of(7.0))
    f.trim()
    for i in range(4):
        step(f, b, 50.0 + i)
    assert [t[0].item() for t in saved] == [8.0, 14.0]
    del f, b
    gc.collect()
    assert saved[0][0].item() == 8.0 and _driver.graph_totals()[0] == 0


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_gradients_outlive_the_graphs(which):
    f = forward()
    b = backward(f)
    for i in range(3):
        step(f, b, float(i))
    found = step(f, b, 3.0)
    (f if which == "forward" else b).trim()
    for i in range(6):
        step(f, b, 50.0 + i)
    assert [g[0].item() for g in found] == [9.0, 13.0, 10.0]


def test_a_backward_that_others_do_not_follow_gets_memory_of_its_own():
    """Two backwards use up what one forward saves, in turns."""
    f = forward()
    one, two = backward(f), backward(f)
    for i in range(6):
        step(f, one, float(i))
        step(f, two, float(i))
    assert (len(f.graphs), len(one.graphs), len(two.graphs)) == (1, 1, 1)
    found = step(f, one, 1.0)
    assert shares(f, found) == 2
    del found
    found = step(f, two, 1.0)
    assert shares(f, found) == 0


def test_two_forwards_that_wait_have_a_region_each():
    f = forward()
    b = backward(f)
    for i in range(5):
        held = [f(x_of(float(i)))[1], f(x_of(i + 10.0))[1]]
        for value in (i, i + 10):
            assert b.consume([*held.pop(0), x_of(1.0)])[0].tolist() == [2.0 * value + 3] * N
    assert (len(f.graphs), len(b.graphs)) == (2, 2)


def test_a_backward_whose_recording_fails_runs_as_a_launch_list():
    f = forward()
    b = backward(f)
    step(f, b, 0.0)
    f(x_of(0.0))
    broken.append(2)
    for i in range(4):
        step(f, b, float(i))
    assert "while it is recorded" in b.graphs


def test_a_block_that_a_result_shares_is_never_free():
    p = program(
        (spec("input"), spec("input", 1), spec("view", 0, (4,), (1,), 4), spec("extern")),
        (twice(1, 3),), (0, 3),
    )  # fmt: skip
    plan = analyse(p, True, Lending(least=0))
    inside, frees = releases(plan, (1000, 2000), ((1000, 32), (2000, 32), (3000, 32)))
    assert inside == {0, 1} and frees == (0, 1, 0, 2)


# ---------------------------------------------------------------- under autograd
def train(call, x, value):
    x.data.fill_(value)
    out = call(x)
    out.backward(x_of(1.0))
    return out


def trained():
    """What is called, its input and the forward, after four steps in one region."""
    call, f, _ = differentiable()
    x = leaf(0.0)
    for i in range(4):
        x.grad = None
        train(call, x, float(i))
    return call, x, f


def test_a_loop_that_drops_its_gradients_first_works_in_one_region():
    call, f, b = differentiable()
    x = leaf(0.0)
    for i in range(6):
        x.grad = None
        train(call, x, float(i))
        assert x.grad.tolist() == gradient(i)
    assert shares(f, [x.grad]) == 1 and (len(f.graphs), len(b.graphs)) == (1, 1)


def test_a_loop_that_drops_its_gradients_late_has_them_apart():
    call, f, b = differentiable()
    x = leaf(0.0)
    for i in range(6):
        x.data.fill_(float(i))
        out = call(x)
        x.grad = None
        out.backward(x_of(1.0))
        assert x.grad.tolist() == gradient(i)
        del out
    assert f.region(next(iter(f.lent()))) is None and len(f.graphs) == 1
    assert f.graphs[0][5] == b.graphs[0][5] == 5


def test_a_loop_that_begins_to_accumulate_is_right():
    call, x, f = trained()
    for i in range(6):
        before = x.grad.tolist()
        train(call, x, float(i))
        assert x.grad.tolist() == [a + g for a, g in zip(before, gradient(i), strict=True)]
    assert f.region(next(iter(f.lent()))) is None


def test_a_retained_node_is_not_used_up():
    call, _, _ = trained()
    x = leaf(7.0)
    kept = call(x)
    for i in range(3):
        kept.backward(x_of(1.0), retain_graph=True)
        other = leaf(0.0)
        train(call, other, float(i))
        assert other.grad.tolist() == gradient(i)
    kept.backward(x_of(1.0))
    assert x.grad.tolist() == [4 * g for g in gradient(7.0)]


def test_what_hooks_were_given_is_not_used_up():
    call, x, _ = trained()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        x.grad = None
        train(call, x, 9.0)
    assert x.grad.tolist() == gradient(9.0) and [t[0].item() for t in kept] == [10.0, 18.0]
    for i in range(3):
        x.grad = None
        train(call, x, float(i))
    assert [t[0].item() for t in kept] == [10.0, 18.0]


def test_the_report_counts_what_forward_and_backward_share():
    f, b = stepped()
    assert len(f.graphs) == len(b.graphs) == 1
    report = cudagraph.memory_report()
    assert report.regions > 0 and report.lent == 0 and "forward and backward" in report.text()
