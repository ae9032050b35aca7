"""LoopGraph -> Plan: the order of the passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torchweld.base.config import Config
from torchweld.base.errors import Refusal
from torchweld.fuse.canonical import canonical, has_points
from torchweld.fuse.deps import Deps, analyse, predecessors
from torchweld.fuse.group import Group, single
from torchweld.fuse.inline import inline_producers
from torchweld.fuse.kernel import build
from torchweld.fuse.memory import plan_memory
from torchweld.fuse.merge import merge_groups
from torchweld.fuse.simplify import simplify
from torchweld.fuse.split import split_reductions
from torchweld.fuse.tidy import drop_copies, drop_dead, share_equal
from torchweld.ir.loop import Buffer, Extern, LoopGraph, Nest
from torchweld.ir.loop_verify import verify
from torchweld.ir.plan import Plan, Step

GraphPass = Callable[[LoopGraph], LoopGraph]



def passes(notes: list[Refusal]) -> tuple[tuple[str, GraphPass], ...]:
    """The passes over the graph in order; Config.skip names those to leave out.

    notes: where refusals are collected.
    """
    return (
        ("canonical", canonical),
        ("simplify", simplify),
        ("drop_dead", drop_dead),
        ("share_equal", share_equal),
        ("drop_copies", drop_copies),
        ("inline", partial(inline_producers, notes=notes)),
        ("simplify_inlined", simplify),
        ("drop_unread", drop_dead),
        ("split", split_reductions),
        ("canonical_again", canonical),
    )


def fuse(g: LoopGraph, cfg: Config) -> Plan:
    """What runs as one kernel, in which order, and where temporaries live."""
    notes: list[Refusal] = []
    for name, step in passes(notes):
        if name in cfg.skip:
            continue
        g = step(g)
        if cfg.verify:
            verify(g)
    return schedule(g, cfg, notes)


def schedule(g: LoopGraph, cfg: Config, notes: list[Refusal]) -> Plan:
    """The kernels of a graph whose nests are final."""
    whole = g
    if not all(has_points(n) for n in g.nodes):
        g = replace(g, nodes=tuple(n for n in g.nodes if has_points(n)))
    items: list[Group | Extern] = [
        single(n, at) if isinstance(n, Nest) else n for at, n in enumerate(g.nodes)
    ]
    deps = analyse(g)
    if "merge" not in cfg.skip:
        items = merge_groups(items, predecessors(deps), notes)
    steps = _steps(g, items, deps)
    memory = plan_memory(g, steps)
    return Plan(whole, memory.steps, memory.slots, memory.fresh, memory.arena_bytes, tuple(notes))


def _steps(g: LoopGraph, items: list[Group | Extern], deps: Deps) -> list[Step]:
    returned = {v.buffer for v in g.outputs if v is not None}
    steps: list[Step] = []
    count = 0
    for x in items:
        if isinstance(x, Extern):
            steps.append(x)
            continue
        mine = {m.at for m in x.members}
        outside: set[Buffer] = set(returned)
        for b in x.writes:
            if any(at not in mine for at in deps.readers.get(b, ())):
                outside.add(b)
        steps.append(build(x, f"k{count}", frozenset(outside)))
        count += 1
    return steps
