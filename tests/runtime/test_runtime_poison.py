"""Under verify, memory that no step has written cannot pass for a result."""

from __future__ import annotations

import pytest
import torch
from launch_lists import Make, maker, program, spec

from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Call, Launch, Program, TensorArg

BIG = 1 << 20  # elements of f32: 4 MB, from where outputs are pooled


@pytest.fixture(params=["native", "python"])
def verified(request: pytest.FixtureRequest, shared_cache: str) -> Make:
    """Builds on either driver with verify on."""
    return maker(request.param, shared_cache, verify=True)


def unwritten(dtype: DType) -> Program:
    return program((spec("fresh", (5,), dtype=dtype),), (Alloc(0),), (0,))


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_floats_that_nobody_wrote_are_nan(verified, dtype):
    assert verified(unwritten(dtype))()[0].isnan().all()


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I16, DType.I8])
def test_integers_that_nobody_wrote_are_minus_one(verified, dtype):
    assert verified(unwritten(dtype))()[0].tolist() == [-1] * 5


def test_bools_that_nobody_wrote_are_no_bools(verified):
    assert verified(unwritten(DType.BOOL))()[0].view(torch.uint8).tolist() == [255] * 5


def test_a_gap_between_strides_is_filled_too(verified):
    p = program((spec("fresh", (2, 2), strides=(4, 1)),), (Alloc(0),), (0,))
    y = verified(p)()[0]
    assert torch.as_strided(y, (6,), (1,)).isnan().all()


def arena_leftover() -> Program:
    """Writes 4 of the 8 arena elements that it returns the successors of."""
    return program(
        (spec("input", (4,)), spec("arena", (8,)), spec("fresh", (8,))),
        (Launch("add1", (0, 1), 4, 64), Alloc(2), Launch("add1", (1, 2), 8, 64)),
        (2,),
        arena=64,
    )


def test_the_arena_is_filled_before_each_call(verified):
    run = verified(arena_leftover())
    for start in (0.0, 10.0, 20.0):
        y = run(torch.full((4,), start))[0]
        assert y[:4].tolist() == [start + 2] * 4 and y[4:].isnan().all()


def half_written() -> Program:
    return program(
        (spec("input", (BIG,)), spec("fresh", (BIG,))),
        (Alloc(1), Launch("add1", (0, 1), BIG // 2, 1 << 14)),
        (1,),
    )


def test_an_output_in_pooled_memory_is_filled_again(shared_cache):
    run = maker("native", shared_cache, verify=True)(half_written())
    for _ in range(5):
        (y,) = run(torch.zeros(BIG))
        assert y[BIG // 2 :].isnan().all()
        y.fill_(1.0)
    assert run.counts[1] > 0
    run.trim()


def test_results_of_matmuls_do_not_depend_on_what_their_memory_held(verified):
    t = TensorArg
    shapes = (spec("input", (6, 6)), spec("extern", (6, 6)), spec("extern", (6, 6)))
    steps = (
        Call("aten.mm.default", (t(0), t(0)), (), (1,)),
        Call("aten.mm.default", (t(1), t(0)), (), (2,)),
    )
    run = verified(program(shapes, steps, (2,)))
    x = torch.eye(6) * 2
    for _ in range(3):
        assert torch.equal(run(x)[0], x @ x @ x)


def test_without_verify_pooled_memory_is_left_alone(shared_cache):
    run = maker("native", shared_cache)(half_written())
    places = {}
    for _ in range(4):
        (y,) = run(torch.zeros(BIG))
        if y.data_ptr() in places:
            assert y[-1].item() == 1.0
        places[y.data_ptr()] = True
        y.fill_(1.0)
    assert run.counts[1] > 0
    run.trim()
