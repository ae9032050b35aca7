"""Arguments and results of operator calls, by each route of the native driver."""

from __future__ import annotations

import gc

import pytest
import torch
from launch_lists import T, call, maker, program, row_major, spec

from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, Drop, MakeView, TorchArg
from torchweld.runtime import routes
from torchweld.runtime.calls import TORCH_DTYPE, resolve
from torchweld.runtime.native import native as native_state

INTO, SHIM, PYTHON = routes.INTO, routes.SHIM, routes.PYTHON
DTYPES = {v: k for k, v in TORCH_DTYPE.items()}
A, B, W = (2, 3, 4), (2, 4, 3), (4, 3)
IMAGE, FILTER = (1, 3, 8, 8), (4, 3, 3, 3)

# operator, shapes of its tensors (bound to T(0), T(1)...), arguments, keyword arguments, route
CASES = [
    ("aten.mm.default", ((3, 4), W), (T(0), T(1)), {}, INTO),
    ("aten.bmm.default", (A, B), (T(0), T(1)), {}, INTO),
    ("aten.addmm.default", ((3,), (2, 4), W), (T(0), T(1), T(2)), {}, INTO),
    ("aten.addmm.default", ((3,), (2, 4), W), (T(0), T(1), T(2)), {"beta": 2, "alpha": 0.5}, INTO),
    ("aten.baddbmm.default", ((2, 3, 3), A, B), (T(0), T(1), T(2)), {"alpha": 2}, INTO),
    ("aten._softmax.default", (A,), (T(0), -1, False), {}, SHIM),
    ("aten.sum.dim_IntList", (A,), (T(0), (1, 2)), {}, SHIM),
    ("aten.sum.dim_IntList", (A,), (T(0), None, True), {}, SHIM),
    ("aten.sum.dim_IntList", (A,), (T(0), (0,)), {"dtype": TorchArg("dtype", "torch.float64")},
     SHIM),
    ("aten.cat.default", (A, A), ((T(0), T(1)), 1), {}, SHIM),
    ("aten.gelu.default", (A,), (T(0),), {"approximate": "tanh"}, SHIM),
    ("aten.native_layer_norm.default", (A, (4,)), (T(0), (4,), T(1), None, 1e-5), {}, SHIM),
    ("aten.convolution.default", (IMAGE, FILTER),
     (T(0), T(1), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1), {}, SHIM),
    ("aten.max_pool2d_with_indices.default", (IMAGE,), (T(0), (2, 2)), {}, SHIM),
    ("aten.upsample_bilinear2d.vec", (IMAGE,), (T(0), (4, 5), True, None), {}, SHIM),
    ("aten.scaled_dot_product_attention.default", ((1, 2, 3, 8),) * 3,
     (T(0), T(1), T(2), None, 0.0, True), {"scale": 0.5}, SHIM),
    ("aten.index.Tensor", (A,), (T(0), (None, T(0 + 1))), {}, SHIM),
    ("aten.add.Tensor", (A, A), (T(0), T(1)), {"alpha": 2}, PYTHON),
    ("aten.clamp.default", (A,), (T(0), -0.5, None), {}, PYTHON),
    ("aten._to_copy.default", (A,), (T(0),), {"dtype": TorchArg("dtype", "torch.bfloat16")},
     SHIM),
    ("aten.full.default", (), ((2, 3), 1.5), {"device": TorchArg("device", "cpu")}, PYTHON),
    ("aten.clone.default", (IMAGE,), (T(0),),
     {"memory_format": TorchArg("memory_format", "torch.channels_last")}, PYTHON),
    ("aten.split_with_sizes_copy.default", (A,), (T(0), (1, 2), 1), {}, PYTHON),
    ("aten.topk.default", (A,), (T(0), 2), {}, SHIM),
]  # fmt: skip


def build_case(op, shapes, args, kwargs):
    """The Program of a case, its inputs, and what eager gives."""
    inputs = [torch.randn(s) for s in shapes]
    if op == "aten.index.Tensor":
        inputs.append(torch.tensor([2, 0, 1]))
    overload = resolve(op)

    def real(a):
        return overload_args(a, inputs)

    expected = overload(*map(real, args), **{k: real(v) for k, v in kwargs.items()})
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    tensors = [spec("input", tuple(t.shape), i, dtype=DTYPES[t.dtype], strides=t.stride())
               for i, t in enumerate(inputs)]  # fmt: skip
    tensors += [spec("extern", tuple(t.shape), strides=t.stride(), dtype=DTYPES[t.dtype])
                for t in expected]  # fmt: skip
    results = tuple(range(len(inputs), len(tensors)))
    return call(op, args, tuple(tensors), results, **kwargs), inputs, expected


def overload_args(a, inputs):
    from torchweld.runtime.calls import decode

    return decode(a, inputs.__getitem__)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{len(c[3])}")
def test_an_operator_gives_eagers_bits(case, make):
    p, inputs, expected = build_case(*case[:4])
    with torch.no_grad():
        got = make(p)(*inputs)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{len(c[3])}")
def test_an_operator_takes_the_expected_route(case):
    p, _, _ = build_case(*case[:4])
    (step,) = p.steps
    state = native_state()
    got = routes.choose(step, resolve(step.op), p.tensors, state.missing, state.codes)
    assert got.kind == case[4]


def test_without_optional_entry_points_calls_go_through_python():
    everything = frozenset({row[1] for row in routes._INTO.values()} | {
        "aoti_torch_call_dispatcher"})  # fmt: skip
    p, _, _ = build_case(*CASES[0][:4])
    (step,) = p.steps
    got = routes.choose(step, resolve(step.op), p.tensors, everything, native_state().codes)
    assert got.kind == PYTHON


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_matmuls_of_other_dtypes_give_eagers_bits(make, dtype):
    x = torch.randn(33, 17).mul(5).to(dtype)
    d = DTYPES[dtype]
    tensors = (spec("input", (33, 17), dtype=d), spec("input", (17, 33), 1, dtype=d,
               strides=(1, 17)), spec("extern", (33, 33), dtype=d))  # fmt: skip
    (y,) = make(call("aten.mm.default", (T(0), T(1)), tensors, (2,)))(x, x.t())
    assert torch.equal(y, x @ x.t())


def test_a_matmul_over_an_empty_axis_gives_zeros(make):
    tensors = (spec("input", (2, 0)), spec("input", (0, 3), 1), spec("extern", (2, 3)))
    (y,) = make(call("aten.mm.default", (T(0), T(1)), tensors, (2,)))(
        torch.empty(2, 0), torch.empty(0, 3)
    )
    assert torch.equal(y, torch.zeros(2, 3))


def test_memory_of_a_dropped_matmul_is_used_again_and_returned_views_keep_theirs(make):
    square = (8, 8)
    p = program(
        (spec("input", square), *(spec("extern", square) for _ in range(3)),
         spec("view", (8,), strides=(9,))),
        (
            Call("aten.mm.default", (T(0), T(0)), (), (1,)),
            MakeView(4, 1),
            Drop(1),
            Call("aten.mm.default", (T(0), T(0)), (), (2,)),
            Call("aten.mm.default", (T(2), T(0)), (), (3,)),
        ),
        (3, 4),
    )  # fmt: skip
    ex, x = make(p), torch.randn(square)
    first = ex(x)
    kept = [t.clone() for t in first]
    for _ in range(3):
        ex(torch.randn(square))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    assert torch.equal(kept[0], x @ x @ x) and torch.equal(kept[1], (x @ x).diagonal())


@pytest.fixture
def python_op():
    """Defines weldtest::op with a Python kernel."""
    library = torch.library.Library("weldtest", "DEF")
    library.define("op(Tensor x) -> Tensor")

    def define(kernel):
        library.impl("op", kernel, "CPU")

    yield define
    library._destroy()
    gc.collect()


def custom():
    return call("weldtest.op.default", (T(0),), (spec("input", (2,)), spec("extern", (2,))), (1,))


def test_an_operator_written_in_python_keeps_its_exception(make, python_op):
    class Oops(Exception):
        pass

    def kernel(x):
        raise Oops("from the kernel")

    python_op(kernel)
    with pytest.raises(Oops, match="from the kernel"):
        make(custom())(torch.zeros(2))


def test_an_operator_may_call_the_executable_that_called_it(make, python_op):
    depth = []

    def kernel(x):
        depth.append(1)
        return ex(x + 1)[0] if len(depth) < 5 else x.clone()

    python_op(kernel)
    ex = make(custom())
    assert ex(torch.zeros(2))[0].tolist() == [4.0, 4.0]


def test_row_major_is_what_torch_says():
    assert row_major((2, 3, 4)) == torch.empty(2, 3, 4).stride()


@pytest.mark.parametrize("driver", ["native", "python"])
def test_an_undefined_result_count_is_an_internal_error(driver, shared_cache):
    from torchweld.base.errors import InternalError

    tensors = (spec("input", (4,)), spec("extern", (4,)), spec("extern", (4,)))
    ex = maker(driver, shared_cache)(call("aten.neg.default", (T(0),), tensors, (1, 2)))
    with pytest.raises(InternalError, match="gave 1 tensors, not 2"):
        ex(torch.zeros(4))


def test_dtype_names_round_trip():
    assert {d for d in DType if d not in TORCH_DTYPE} == {DType.OTHER}
