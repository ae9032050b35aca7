"""Random graphs: fused or not, the C++ computes what loop_eval says."""

import copy
import math

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.codegen.kernels import TOLERANCE
from tests.codegen.launcher import Run, compile_programs
from tests.ir.plain_plans import plain_plan
from tests.ir.strategies import EXTERNS, inputs_of, loop_graphs

from torchweld.base.config import Config
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop import Nest, Op, walk
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import text
from torchweld.ir.rounding import convert

# one C++ unit serves a whole batch, and finding a smaller batch would cost minutes
BATCHED = settings(deadline=None, max_examples=4, derandomize=True, database=None,
                   phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
ROUNDED = frozenset({"exp", "tanh", "sigmoid"})
STEPS = frozenset({"floor", "round", "sign", "eq", "ne", "lt", "le", "gt", "ge", "fmod"})


def _scalars(g):
    return [s for n in g.nodes if isinstance(n, Nest) for s in walk(n.body)]


def rounds(g):
    """Whether results may differ in the last place: own functions, or sums in another order."""
    reduced = [n for n in g.nodes if isinstance(n, Nest) and n.reduce and n.body.dtype.is_float]
    sums = any(n.reduce.kind.removeprefix("scan_") in ("sum", "prod") for n in reduced)
    return sums or any(isinstance(s, Op) and s.name in ROUNDED for s in _scalars(g))


def jumps(g):
    """Whether a last place may decide a whole result."""
    picks = any(isinstance(n, Nest) and n.reduce and n.reduce.kind.startswith("arg")
                for n in g.nodes)  # fmt: skip
    return picks or any(
        isinstance(s, Op) and (s.name in STEPS or (
            s.name == "cast" and s.args[0].dtype.is_float
            and (not s.dtype.is_float or s.dtype.is_float8)))
        for s in _scalars(g)
    )  # fmt: skip


def close(a, b, dtype, rounded):
    if not dtype.is_float or a == b:
        return a == b
    if a != a or b != b or math.isinf(a) or math.isinf(b):
        return a != a and b != b
    slack = TOLERANCE[dtype] * max(abs(a), abs(b)) * (30 if rounded else 1)
    return abs(a - b) <= slack + (1e-5 if rounded else 0)


@BATCHED
@given(st.lists(loop_graphs(max_nodes=6), min_size=8, max_size=8), st.data())
def test_random_graphs(graphs, data):
    cases = []
    for g in graphs:
        if rounds(g) and jumps(g):
            continue
        inputs = [[convert(v, b.dtype) for v in values]
                  for b, values in zip(g.inputs, data.draw(inputs_of(g)), strict=True)]  # fmt: skip
        cases += [(g, generate(plan), inputs) for plan in (fuse(g, Config()), plain_plan(g))]
    tables = compile_programs([p for _, p, _ in cases]) if cases else []
    for (g, program, inputs), functions in zip(cases, tables, strict=True):
        mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
        want = evaluate(g, theirs, EXTERNS)
        got = Run(program, functions, g, mine, EXTERNS).outputs
        dtypes = [v and v.buffer.dtype for v in g.outputs] + [b.dtype for b in g.inputs]
        for a, b, dtype in zip(got + mine, [*want, *theirs], dtypes, strict=True):
            pairs = [] if a is None else zip(a, b, strict=True)
            same = all(close(x, y, dtype, rounds(g)) for x, y in pairs)
            assert same, (text(g), program.artifacts[0].source, inputs, a, b)
