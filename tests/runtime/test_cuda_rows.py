"""What the native driver is told about launches and matmuls on CUDA."""

from __future__ import annotations

import pytest

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, GridLaunch, TensorArg, TensorSpec
from torchweld.runtime import routes
from torchweld.runtime.calls import resolve
from torchweld.runtime.cuda import Loaded, aligned, device_index, grid_row
from torchweld.runtime.triton_job import Cubin

KERNEL = Loaded(7, Cubin(b"", "k", 96, 4, 5), ("*bf16:16", "fp32", "*bf16"))


def spec(sizes, dtype=DType.BF16, device="cuda:1"):
    strides = (*sizes[1:], 1)[: len(sizes)]
    return TensorSpec("input", 0, dtype, sizes, strides, 0, device)


NUMBER = spec((), DType.F32, "cpu")


def test_the_row_of_a_launch():
    step = GridLaunch("k", (0, 1, 2), 3)
    row = grid_row(step, KERNEL, (spec((8,)), NUMBER, spec((8,))))
    assert row[2:] == (7, (0, 1, 2), (0, 4, 0), 3, 128, 96, 5, 1)


@pytest.mark.parametrize(
    "tensors",
    [
        (spec((8,)), spec((), DType.F64, "cpu"), spec((8,))),
        (spec((8,)), NUMBER, spec((8,), device="cuda:0")),
        (spec((8,)), NUMBER, spec((8,), device="cpu")),
        (spec((8,)), spec((), DType.F32), spec((8,))),
    ],
    ids=["dtype", "devices", "pointer-on-cpu", "number-on-gpu"],
)
def test_arguments_that_do_not_fit_are_an_internal_error(tensors):
    with pytest.raises(InternalError):
        grid_row(GridLaunch("k", (0, 1, 2), 3), KERNEL, tensors)


def test_only_pointers_marked_so_must_be_aligned():
    assert aligned([GridLaunch("k", (4, 5, 6), 1)], {"k": KERNEL}) == {4}


def test_devices_by_name():
    assert [device_index(d) for d in ("cpu", "cuda:0", "cuda:3")] == [-1, 0, 3]


@pytest.mark.parametrize(
    ("op", "kwargs", "position"),
    [
        ("aten.addmm.default", (), 6),
        ("aten.addmm.default", (("alpha", 2.0),), 6),
        ("aten._addmm_activation.default", (), 8),
        ("aten._addmm_activation.default", (("use_gelu", True),), 9),
    ],
)
def test_matmuls_on_cuda_go_to_its_own_functions(op, kwargs, position):
    tensors = (spec((8,)), spec((4, 2)), spec((2, 8)), spec((4, 8)))
    step = Call(op, tuple(TensorArg(i) for i in range(3)), kwargs, (3,))
    route = routes.choose(step, resolve(op), tensors, frozenset(), {})
    assert route.kind == routes.INTO and route.detail[0] == position
    assert route.detail[2:] == (1.0, dict(kwargs).get("alpha", 1.0))


def test_matmuls_of_two_devices_do_not():
    tensors = (spec((4, 2)), spec((2, 8), device="cuda:0"), spec((4, 8)))
    step = Call("aten.mm.default", (TensorArg(0), TensorArg(1)), (), (2,))
    assert routes.choose(step, resolve(step.op), tensors, frozenset(), {}).kind != routes.INTO
