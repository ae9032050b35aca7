"""Calls that use up their inputs: memory is free behind the last step that reads it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from launch_lists import add_one, program, spec

import torchweld
from torchweld.ir.program import Alloc, Call, Launch, MakeView, TensorArg

BIG = 1 << 16  # elements of f32: 256 KB


@pytest.fixture
def watch():
    """(what to watch, what was found of it while the operator ran)."""
    library = torch.library.Library("weldconsume", "DEF")
    library.define("look(Tensor x) -> Tensor")
    watched, seen = [], []

    def look(x):
        seen.append([ref() is not None for ref in watched])
        return x * 2

    library.impl("look", look, "CPU")
    yield watched, seen
    library._destroy()


def looking(first, outputs=(3, 4)):
    """x + 1 (or what `first` does), then an operator that looks."""
    return program(
        (spec("input", (BIG,)), spec("input", (BIG,), 1), spec("view", (BIG,)),
         spec("fresh", (BIG,)), spec("extern", (BIG,))),
        (*first, Call("weldconsume.look.default", (TensorArg(1),), (), (4,))), outputs,
    )  # fmt: skip


PLUS = (Alloc(3), Launch("add1", (0, 3), BIG, 1 << 14))


def run(ex, watched):
    given = [torch.ones(BIG), torch.ones(BIG)]
    watched[:] = [weakref.ref(x) for x in given]
    outs = ex.consume(given)
    assert given == [] or ex.driver == "python"
    return outs


def test_an_input_is_freed_behind_the_last_step_that_reads_it(native, watch):
    watched, seen = watch
    y, z = run(native(looking(PLUS)), watched)
    assert seen == [[False, True]]
    assert y.eq(2).all() and z.eq(2).all()


def test_a_call_keeps_its_inputs(native, watch):
    watched, seen = watch
    given = [torch.ones(BIG), torch.ones(BIG)]
    watched[:] = [weakref.ref(x) for x in given]
    native(looking(PLUS))(*given)
    assert seen == [[True, True]] and given[0].eq(1).all()


def test_small_inputs_stay(native, watch):
    watched, seen = watch
    ex = native(program(
        (spec("input", (4,)), spec("input", (4,), 1), spec("fresh", (4,)), spec("extern", (4,))),
        (Alloc(2), Launch("add1", (0, 2), 4, 64),
         Call("weldconsume.look.default", (TensorArg(1),), (), (3,))), (2, 3),
    ))  # fmt: skip
    given = [torch.ones(4), torch.ones(4)]
    watched[:] = [weakref.ref(x) for x in given]
    ex.consume(given)
    assert seen == [[True, True]] and given == []


def test_what_is_returned_or_written_stays(native, watch):
    watched, seen = watch
    x, z = run(native(looking(PLUS, (0, 4))), watched)
    assert seen.pop() == [True, True] and x.eq(1).all() and z.eq(2).all()
    written = program(
        (spec("input", (BIG,)), spec("input", (BIG,), 1), spec("extern", (BIG,))),
        (Launch("increment", (0,), BIG, 1 << 14),
         Call("weldconsume.look.default", (TensorArg(1),), (), (2,))), (2,), mutated=(0,),
    )  # fmt: skip
    run(native(written), watched)
    assert seen.pop() == [True, True]


def test_a_view_has_its_memory_after_the_input_is_gone(native, watch):
    watched, seen = watch
    view = (MakeView(2, 0),)
    late = program(
        (spec("input", (BIG,)), spec("input", (BIG,), 1), spec("view", (BIG,)),
         spec("extern", (BIG,)), spec("fresh", (BIG,))),
        (*view, Call("weldconsume.look.default", (TensorArg(1),), (), (3,)), Alloc(4),
         Launch("add1", (2, 4), BIG, 1 << 14)), (3, 4),
    )  # fmt: skip
    _, y = run(native(late), watched)
    assert seen == [[False, True]] and y.eq(2).all()


def test_the_python_driver_takes_such_calls(make):
    (y,) = make(add_one(8)).consume([torch.zeros(8)])
    assert y.eq(1).all()


@pytest.mark.parametrize("wrong", [[], [torch.zeros(4), torch.zeros(4)], (torch.zeros(4),), None])
def test_other_lists_are_refused(native, wrong):
    with pytest.raises(TypeError, match="list of 1"):
        native(add_one()).consume(wrong)


def test_a_backward_frees_what_the_forward_saved_while_it_runs(watch):
    """Three layers: when the backward of the first runs, what the others saved is gone."""
    watched, seen = watch

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return torch.ops.weldconsume.look(g) / 2

    library = torch.library.Library("weldconsume", "FRAGMENT")
    library.impl("look", torch.empty_like, "Meta")

    def fn(x):
        return (Look.apply(x).sigmoid() @ x).tanh().sum()

    x = torch.randn(256, 256, requires_grad=True)
    call = torchweld.compile(fn)
    call(x).backward()
    expected = x.grad.clone()
    x.grad = None
    loss = call(x)
    watched[:] = [weakref.ref(t) for t in loss.grad_fn.kept if t.numel() == 1 << 16]
    assert watched
    seen.clear()
    loss.backward()
    gc.collect()
    assert seen and not any(seen[0])
    assert torch.equal(x.grad, expected)
    library._destroy()
