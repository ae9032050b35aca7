"""Random graphs: every pass keeps every bit, and so does the plan, in any order of grid points."""

import copy
import math
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.ir.strategies import EXTERNS, inputs_of, loop_graphs

from torchweld.base.config import Config
from torchweld.fuse import homes, merge, split, tile
from torchweld.fuse.run import fuse, passes
from torchweld.ir.loop import Nest
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_verify import verify
from torchweld.ir.plan_eval import evaluate_plan

SLOW = settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
VERIFY = Config(verify=True)
# limits so low that graphs of a few points meet every rule
LOW = ((merge, "PARTIAL_ROWS", 1), (merge, "FEW_POINTS", 1 << 20), (tile, "GRID_POINTS", 2),
       (tile, "TILE_POINTS", 4), (tile, "TILE_WIDTHS", (2, 3)), (tile, "TILE_HEIGHTS", (2, 5)),
       (homes, "PIECE_ROWS", True), (split, "LONG", 2), (split, "PART", 2),
       (split, "COLUMN_ROWS", 1), (split, "COLUMN_POINTS", 4),
       (split, "FEW_RESULTS", 3))  # fmt: skip


def bits(values):
    if values is None:
        return None
    return ["nan" if v != v else (v, math.copysign(1, v)) for v in values]


def same(first, second):
    return list(map(bits, first)) == list(map(bits, second))


def sums_in_order(g, axes=1):
    """Whether no float sum or product runs over more axes: fusion may change their order."""
    return not any(
        isinstance(n, Nest) and n.reduce and n.body.dtype.is_float and len(n.reduce.axes) > axes
        and n.reduce.kind in ("sum", "prod")
        for n in g.nodes
    )  # fmt: skip


def assert_agrees(g, inputs):
    expected_inputs = copy.deepcopy(inputs)
    expected = evaluate(g, expected_inputs, EXTERNS)
    plan = fuse(g, VERIFY)
    for seed in (0, 1):
        mine = copy.deepcopy(inputs)
        assert same(evaluate_plan(plan, mine, EXTERNS, seed=seed), expected)
        assert same(mine, expected_inputs)


@SLOW
@given(st.data())
def test_each_pass_keeps_every_bit(data):
    g = data.draw(loop_graphs(max_nodes=6))
    inputs = data.draw(inputs_of(g))
    expected_inputs = copy.deepcopy(inputs)
    expected = evaluate(g, expected_inputs, EXTERNS)
    for name, step in passes([]):
        if name == "split" and not sums_in_order(g, axes=0):
            continue
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
    assert_agrees(g, data.draw(inputs_of(g)))


@SLOW
@given(st.data())
def test_the_plan_agrees_when_every_limit_is_low(data):
    g = data.draw(loop_graphs(max_nodes=8))
    assume(sums_in_order(g, axes=0))
    inputs = data.draw(inputs_of(g))
    with ExitStack() as stack:
        for module, name, value in LOW:
            stack.enter_context(patch.object(module, name, value))
        assert_agrees(g, inputs)
