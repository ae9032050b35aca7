"""evaluate_plan runs plans as their structure says, and catches plans that cannot be right."""

import copy
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ir.plain_plans import plain_plan
from tests.ir.strategies import EXTERNS, inputs_of, loop_graphs
from tests.ir.test_loop_random import bits

from torchweld.base.errors import InternalError
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.plan import Free, Kernel, Local, Plan, Slot, Stage, Tile
from torchweld.ir.plan_eval import evaluate_plan

SOFTMAX = """
x: f32[2, 3] input
m: f32[2]
e: f32[2, 3]
s: f32[2]
y: f32[2, 3]
m[i] = max over j:3 of x[i, j]  for i:2
e[i, j] = exp(x[i, j] - m[i])  for i:2, j:3
s[i] = sum over j:3 of e[i, j]  for i:2
y[i, j] = e[i, j] / s[i]  for i:2, j:3
return y
"""
CHAIN = """
x: f32[4] input
a: f32[4]
b: f32[4]
y: f32[4]
a[i] = x[i] + 1.0  for i:4
b[i] = a[i] * 2.0  for i:4
y[i] = a[i] + b[i]  for i:4
return y
"""


def softmax_plan() -> Plan:
    """One kernel of three stages; the exp row and both reductions stay inside."""
    g = parse(SOFTMAX)
    m, e, s, y = g.nodes
    (j,) = m.reduce.axes
    stages = (Stage((j,), (m,)), Stage((j,), (e, s)), Stage((j,), (y,)))
    inner = (Local(m.out, "scalar"), Local(s.out, "scalar"), Local(e.out, "row"))
    kernel = Kernel("k0", m.axes, None, stages, inner, (g.inputs[0], y.out))
    return Plan(g, (kernel,), (), (y.out,), 0)


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_unfused_plans_give_what_the_graph_gives(data):
    g = data.draw(loop_graphs())
    inputs = data.draw(inputs_of(g))
    again = copy.deepcopy(inputs)
    expected = evaluate(g, inputs, EXTERNS)
    found = evaluate_plan(plain_plan(g), again, EXTERNS, seed=data.draw(st.integers(0, 9)))
    assert list(map(bits, found)) == list(map(bits, expected))
    assert list(map(bits, inputs)) == list(map(bits, again))


def test_a_fused_softmax_gives_what_the_graph_gives():
    plan, x = softmax_plan(), [1.0, 2.0, 3.0, -1.0, 0.0, 5.0]
    assert evaluate_plan(plan, [x]) == evaluate(plan.graph, [x])


def test_a_lane_axis_runs_the_stages_per_lane():
    g = parse("x: f32[3, 4] input\ny: f32[4]\ny[j] = sum over i:3 of x[i, j]  for j:4\nreturn y\n")
    (n,) = g.nodes
    kernel = Kernel("k0", (), n.axes[0], (Stage(n.reduce.axes, (n,)),), (), (g.inputs[0], n.out))
    x = [float(v) for v in range(12)]
    assert evaluate_plan(Plan(g, (kernel,), (), (n.out,), 0), [x]) == [[12, 15, 18, 21]]


def test_slots_that_overlap_in_time_are_caught():
    g = parse(CHAIN)
    plan = plain_plan(g)
    shared = tuple(replace(s, offset=0) for s in plan.slots)
    with pytest.raises(InternalError, match="a was overwritten by b"):
        evaluate_plan(replace(plan, slots=shared), [[1.0] * 4])


def test_in_place_reuse_at_the_same_index_is_fine():
    g = parse(CHAIN.replace("y[i] = a[i] + b[i]", "y[i] = b[i]"))
    plan = plain_plan(g)
    shared = tuple(replace(s, offset=0) for s in plan.slots)
    assert evaluate_plan(replace(plan, slots=shared), [[1.0] * 4]) == [[4.0] * 4]


def test_in_place_reuse_at_another_width_is_a_race():
    g = parse("x: f32[8] input\na: f32[8]\nb: f64[8]\ny: f64[8]\na[i] = x[i]  for i:8\n"
              "b[i] = f64(a[i])  for i:8\ny[i] = b[i]  for i:8\nreturn y\n")  # fmt: skip
    plan = plain_plan(g)
    slots = tuple(Slot(s.buffer, 0, 64) for s in plan.slots)
    with pytest.raises(InternalError, match=r"race|overwritten"):
        evaluate_plan(replace(plan, slots=slots, arena_bytes=64), [[1.0] * 8])


def test_grid_points_that_write_one_element_are_a_race():
    g = parse("x: f32[4] input\ny: f32[1]\ny[0] = 0.0\n"
              "y[<check_index(i64(x[i]), 1) in 0..0>] += x[i]  for i:4\nreturn y\n")  # fmt: skip
    plan = plain_plan(g)
    kernel = plan.steps[1]
    bad = replace(
        kernel, grid=kernel.stages[0].loops, stages=(replace(kernel.stages[0], loops=()),)
    )
    assert evaluate_plan(plan, [[0.0] * 4]) == [[0.0]]
    with pytest.raises(InternalError, match="race in kernel k1"):
        evaluate_plan(replace(plan, steps=(plan.steps[0], bad)), [[0.0] * 4])


def test_a_read_of_what_another_grid_point_writes_is_a_race():
    g = parse("x: f32[4] input\na: f32[4]\ny: f32[4]\na[i] = x[i]  for i:4\n"
              "y[i] = a[3 - i]  for i:4\nreturn y\n")  # fmt: skip
    first, second = g.nodes
    kernel = Kernel("k0", first.axes, None, (Stage((), (first, second)),), (),
                    (g.inputs[0], first.out, second.out))  # fmt: skip
    plan = Plan(g, (kernel,), (), (first.out, second.out), 0)
    with pytest.raises(InternalError, match=r"race|before it is written"):
        evaluate_plan(plan, [[1.0] * 4])


def test_a_scalar_local_is_gone_at_the_next_grid_point():
    g = parse("x: f32[4] input\na: f32[4]\ny: f32[4]\na[i] = x[i]  for i:4\n"
              "y[i] = a[(i + 1)%4]  for i:4\nreturn y\n")  # fmt: skip
    first, second = g.nodes
    kernel = Kernel("k0", first.axes, None, (Stage((), (first, second)),),
                    (Local(first.out, "scalar"),), (g.inputs[0], second.out))  # fmt: skip
    with pytest.raises(InternalError, match="scalar local a of kernel k0 has no value"):
        evaluate_plan(Plan(g, (kernel,), (), (second.out,), 0), [[1.0] * 4])


def test_a_row_declared_as_a_scalar_is_caught():
    plan = softmax_plan()
    (kernel,) = plan.steps
    wrong = tuple(replace(x, kind="scalar") for x in kernel.locals)
    with pytest.raises(InternalError, match="scalar local e of kernel k0 holds 2 values"):
        evaluate_plan(replace(plan, steps=(replace(kernel, locals=wrong),)), [[1.0] * 6])


def test_a_register_does_not_live_into_the_next_iteration():
    plan = softmax_plan()
    (kernel,) = plan.steps
    wrong = tuple(replace(x, kind="register") for x in kernel.locals)
    with pytest.raises(InternalError, match="register local m of kernel k0 has no value"):
        evaluate_plan(replace(plan, steps=(replace(kernel, locals=wrong),)), [[1.0] * 6])


def test_a_missing_argument_is_caught():
    plan = softmax_plan()
    (kernel,) = plan.steps
    with pytest.raises(InternalError, match="kernel k0 uses x, which is not in args"):
        evaluate_plan(replace(plan, steps=(replace(kernel, args=kernel.args[1:]),)), [[1.0] * 6])


def test_axes_outside_of_the_loop_structure_are_caught():
    plan = softmax_plan()
    (kernel,) = plan.steps
    with pytest.raises(InternalError, match="m has axes"):
        evaluate_plan(replace(plan, steps=(replace(kernel, grid=()),)), [[1.0] * 6])


def test_a_use_after_free_is_caught():
    plan = plain_plan(parse(CHAIN))
    steps = (*plan.steps[:2], Free(plan.slots[0].buffer), plan.steps[2])
    with pytest.raises(InternalError, match="a is used after it was freed"):
        evaluate_plan(replace(plan, steps=steps), [[1.0] * 4])


def test_a_buffer_without_a_place_is_caught():
    plan = plain_plan(parse(CHAIN))
    with pytest.raises(InternalError, match="the plan has no place for a"):
        evaluate_plan(replace(plan, slots=plan.slots[1:]), [[1.0] * 4])


def on_blocks(plan, points, loop):
    """The plan with its one kernel cut into blocks."""
    (kernel,) = plan.steps
    return replace(plan, steps=(replace(kernel, tile=Tile(points, loop)),))


def test_a_row_of_a_block_lives_for_one_step():
    x = [1.0, 2.0, 3.0, -1.0, 0.0, 5.0]
    plan = softmax_plan()
    assert evaluate_plan(on_blocks(plan, 2, 4), [x]) == evaluate(plan.graph, [x])
    with pytest.raises(InternalError, match="row local e of kernel k0 is used"):
        evaluate_plan(on_blocks(plan, 2, 2), [x])


def test_a_row_of_a_block_is_read_where_it_was_written():
    g = parse(SOFTMAX.replace("e[i, j] / s[i]", "e[i, 2 - j] / s[i]"))
    (kernel,) = softmax_plan().steps
    stages = (*kernel.stages[:2], Stage(kernel.stages[2].loops, (g.nodes[3],)))
    plan = Plan(g, (replace(kernel, stages=stages),), (), (g.nodes[3].out,), 0)
    assert evaluate_plan(plan, [[1.0] * 6])
    with pytest.raises(InternalError, match="row local e of kernel k0 is read at another step"):
        evaluate_plan(on_blocks(plan, 2, 4), [[1.0] * 6])


SCATTER = """
x: i64[4] input
y: i64[2]
y[i] = 0  for i:2
y[<check_index(x[i], 2) in 0..1>] += x[i]  for i:4
return y
"""


def test_points_of_a_block_add_to_one_place_in_any_order():
    plan = plain_plan(parse(SCATTER))
    fill, add = plan.steps
    add = replace(add, grid=add.stages[0].loops, stages=(replace(add.stages[0], loops=()),))
    assert evaluate_plan(replace(plan, steps=(fill, replace(add, tile=Tile(4)))), [[0, 1, 1, 0]]) \
        == [[0, 2]]  # fmt: skip


def test_what_a_block_scatters_to_is_not_used_in_the_same_kernel():
    plan = plain_plan(parse(SCATTER))
    fill, add = plan.steps
    (n,) = add.stages[0].nests
    reader = parse(SCATTER.replace("+= x[i]", "+= x[i] + y[0]")).nodes[1]
    both = replace(add, grid=n.axes, stages=(Stage((), (reader,)),), tile=Tile(4))
    with pytest.raises(InternalError, match="race in kernel"):
        evaluate_plan(replace(plan, steps=(fill, both)), [[0, 1, 1, 0]])
