"""Which tensors a CUDA graph patches, copies, lends, and which Programs are none."""

from __future__ import annotations

import pytest

from torchweld.ir.dtype import DType
from torchweld.ir.hooks import HOOKED
from torchweld.ir.program import (
    Alloc,
    Call,
    Draw,
    Drop,
    GridLaunch,
    Launch,
    MakeView,
    Program,
    TensorArg,
    TensorSpec,
    TorchArg,
)
from torchweld.runtime.cudagraph_plan import (
    GraphPlan,
    Lending,
    NoGraph,
    Role,
    analyse,
    held_outputs,
    roles,
    working_bytes,
)

T = TensorArg
N = 1 << 20


def spec(place, index=0, sizes=(N,), strides=(1,), dtype=DType.F32, device="cuda:0"):
    return TensorSpec(place, index, dtype, sizes, strides, 0, device)


def program(tensors, steps, outputs, **meta):
    n = sum(t.place == "input" for t in tensors)
    return Program((), tensors, tuple(steps), n, outputs, 4 * N, meta, "cuda:0")


def launch(*args):
    return GridLaunch("k", args, 8)


def call(op, args, *results, **kwargs):
    return Call(op, tuple(args), tuple(kwargs.items()), results)


def neg(source, result):
    return call("aten.neg.default", (T(source),), result)


def roles_of(p, static=(), lend=True, forced=True, **lending):
    plan = analyse(p, False, Lending(**lending))
    assert isinstance(plan, GraphPlan), plan
    found = roles(plan, frozenset(static), lend, forced)
    return [Role(r) for r in found] if isinstance(found, bytes) else found


def why_not(p, forced=False):
    found = analyse(p, forced)
    assert isinstance(found, NoGraph)
    return found.why


def test_what_only_kernels_touch_is_patched():
    p = program(
        (spec("input"), spec("arena"), spec("fresh")),
        (launch(0, 1), Alloc(2), launch(1, 2)), (2,),
    )  # fmt: skip
    assert roles_of(p) == [Role.PATCH, Role.NONE, Role.PATCH]


def test_the_state_of_a_generator_is_a_value_that_every_call_sets():
    number = spec("state", 0, (), (), DType.I64, "cpu")
    p = program(
        (spec("input"), number, number, spec("fresh")),
        (Draw("cuda:0", 4, 1, 2), Alloc(3), launch(0, 1, 2, 3)), (3,),
    )  # fmt: skip
    assert roles_of(p) == [Role.PATCH, Role.VALUE, Role.VALUE, Role.PATCH]


def test_what_an_operator_reads_is_copied_unless_it_stays():
    p = program((spec("input"), spec("extern"), spec("fresh")),
                (neg(0, 1), Alloc(2), launch(1, 2)), (2,))  # fmt: skip
    assert roles_of(p)[0] is Role.COPY
    assert roles_of(p, static=[0])[0] is Role.STATIC


def test_a_view_that_an_operator_reads_counts_for_its_base():
    p = program(
        (spec("input"), spec("view", 0, (N // 2,)), spec("extern", 0, (N // 2,)),
         spec("fresh")),
        (MakeView(1, 0), neg(1, 2), Alloc(3), launch(0, 3)), (3,),
    )  # fmt: skip
    assert roles_of(p)[0] is Role.COPY


def test_a_view_made_by_an_operator_counts_for_its_base():
    p = program(
        (spec("input"), spec("extern"), spec("extern"), spec("fresh")),
        (call("aten.alias.default", (T(0),), 1), neg(1, 2), Alloc(3), launch(2, 3)), (3,),
    )  # fmt: skip
    plan = analyse(p)
    assert plan.root[1] == 0 and roles_of(p)[0] is Role.COPY


def test_results_of_operators_are_lent_when_large_and_copied_when_small():
    p = program((spec("input"), spec("extern")), (launch(0), neg(0, 1)), (1,), mutated=(0,))
    assert roles_of(p)[1] is Role.HELD and roles_of(p, lend=False)[1] is Role.OUT
    small = program((spec("input", 0, (8,)), spec("extern", 0, (8,))),
                    (launch(0), neg(0, 1)), (1,))  # fmt: skip
    assert roles_of(small)[1] is Role.OUT


def test_a_fresh_output_that_an_operator_writes_is_copied_out():
    p = program(
        (spec("input"), spec("fresh"), spec("extern")),
        (Alloc(1), launch(0, 1), call("aten.add_.Tensor", (T(1), T(0)), 2)), (1,),
    )  # fmt: skip
    assert roles_of(p)[1] is Role.OUT


def test_numbers_on_the_cpu_are_passed_by_value():
    p = program((spec("input"), spec("input", 1, (), (), device="cpu"), spec("fresh")),
                (Alloc(2), launch(0, 1, 2)), (2,))  # fmt: skip
    assert roles_of(p) == [Role.PATCH, Role.VALUE, Role.PATCH]


def test_the_tail_makes_the_views_that_are_returned():
    p = program(
        (spec("input"), spec("fresh"), spec("view", 1, (4,)), spec("view", 0, (4,))),
        (MakeView(3, 0), Alloc(1), launch(3, 1), MakeView(2, 1)), (2,),
    )  # fmt: skip
    plan = analyse(p)
    assert plan.tail == (3,) and plan.made == (1,)


def test_an_input_with_gaps_that_an_operator_writes_is_not_copied():
    p = program((spec("input", 0, (4,), (2,)), spec("extern", 0, (4,))),
                (launch(0), neg(0, 1)), (1,), mutated=(0,))  # fmt: skip
    assert "not dense" in roles_of(p).why
    assert roles_of(p, static=[0])[0] is Role.STATIC


def test_one_kernel_does_not_pay():
    p = program((spec("input"), spec("fresh")), (Alloc(1), launch(0, 1)), (1,))
    assert "as fast" in roles_of(p, forced=False).why
    assert roles_of(p, forced=True)[1] is Role.PATCH


def test_copies_that_cost_more_than_a_graph_saves_do_not_pay():
    n = 1 << 26
    p = program(
        (spec("input", 0, (n,)), spec("extern", 0, (n,)), spec("fresh", 0, (n,))),
        (neg(0, 1), Alloc(2), launch(1, 2)), (2,),
    )  # fmt: skip
    assert "would be copied" in roles_of(p, forced=False).why
    assert roles_of(p, static=[0], forced=False)[0] is Role.STATIC
    assert analyse(p).heavy() == {0}


@pytest.mark.parametrize(
    ("op", "args", "why"),
    [
        ("aten.bernoulli.p", (0.5,), "random"),
        ("aten.native_dropout.default", (0.5, True), "random"),
        ("aten.nonzero.default", (), "shape depends"),
        ("aten.masked_select.default", (T(0),), "shape depends"),
        ("aten._to_copy.default", (), "on the CPU"),
    ],
)
def test_operators_that_cannot_be_captured(op, args, why):
    kwargs = {"device": TorchArg("device", "cpu")} if op.startswith("aten._to_copy") else {}
    p = program((spec("input"), spec("extern"), spec("fresh")),
                (launch(0), call(op, (T(0), *args), 1, **kwargs)), (1,))  # fmt: skip
    assert why in why_not(p)


def attention(p_drop):
    q = spec("input", 0, (2, 4, 128, 64), (32768, 8192, 64, 1), DType.BF16)
    extern = spec("extern", 0, (2, 4, 128, 64), (32768, 8192, 64, 1), DType.BF16)
    unused = spec("extern", 0, (), (), DType.I64, "cpu")
    return program(
        (q, extern, unused, unused, unused, unused, unused, unused),
        (call("aten._scaled_dot_product_flash_attention.default", (T(0), T(0), T(0), p_drop),
              1, 2, 3, 4, 5, 6, 7), launch(1)), (1,),
    )  # fmt: skip


def test_attention_without_dropout_may_be_captured():
    assert isinstance(analyse(attention(0.0)), GraphPlan)
    assert "random" in why_not(attention(0.1))


def test_operators_of_other_namespaces_need_a_promise():
    linear = call("mkldnn._linear_pointwise.default", (T(0),), 1)
    p = program((spec("input"), spec("extern")), (launch(0), linear), (1,))
    assert "not ATen's" in why_not(p)
    assert isinstance(analyse(p, forced=True), GraphPlan)


def test_python_code_of_the_user_is_never_part_of_a_graph():
    hooked = call(str(HOOKED), (0, (T(0),)), 1)
    p = program((spec("input"), spec("extern")), (launch(0), hooked), (1,))
    assert "runs Python code" in why_not(p, forced=True)


def test_work_on_the_cpu_is_no_graph():
    p = program((spec("input"), spec("fresh")), (Alloc(1), Launch("f", (0, 1), 4, 4)), (1,))
    assert "runs on the CPU" in why_not(p)
    p = program((spec("input"), spec("input", 1, (), (), device="cpu"), spec("extern")),
                (launch(0), call("aten.add.Tensor", (T(0), T(1)), 2)), (2,))  # fmt: skip
    assert "on the CPU" in why_not(p)


def test_two_devices_are_no_graph():
    p = program((spec("input"), spec("fresh", device="cuda:1")), (Alloc(1), launch(1)), (1,))
    assert "cuda:0, cuda:1" in why_not(p)


def test_a_returned_view_that_an_operator_made_is_no_graph():
    p = program((spec("input"), spec("extern")),
                (launch(0), call("aten.alias.default", (T(0),), 1), Drop(0)), (1,))  # fmt: skip
    assert "shares memory" in why_not(p)


# ---------------------------------------------------------------- training
def forward():
    """An operator's result and a kernel's, both small and saved behind an operator's large one."""
    return program(
        (spec("input"), spec("extern"), spec("extern", 0, (8,)), spec("fresh", 0, (8,))),
        (neg(0, 1), neg(0, 2), Alloc(3), launch(0, 3)), (1, 2, 3),
    )  # fmt: skip


def test_what_is_saved_is_held_whoever_made_it_and_whatever_its_size():
    assert roles_of(forward(), saved=2)[2:] == [Role.HELD, Role.HELD]
    assert held_outputs(forward(), Lending(saved=2)) == {1, 2}


def test_results_of_a_forward_are_copied_unless_its_backward_reads_them():
    assert roles_of(forward(), saved=2)[1] == Role.OUT
    assert roles_of(forward(), saved=2, kept=(0,))[1] == Role.HELD
    assert roles_of(forward())[1] == Role.HELD


def test_no_saved_input_is_held():
    p = program((spec("input"), spec("extern")), (neg(0, 1),), (1, 0))
    assert held_outputs(p, Lending(saved=1)) == frozenset()


def test_gradients_of_operators_and_small_ones_are_held():
    p = program(
        (spec("input"), spec("extern", 0, (8,)), spec("fresh", 0, (8,)), spec("fresh")),
        (neg(0, 1), Alloc(2), launch(0, 2), Alloc(3), launch(0, 3)), (1, 2, 3),
    )  # fmt: skip
    assert roles_of(p, least=0)[1:] == [Role.HELD, Role.HELD, Role.PATCH]


def test_a_step_that_changes_its_parameters_lends_the_gradients_that_it_returns():
    n = 8
    tensors = [spec("input", i, (40_000,)) for i in range(n)]
    tensors += [spec("extern", 0, (40_000,)) for _ in range(n)]
    steps = [neg(i, n + i) for i in range(n)] + [launch(n + i, i) for i in range(n)]
    outputs = tuple(range(n, 2 * n))
    step = program(tuple(tensors), tuple(steps), outputs, mutated=tuple(range(n)))
    assert roles_of(step, static=range(n))[n:] == [Role.HELD] * n
    plain = program(tuple(tensors), tuple(steps), outputs)
    assert roles_of(plain, static=range(n))[n:] == [Role.OUT] * n


def test_views_of_results_come_before_views_of_what_is_saved():
    view = TensorSpec("view", 0, DType.F32, (8,), (1,), 0, "cuda:0")
    p = program(
        (spec("input"), spec("extern"), spec("extern"), view, view),
        (neg(0, 1), neg(0, 2), MakeView(3, 1), MakeView(4, 2)), (4, 3),
    )  # fmt: skip
    plan = analyse(p, False, Lending(saved=1))
    assert (plan.tail, plan.n_shown) == ((3, 2), 1)


def test_what_a_graph_needs_while_it_runs_is_what_is_alive_at_once():
    p = program(
        (spec("input"), spec("extern"), spec("extern"), spec("extern"), spec("fresh")),
        (neg(0, 1), neg(1, 2), Drop(1), neg(2, 3), Drop(2), Alloc(4), launch(3, 4)), (4,),
    )  # fmt: skip
    plan = analyse(p)
    assert isinstance(plan, GraphPlan) and working_bytes(plan) == 2 * 4 * N + p.arena_bytes


def test_a_size_that_kernels_take_is_no_tensor_on_the_cpu():
    number = spec("number", 5, (), (), DType.I64, "cpu")
    p = program(
        (spec("input"), number, spec("fresh"), spec("fresh")),
        (Alloc(2), launch(0, 1, 2), Alloc(3), launch(0, 1, 3)), (2, 3),
    )  # fmt: skip
    assert roles_of(p) == [Role.PATCH, Role.VALUE, Role.PATCH, Role.PATCH]
