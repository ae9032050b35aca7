"""The plan that fuses nothing, in tiles; and graphs run through it in Triton's interpreter."""

import copy
import dataclasses

from tests.codegen.kernels import close, inputs_for
from tests.codegen.tile_runs import TileRun
from tests.ir.plain_plans import plain_plan

from torchweld.codegen.run import generate
from torchweld.ir.loop import Nest
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse as parse_graph
from torchweld.ir.plan import Kernel, Stage, Tile
from torchweld.ir.plan_eval import evaluate_plan
from torchweld.ir.plan_text import parse

SMALL = Tile(8, 16)


def plain_tiles(g, tile=SMALL):
    """Every nest a kernel with that tile: its axes are the grid, what it reduces is the loop."""
    plan = plain_plan(g)
    steps = []
    for s, n in zip(plan.steps, g.nodes, strict=True):
        if isinstance(s, Kernel):
            assert isinstance(n, Nest)
            stage = Stage(n.reduce.axes if n.reduce else (), (n,))
            s = dataclasses.replace(s, grid=n.axes, stages=(stage,), tile=tile)
        steps.append(s)
    return dataclasses.replace(plan, steps=tuple(steps))


def one_kernel(g, tile=SMALL):
    """The nests of a graph, which have the same axes, as one kernel."""
    plan = plain_tiles(g, tile)
    args = tuple(dict.fromkeys(b for k in plan.steps for b in k.args))
    first = plan.steps[0]
    k = dataclasses.replace(first, stages=(Stage((), g.nodes),), args=args)
    return dataclasses.replace(plan, steps=(k,))


def agree(graph, program, got, want, mine, theirs, near=close):
    """Outputs and inputs that were written are the same."""
    dtypes = [v and v.buffer.dtype for v in graph.outputs] + [b.dtype for b in graph.inputs]
    for a, b, dtype in zip([*got, *mine], [*want, *theirs], dtypes, strict=True):
        pairs = [] if a is None else list(enumerate(zip(a, b, strict=True)))
        wrong = [(i, x, y) for i, (x, y) in pairs if not near(x, y, dtype)]
        assert not wrong, (wrong[:5], "\n".join(a.source for a in program.artifacts))


def check_tiles(text, **given):
    """A plan in text form: Triton's interpreter and plan_eval agree; the artifacts."""
    plan = parse(text)
    inputs = inputs_for(plan, given)
    mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    program = generate(plan)
    got = TileRun(program, plan.graph, mine).outputs
    agree(plan.graph, program, got, evaluate_plan(plan, theirs), mine, theirs)
    return program.artifacts


def check_graph(text, tile=SMALL, **given):
    """A graph in text form, nothing fused: Triton's interpreter and loop_eval agree."""
    g = parse_graph(text)
    plan = plain_tiles(g, tile)
    inputs = inputs_for(plan, given)
    mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    program = generate(plan)
    got = TileRun(program, g, mine).outputs
    agree(g, program, got, evaluate(g, theirs), mine, theirs)
    return program.artifacts
