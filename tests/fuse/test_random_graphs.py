"""Random graphs: every pass keeps every bit, and so does the plan, in any order of grid points."""

import copy
import math

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.ir.strategies import EXTERNS, inputs_of, loop_graphs

from torchweld.base.config import Config
from torchweld.fuse.run import fuse, passes
from torchweld.ir.loop import Nest
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_verify import verify
from torchweld.ir.plan_eval import evaluate_plan

SLOW = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
VERIFY = Config(verify=True)


def bits(values):
    if values is None:
        return None
    return ["nan" if v != v else (v, math.copysign(1, v)) for v in values]


def same(first, second):
    return list(map(bits, first)) == list(map(bits, second))


def sums_in_order(g):
    """Whether no float sum or product runs over several axes, whose order fusion may change."""
    return not any(
        isinstance(n, Nest) and n.reduce and n.body.dtype.is_float and len(n.reduce.axes) > 1
        and n.reduce.kind in ("sum", "prod")
        for n in g.nodes
    )  # fmt: skip


@SLOW
@given(st.data())
def test_each_pass_keeps_every_bit(data):
    g = data.draw(loop_graphs(max_nodes=6))
    inputs = data.draw(inputs_of(g))
    expected_inputs = copy.deepcopy(inputs)
    expected = evaluate(g, expected_inputs, EXTERNS)
    for name, step in passes([]):
        g = step(g)
        verify(g)
        mine = copy.deepcopy(inputs)
        assert same(evaluate(g, mine, EXTERNS), expected), name
        assert same(mine, expected_inputs), name


@SLOW
@given(st.data())
def test_the_plan_computes_what_the_graph_says(data):
    g = data.draw(loop_graphs(max_nodes=8))
    assume(sums_in_order(g))
    inputs = data.draw(inputs_of(g))
    expected_inputs = copy.deepcopy(inputs)
    expected = evaluate(g, expected_inputs, EXTERNS)
    plan = fuse(g, VERIFY)
    for seed in (0, 1):
        mine = copy.deepcopy(inputs)
        assert same(evaluate_plan(plan, mine, EXTERNS, seed=seed), expected)
        assert same(mine, expected_inputs)
