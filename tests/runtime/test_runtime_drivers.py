"""What a call of an Executable means, on both drivers."""

from __future__ import annotations

import pytest
import torch
from launch_lists import T, add_one, call, maker, mlp, program, spec

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Call, Drop, Launch, MakeView, Program


def test_a_kernel_writes_a_fresh_output(make):
    (y,) = make(add_one())(torch.arange(4.0))
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0] and type(y) is torch.Tensor


def test_calls_kernels_and_arena_together_equal_eager(make):
    x, w, b = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    ex = make(mlp())
    for _ in range(3):
        (y,) = ex(x, w, b)
        torch.testing.assert_close(y, torch.softmax(torch.relu(x @ w + b) + 1, 1))


def test_both_drivers_give_the_same_bits(both):
    x, w, b = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    fast, reference = both(mlp())
    assert torch.equal(fast(x, w, b)[0], reference(x, w, b)[0])


def test_results_outlive_the_next_call(make):
    ex = make(mlp())
    first = ex(torch.randn(3, 4), torch.randn(4, 5), torch.randn(5))[0]
    before = first.clone()
    ex(torch.randn(3, 4), torch.randn(4, 5), torch.randn(5))
    assert torch.equal(first, before)


def test_every_point_of_a_parallel_range_runs_once(make):
    n = 1003
    p = program(
        (spec("input", (n,)), spec("input", (n,), 1)), (Launch("visit", (0, 1), n, 10),), (0,)
    )
    seen, chunk = torch.zeros(n), torch.zeros(n)
    make(p)(seen, chunk)
    assert torch.equal(seen, torch.ones(n))


def test_the_native_driver_uses_as_many_threads_as_torch_says(native):
    n = 1000
    p = program(
        (spec("input", (n,)), spec("input", (n,), 1)), (Launch("visit", (0, 1), n, 10),), (0,)
    )
    ex, before = native(p), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            chunk = torch.zeros(n)
            ex(torch.zeros(n), chunk)
            assert chunk.max().item() in (n // threads, n // threads + 1)
    finally:
        torch.set_num_threads(before)


def test_a_range_below_two_grains_is_one_chunk(native):
    n = 100
    p = program(
        (spec("input", (n,)), spec("input", (n,), 1)), (Launch("visit", (0, 1), n, 51),), (0,)
    )
    chunk = torch.zeros(n)
    native(p)(torch.zeros(n), chunk)
    assert chunk.min().item() == n


def test_an_empty_range_runs_nothing(make):
    p = program((spec("input", (0,)), spec("fresh", (0,))),
                (Alloc(1), Launch("add1", (0, 1), 0, 8)), (1,))  # fmt: skip
    assert make(p)(torch.empty(0))[0].shape == (0,)


def test_kernels_see_the_storage_offset_of_an_input(make):
    (y,) = make(add_one())(torch.arange(10.0)[3:7])
    assert y.tolist() == [4.0, 5.0, 6.0, 7.0]


def test_an_input_returned_is_that_very_object(make):
    x = torch.nn.Parameter(torch.zeros(4))
    out = make(program((spec("input", (4,)),), (), (0, None, 0)))(x)
    assert out[0] is x and out[1] is None and out[2] is x


def test_an_output_returned_twice_is_one_object(make):
    p = program((spec("input", (4,)), spec("fresh", (4,))),
                (Alloc(1), Launch("add1", (0, 1), 4, 8)), (1, 1))  # fmt: skip
    a, b = make(p)(torch.zeros(4))
    assert a is b


def test_a_view_of_an_input_is_a_view_to_torch(make):
    p = program(
        (spec("input", (2, 3)), spec("view", (3,), strides=(1,), offset=3)), (MakeView(1, 0),), (1,)
    )
    x = torch.arange(6.0).reshape(2, 3).clone()
    (y,) = make(p)(x)
    assert y._base is x
    y.fill_(9)
    assert x.tolist() == [[0, 1, 2], [9, 9, 9]] and x._version == y._version


def test_a_view_counts_from_where_the_input_really_starts(make):
    p = program(
        (spec("input", (4,)), spec("view", (2,), strides=(2,), offset=1)), (MakeView(1, 0),), (1,)
    )
    assert make(p)(torch.arange(10.0)[5:9])[0].tolist() == [6.0, 8.0]


def test_calls_and_kernels_read_views_of_arena_tensors(make):
    p = program(
        (
            spec("input", (6,)), spec("arena", (6,), 64),
            spec("view", (3, 2), strides=(1, 3)), spec("extern", (3,)),
            spec("view", (3,), strides=(1,), offset=3), spec("fresh", (3,)),
        ),
        (
            Launch("add1", (0, 1), 6, 8), MakeView(2, 1), MakeView(4, 1),
            Call("aten.sum.dim_IntList", (T(2), (1,)), (), (3,)),
            Alloc(5), Launch("add1", (4, 5), 3, 8),
        ),
        (3, 5),
        arena=128,
    )  # fmt: skip
    total, last = make(p)(torch.arange(6.0))
    assert total.tolist() == [5.0, 7.0, 9.0] and last.tolist() == [5.0, 6.0, 7.0]


def test_an_empty_intermediate_needs_no_arena_bytes(make):
    p = program(
        (spec("input", (0, 3)), spec("arena", (0, 3)), spec("extern", (3,))),
        (
            Launch("add1", (0, 1), 0, 8),
            Call("aten.sum.dim_IntList", (T(1), (0,)), (), (2,)),
        ),
        (2,),
    )
    assert make(p)(torch.empty(0, 3))[0].tolist() == [0.0, 0.0, 0.0]


def test_a_dropped_tensor_is_gone_and_the_rest_stays(make):
    p = program(
        (spec("input", (2, 2)), spec("extern", (2, 2)), spec("extern", (2, 2))),
        (
            Call("aten.mm.default", (T(0), T(0)), (), (1,)),
            Call("aten.mm.default", (T(1), T(0)), (), (2,)),
            Drop(1),
        ),
        (2,),
    )
    x = torch.randn(2, 2)
    assert torch.equal(make(p)(x)[0], x @ x @ x)


def test_a_mutated_input_advances_its_version(make):
    p = program((spec("input", (4,)),), (Launch("increment", (0,), 4, 8),), (), mutated=(0,))
    x = torch.zeros(4)
    assert make(p)(x) == ()
    assert x.tolist() == [1.0] * 4 and x._version == 1


def test_mutating_an_inference_tensor_is_allowed(make):
    p = program((spec("input", (4,)),), (Launch("increment", (0,), 4, 8),), (), mutated=(0,))
    with torch.inference_mode():
        x = torch.zeros(4)
        make(p)(x)
    assert x.tolist() == [1.0] * 4


def test_a_call_that_only_mutates_has_no_results(make):
    p = program((spec("input", (2,)), spec("input", (2,), 1)),
                (Call("aten.copy_.default", (T(0), T(1)), (), ()),), (0,))  # fmt: skip
    x = torch.zeros(2)
    (y,) = make(p)(x, torch.ones(2))
    assert y is x and x.tolist() == [1.0, 1.0] and x._version == 1


def test_a_result_with_other_strides_is_copied_to_the_promised_layout(make):
    p = call("aten.neg.default", (T(0),), (spec("input", (2, 3), strides=(1, 2)),
             spec("extern", (2, 3))), (1,))  # fmt: skip
    x = torch.randn(3, 2).t()
    (y,) = make(p)(x)
    assert y.stride() == (3, 1) and torch.equal(y, -x)


@pytest.mark.parametrize("driver", ["native", "python"])
def test_verify_refuses_a_result_with_other_strides(driver, shared_cache):
    p = call("aten.neg.default", (T(0),), (spec("input", (2, 3), strides=(1, 2)),
             spec("extern", (2, 3))), (1,))  # fmt: skip
    ex = maker(driver, shared_cache, verify=True)(p)
    with pytest.raises(InternalError, match="strides"):
        ex(torch.randn(3, 2).t())


@pytest.mark.parametrize("driver", ["native", "python"])
def test_verify_refuses_an_input_of_another_shape(driver, shared_cache):
    ex = maker(driver, shared_cache, verify=True)(add_one())
    with pytest.raises(InternalError, match="input 0"):
        ex(torch.zeros(5))


def test_a_result_of_another_shape_is_an_internal_error(make):
    p = call("aten.neg.default", (T(0),), (spec("input", (2,)), spec("extern", (3,))), (1,))
    with pytest.raises(InternalError, match=r"aten\.neg\.default"):
        make(p)(torch.zeros(2))


def test_an_index_out_of_range_is_an_index_error(make):
    tensors = (spec("input", (4,)), spec("input", (2,), 1, dtype=DType.I64), spec("fresh", (2,)))
    ex = make(program(tensors, (Alloc(2), Launch("take", (0, 1, 2), 2, 8)), (2,)))
    x = torch.arange(4.0)
    with pytest.raises(IndexError, match=r"index out of range in a compiled kernel \(take\)"):
        ex(x, torch.tensor([0, 4]))
    assert ex(x, torch.tensor([3, 0]))[0].tolist() == [3.0, 0.0]


@pytest.mark.parametrize("at, kind", [(7, IndexError), (40, IndexError), (3, RuntimeError)])
def test_the_exception_follows_the_code_that_any_thread_returned(make, at, kind):
    n = 1 << 16
    codes = torch.zeros(n, dtype=torch.int64)
    codes[at] = 2
    codes[n - 1] = 1 if kind is IndexError else 0
    ex = make(program((spec("input", (n,), dtype=DType.I64),), (Launch("sign_code", (0,), n, 64),),
                      ()))  # fmt: skip
    with pytest.raises(kind, match=r"\(sign_code\)"):
        ex(codes)


def test_who_can_explain_a_failure_is_asked_with_the_inputs(make):
    ex = make(program((spec("input", (2,), dtype=DType.I64),), (Launch("sign_code", (0,), 2, 64),),
                      ()))  # fmt: skip
    seen = []

    def explain(*inputs):
        seen.append([x.tolist() for x in inputs])
        raise KeyError("eager")

    ex.explain = explain
    ex(torch.tensor([0, 0]))
    assert seen == []
    with pytest.raises(KeyError, match="eager"):
        ex(torch.tensor([0, 1]))
    assert seen == [[[0, 1]]]
    ex.explain = lambda x: None
    with pytest.raises(RuntimeError, match="sign_code"):
        ex(torch.tensor([2, 0]))
    ex.explain = None
    with pytest.raises(IndexError, match="sign_code"):
        ex(torch.tensor([1, 0]))


@pytest.mark.parametrize("op", ["mm", "matmul"])
def test_an_operator_raises_what_eager_raises(make, op, capfd):
    tensors = (spec("input", (2, 3)), spec("input", (3, 2), 1), spec("extern", (2, 2)))
    ex = make(call(f"aten.{op}.default", (T(0), T(1)), tensors, (2,)))
    with pytest.raises(RuntimeError) as eager:
        getattr(torch, op)(torch.randn(2, 3), torch.randn(4, 2))
    with pytest.raises(RuntimeError) as ours:
        ex(torch.randn(2, 3), torch.randn(4, 2))
    assert type(ours.value) is type(eager.value) and str(ours.value) == str(eager.value)
    x, w = torch.randn(2, 3), torch.randn(3, 2)
    assert torch.equal(ex(x, w)[0], x @ w)


def test_a_product_gets_rows_with_gaps_where_its_spec_has_them(make):
    tensors = (spec("input", (4, 8)), spec("input", (8, 9), 1),
               spec("extern", (4, 9), strides=(16, 1)))  # fmt: skip
    ex = make(call("aten.mm.default", (T(0), T(1)), tensors, (2,)))
    x, w = torch.randn(4, 8), torch.randn(8, 9)
    for _ in range(2):
        (y,) = ex(x, w)
        assert y.stride() == (16, 1)
        torch.testing.assert_close(y, x @ w)


def test_exception_types_of_operators_are_kept(make, capfd):
    tensors = (spec("input", (2, 3)), spec("extern", (2, 3)))
    ex = make(call("aten._softmax.default", (T(0), 7, False), tensors, (1,)))
    with pytest.raises(IndexError):
        ex(torch.randn(2, 3))


def test_wrong_arguments_are_type_errors(make):
    ex = make(add_one())
    with pytest.raises(TypeError, match="expected 1"):
        ex()
    with pytest.raises(TypeError, match="not a tensor"):
        ex([1.0])


def test_results_never_require_grad_and_grad_mode_is_restored(make):
    tensors = (spec("input", (2, 2)), spec("input", (2, 2), 1), spec("extern", (2, 2)))
    w = torch.nn.Parameter(torch.randn(2, 2))
    with torch.enable_grad():
        (y,) = make(call("aten.mul.Tensor", (T(0), T(1)), tensors, (2,)))(w, w)
        assert torch.is_grad_enabled()
        assert (w * 1).requires_grad
    assert not y.requires_grad and y.grad_fn is None


def test_autocast_does_not_touch_captured_calls(make):
    tensors = (spec("input", (2, 2)), spec("extern", (2, 2)))
    x = torch.randn(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for op in ("aten.mm.default", "aten.matmul.default"):
            assert make(call(op, (T(0), T(0)), tensors, (1,)))(x)[0].dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


def test_an_output_in_the_arena_is_refused(native):
    p = program((spec("input", (4,)), spec("arena", (4,), 64)),
                (Launch("add1", (0, 1), 4, 8),), (1,), arena=128)  # fmt: skip
    with pytest.raises(InternalError, match="arena"):
        native(p)


def test_a_call_result_that_aliases_the_arena_is_copied(make):
    p = program(
        (spec("input", (4,)), spec("arena", (4,), 64), spec("extern", (2, 2))),
        (Launch("add1", (0, 1), 4, 8), Call("aten.view.default", (T(1), (2, 2)), (), (2,))),
        (2,),
        arena=128,
    )
    ex = make(p)
    (first,) = ex(torch.zeros(4))
    ex(torch.full((4,), 5.0))
    assert first.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_an_unknown_operator_is_an_internal_error(make):
    with pytest.raises(InternalError, match="no operator"):
        make(call("aten.no_such_thing.default", (), (), ()))


def test_a_program_without_artifacts_needs_no_compiler(monkeypatch, make):
    monkeypatch.setenv("CXX", "/nonexistent")
    p = Program((), (spec("input", (2,)), spec("extern", (2,))),
                (Call("aten.neg.default", (T(0),), (), (1,)),), 1, (1,), 0)  # fmt: skip
    assert make(p)(torch.ones(2))[0].tolist() == [-1.0, -1.0]
