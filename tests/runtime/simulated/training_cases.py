"""What forwards save for backwards, on the simulated driver: run by test_runtime_simulated.py."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from simulated_lists import (
    GRAPHS,
    N,
    build,
    count,
    launch,
    lends,
    program,
    spec,
    twice,
    x_of,
)

from torchweld.ir.graph import GraphPair, Joint, Returned
from torchweld.ir.program import Alloc, MakeView
from torchweld.runtime import _driver, cudagraph
from torchweld.runtime.cudagraph_plan import Lending
from torchweld.runtime.gradients import Differentiable, Gradients

pytest_plugins = ("simulated_lists",)
SAVES = Lending(saved=2)


def forward(**wish):
    """x + 2, saving x + 1 (a kernel's) and 2 * x (an operator's)."""
    p = program(
        (spec("input"), spec("fresh"), spec("extern"), spec("fresh")),
        (Alloc(1), launch("add1", 0, 1), twice(0, 2), Alloc(3), launch("add1", 1, 3)), (3, 1, 2),
    )  # fmt: skip
    return build(p, saved=2, lending=SAVES, **wish)


def backward(of, **wish):
    """Of x + 1, 2 * x and a tangent: 2 * (x + 1) + 1, 4 * x + 1, and a number that an operator
    computed of the tangent."""
    p = program(
        (spec("input"), spec("input", 1), spec("input", 2), spec("extern"), spec("fresh"),
         spec("fresh"), spec("extern")),
        (twice(0, 3), Alloc(4), launch("add1", 3, 4), Alloc(5), launch("twice", 1, 5),
         launch("inc", 5), twice(2, 6)), (4, 5, 6),
    )  # fmt: skip
    borrowing = cudagraph.Borrowing(of, SAVES, {0: 1, 1: 2})
    return build(p, lending=Lending(least=0), borrowing=borrowing, **wish)


def step(f, b, value):
    """One forward and its backward, and that both are right."""
    y, saved = f(x_of(value))
    assert y.tolist() == [value + 2] * N
    found = b(*saved, x_of(5.0))
    assert [g[0].item() for g in found] == [2 * value + 3, 4 * value + 1, 10.0]


def test_what_is_saved_comes_as_a_tuple_behind_the_results():
    p = program(
        (spec("input"), spec("fresh"), spec("fresh")),
        (Alloc(1), launch("add1", 0, 1), Alloc(2), launch("add1", 1, 2)), (2, 1),
    )  # fmt: skip
    y, (saved,) = build(p, graphs=False, saved=1)(x_of(1.0))
    assert (y[0].item(), saved[0].item()) == (3.0, 2.0)


def test_every_call_saves_in_the_same_tensors():
    f = forward()
    seen = []
    for i in range(6):
        y, saved = f(x_of(float(i)))
        seen.append([id(t) for t in saved])
        assert [t[0].item() for t in (y, *saved)] == [i + 2.0, i + 1.0, 2.0 * i]
        del saved
    assert seen[1] == seen[-1] and lends(f) == [2 * N * 4]


def test_results_are_fresh_whatever_is_saved():
    f = forward()
    held = [f(x_of(float(i)))[0] for i in range(6)]
    assert [y[0].item() for y in held] == [i + 2.0 for i in range(6)]
    assert len(f.graphs) == 1


def test_what_waits_for_a_backward_is_not_overwritten():
    f = forward()
    held = [f(x_of(float(i)))[1] for i in range(8)]
    assert [(a[0].item(), b[0].item()) for a, b in held] == [(i + 1.0, 2.0 * i) for i in range(8)]
    assert len(f.graphs) == cudagraph.SAVERS and not any(row[2] > 1 for row in f.graphs)


@pytest.mark.parametrize(
    "part", [lambda t: t, lambda t: t.detach(), lambda t: t[2:4], lambda t: t.untyped_storage()]
)
def test_a_part_of_one_saved_tensor_keeps_them_all(part):
    f = forward()
    for i in range(3):
        saved = f(x_of(float(i)))[1]
    kept = part(saved[1])
    del saved
    for i in range(5):
        f(x_of(50.0 + i))
    if isinstance(kept, torch.UntypedStorage):
        kept = torch.empty(0).set_(kept)
    assert kept[0].item() == 4.0 and len(f.graphs) == 2


def test_the_backward_finds_what_is_saved_where_it_was():
    f = forward()
    b = backward(f)
    tangent = x_of(5.0)
    for i in range(6):
        before = count(GRAPHS)
        _, saved = f(x_of(float(i)))
        assert b(*saved, tangent)[0][0].item() == 2.0 * i + 3
        del saved
    assert count(GRAPHS) == before + 2 and len(b.graphs) == 1
    assert b.graphs[0][2] == 1  # the tangent, which an operator reads


def test_gradients_are_lent_by_two_graphs_and_then_copied():
    f = forward()
    b = backward(f)
    held = []
    for i in range(8):
        _, saved = f(x_of(float(i)))
        grad = b(*saved, x_of(float(i)))[2]
        held += [(i, grad)] if i in (0, 1, 5) else []
        del saved, grad
    assert [g[0].item() for _, g in held] == [2.0 * i for i, _ in held]
    assert sorted(lends(b)) == [0, 3 * N * 4, 3 * N * 4] and len(f.graphs) == 1


def test_two_forwards_then_two_backwards_get_two_graphs_each():
    f = forward()
    b = backward(f)
    for i in range(5):
        held = [f(x_of(float(i)))[1], f(x_of(i + 10.0))[1]]
        for value, saved in zip((i, i + 10), held, strict=True):
            assert b(*saved, x_of(1.0))[0].tolist() == [2.0 * value + 3] * N
        del held, saved
    assert (len(f.graphs), len(b.graphs)) == (2, 2)


def test_what_no_graph_lent_is_no_reason_to_record():
    f = forward()
    b = backward(f)
    elsewhere = [x_of(1.0), x_of(0.0)]
    for i in range(4):
        step(f, b, float(i))
        assert b(*elsewhere, x_of(5.0))[0].tolist() == [3.0] * N
    assert len(b.graphs) == 1


def test_a_forward_without_graphs_leaves_the_backward_its_own():
    f = forward()
    b = backward(f)
    f.graphs_off("for a test")
    for i in range(6):
        step(f, b, float(i))
    assert b.graphs and b.graphs[0][2] >= 1


def test_saved_tensors_outlive_their_graph():
    f = forward()
    f(x_of(0.0))
    _, saved = f(x_of(3.0))
    f.trim()
    for i in range(3):
        f(x_of(50.0 + i))
    assert [t[0].item() for t in saved] == [4.0, 6.0]
    del f
    gc.collect()
    assert saved[0][0].item() == 4.0 and _driver.graph_totals()[0] == 0


def test_a_saved_view_of_a_result_is_made_at_every_call():
    p = program(
        (spec("input"), spec("extern"), spec("view", 0, (4,), (1,), 4)),
        (twice(0, 1), MakeView(2, 1)), (1, 2),
    )  # fmt: skip
    f = build(p, saved=1, lending=Lending(saved=1))
    for i in range(5):
        y, (part,) = f(x_of(float(i)))
        assert part.data_ptr() == y.data_ptr() + 16 and part.tolist() == [2.0 * i] * 4


# ---------------------------------------------------------------- under autograd
def place(name):
    node = torch.fx.Graph().placeholder(name)
    node.meta["val"] = torch.empty(N)
    return node


def differentiable():
    """x + 2 for autograd, with a backward whose first result serves as the gradient."""
    f = forward()
    b = backward(f)
    tangent = place("tangent")
    x = place("x")
    pair = GraphPair(x.graph, (), (None,))
    joint = Joint(pair, x.graph, (tangent,), (0,), (), (), (x, x),
                  (Returned(0, False, (), True),), ((0, False),), False)  # fmt: skip
    made = Differentiable(
        joint, f, lambda given: Gradients(b, (0,)), lambda x: [x + 2], contextlib.nullcontext,
        (), (),
    )  # fmt: skip
    return (lambda x: made(x)[0]), f, b


def leaf(value):
    return x_of(value).requires_grad_()


def gradient(value):
    """What the backward makes of a forward of this value."""
    return [2.0 * value + 3] * N


def test_a_training_loop_takes_one_graph_for_each_direction():
    call, f, b = differentiable()
    losses, x = [], leaf(0.0)
    for i in range(6):
        x.data.fill_(float(i))
        x.grad = None
        out = call(x)
        out.backward(x_of(1.0))
        assert out.tolist() == [i + 2.0] * N and x.grad.tolist() == gradient(i)
        losses.append(out)
    assert (len(f.graphs), len(b.graphs)) == (1, 1)
    assert f.graphs[0][5] == b.graphs[0][5] == 5


def test_a_retained_node_keeps_its_values_through_later_steps():
    call, f, _ = differentiable()
    for i in range(3):
        call(leaf(float(i))).backward(x_of(1.0))
    x = leaf(7.0)
    kept = call(x)
    for i in range(3):
        kept.backward(x_of(1.0), retain_graph=True)
        other = leaf(float(i))
        call(other).backward(x_of(1.0))
        assert other.grad.tolist() == gradient(i)
    assert x.grad.tolist() == [3 * g for g in gradient(7.0)] and len(f.graphs) == 2


def test_a_forward_that_is_never_differentiated_gives_back_what_it_saved():
    call, f, _ = differentiable()
    for i in range(6):
        assert call(leaf(float(i)))[0].item() == i + 2.0
    assert len(f.graphs) == 1


def test_hooks_on_what_is_saved_may_keep_it():
    call, _, _ = differentiable()
    for i in range(3):
        call(leaf(float(i))).backward(x_of(1.0))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = call(x := leaf(9.0))
    out.backward(x_of(1.0))
    assert x.grad.tolist() == gradient(9.0)
    for i in range(3):
        call(leaf(float(i))).backward(x_of(1.0))
    assert [t[0].item() for t in kept] == [10.0, 18.0]


# ---------------------------------------------------------------- a step as one graph
def test_a_step_that_changes_its_parameter_is_one_graph():
    """2 * w * rate is returned as the gradient, x + 1 as the loss, and w becomes w + 1."""
    p = program(
        (spec("input"), spec("input", 1), spec("input", 2, (), (), device="cpu"), spec("extern"),
         spec("fresh"), spec("fresh")),
        (twice(1, 3), Alloc(4), launch("scale", 3, 2, 4), Alloc(5), launch("add1", 0, 5),
         launch("inc", 1)), (5, 4, 3), mutated=(1,),
    )  # fmt: skip
    step = build(p, static=[1])
    w, rate, kept = x_of(0.0), torch.tensor(0.0), []
    for i in range(6):
        rate.fill_(i / 2)
        version = w._version
        loss, grad, _ = step(x_of(float(i)), w, rate)
        assert w.tolist() == [i + 1.0] * N and w._version > version
        kept.append((loss, grad))
    want = [(i + 1.0, float(i * i)) for i in range(6)]
    assert [(a[0].item(), g[0].item()) for a, g in kept] == want
    assert len(step.graphs) == 1 and step.graphs[0][2] == 1  # 2 * w is copied out
