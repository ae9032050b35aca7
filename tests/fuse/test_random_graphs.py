"""Random graphs: every pass keeps every bit, and so does the plan, in any order of grid points."""

import copy
import math
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.ir.small_kernels import small_kernels
from tests.ir.strategies import EXTERNS, FEATURES, inputs_of, loop_graphs

from torchweld.base.config import Config
from torchweld.fuse import bundle, recompute, split, split_gpu, targets, tile, tile_gpu
from torchweld.fuse.run import fuse, passes
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Ind, atoms
from torchweld.ir.loop import Nest
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse as parse_graph
from torchweld.ir.loop_verify import verify
from torchweld.ir.plan_eval import evaluate_plan
from torchweld.ir.plan_text import parse, text

SLOW = settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
VERIFY = Config(verify=True)
GPU = Config(verify=True, interpret=True)
# scatters that run all at once may add floats, and store the values of one place, in any order
PLAIN = FEATURES - {"scatter"}
# limits so low that graphs of a few points meet every rule
LOW = ((targets, "CPU", replace(targets.CPU, partial_rows=1, few_points=1 << 20, piece_rows=True)),
       (tile, "GRID_POINTS", 2),
       (tile, "TILE_POINTS", 4), (tile, "TILE_WIDTHS", (2, 3)), (tile, "TILE_HEIGHTS", (2, 5)),
       (split, "LONG", 2), (split, "PART", 2),
       (split, "COLUMN_ROWS", 1), (split, "COLUMN_POINTS", 4),
       (split, "FEW_RESULTS", 3))  # fmt: skip


def bits(values):
    if values is None:
        return None
    return ["nan" if v != v else (v, math.copysign(1, v)) for v in values]


def same(first, second):
    return list(map(bits, first)) == list(map(bits, second))


def loaded(n):
    return any(isinstance(a, Ind) for e in n.index for a in atoms(e))


def sums_in_order(g, axes=1):
    """Whether no float sum or product runs over more axes: fusion may change their order."""
    return not any(
        isinstance(n, Nest) and n.reduce and n.body.dtype.is_float and len(n.reduce.axes) > axes
        and n.reduce.kind in ("sum", "prod")
        for n in g.nodes
    )  # fmt: skip


LOW_GPU = ((targets, "GPU", replace(targets.GPU, partial_rows=1, min_rows=1)),
           (tile_gpu, "REGISTERS", 100), (tile_gpu, "TRANSPOSE", 2), (tile_gpu, "EDGE", 3),
           (tile_gpu, "LEAST_EDGE", 2), (tile_gpu, "NARROW", 1), (tile_gpu, "SECTOR", 1),
           (tile_gpu, "WALK", 2), (split_gpu, "SECOND_NS", 0.0), (split_gpu, "LEAST_PART", 1),
           (recompute, "GAIN", 3.0))  # fmt: skip


def assert_agrees(g, inputs, cfg=VERIFY):
    expected_inputs = copy.deepcopy(inputs)
    expected = evaluate(g, expected_inputs, EXTERNS)
    plan = fuse(g, cfg)
    assert parse(text(plan)) == plan
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


@SLOW
@given(st.data())
def test_the_plan_for_a_gpu_computes_what_the_graph_says(data):
    g = data.draw(loop_graphs(max_nodes=8, features=PLAIN))
    assume(sums_in_order(g))
    assert_agrees(g, data.draw(inputs_of(g)), GPU)


@SLOW
@given(st.data())
def test_the_plan_for_a_gpu_agrees_when_every_limit_is_low(data):
    g = data.draw(loop_graphs(max_nodes=8, features=PLAIN))
    assume(sums_in_order(g, axes=0))
    inputs = data.draw(inputs_of(g))
    with ExitStack() as stack:
        for module, name, value in LOW_GPU:
            stack.enter_context(patch.object(module, name, value))
        assert_agrees(g, inputs, GPU)


@SLOW
@given(small_kernels(), st.sampled_from((1, 4, 24)), st.data())
def test_kernels_that_share_launches_compute_what_the_graph_says(source, reach, data):
    g = parse_graph(source)
    with patch.object(bundle, "REACH", reach):
        assert_agrees(g, data.draw(inputs_of(g)), GPU)


@SLOW
@given(st.data())
def test_scatters_of_integers_combine_in_any_order(data):
    g = data.draw(loop_graphs(max_nodes=6, dtypes=(DType.I64, DType.I32, DType.I8)))
    assume(not any(isinstance(n, Nest) and n.mode == "set" and loaded(n) for n in g.nodes))
    assert_agrees(g, data.draw(inputs_of(g)), GPU)
