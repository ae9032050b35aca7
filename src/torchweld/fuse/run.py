"""LoopGraph -> Plan: the order of the passes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from torchweld.base.config import Config
from torchweld.base.errors import Refusal, Unsupported
from torchweld.fuse.bundle import bundle_small
from torchweld.fuse.canonical import canonical, has_points
from torchweld.fuse.deps import analyse, predecessors, uses
from torchweld.fuse.finish import finish_rows
from torchweld.fuse.group import Group, single
from torchweld.fuse.inline import inline_producers
from torchweld.fuse.kernel import build
from torchweld.fuse.memory import plan_memory
from torchweld.fuse.merge import merge_groups
from torchweld.fuse.picked import pick_sums
from torchweld.fuse.pieces import join_pieces
from torchweld.fuse.recompute import recompute_apart
from torchweld.fuse.simplify import simplify
from torchweld.fuse.split import split_reductions
from torchweld.fuse.target import Machine, reaches
from torchweld.fuse.targets import machine_of
from torchweld.fuse.tidy import checks_before, checks_early, drop_copies, drop_dead, share_equal
from torchweld.ir.loop import Buffer, Extern, LoopGraph, Nest, written_inputs
from torchweld.ir.loop_verify import verify
from torchweld.ir.plan import Kernel, Plan, Step

GraphPass = Callable[[LoopGraph], LoopGraph]
DEFAULT = Config()


def passes(
    notes: list[Refusal], cfg: Config = DEFAULT
) -> tuple[tuple[str, GraphPass], ...]:
    """The passes over the graph in order; Config.skip names those to leave out.

    notes: where refusals are collected.
    """
    machine = machine_of(cfg)
    inline = partial(inline_producers, notes=notes, machine=machine)
    return (
        ("canonical", canonical),
        ("simplify", simplify),
        ("drop_dead", drop_dead),
        ("share_equal", share_equal),
        ("drop_copies", drop_copies),
        ("pieces", partial(join_pieces, machine=machine)),
        ("inline", inline),
        ("simplify_inlined", simplify),
        ("picked", partial(pick_sums, inline=inline)),
        ("drop_unread", drop_dead),
        ("finish", partial(finish_rows, machine=machine)),
        ("split", partial(split_reductions, machine=machine)),
        ("share_parts", share_equal),
        ("canonical_again", canonical),
        ("checks_early", checks_early),
    )


def fuse(g: LoopGraph, cfg: Config) -> Plan:
    """What runs as one kernel, in which order, and where temporaries live.

    Errors: Unsupported W202 if a nest reads what its device cannot.
    """
    notes: list[Refusal] = []
    _check_devices(g)
    if g.sizes or "twins" in cfg.skip or len(written_inputs(g)) < _UPDATED:
        return schedule(_passed(g, cfg, notes), cfg, notes)
    found = importlib.import_module("torchweld.fuse.twins")  # which few graphs need
    first, early = found.find_twins(g, final=False)
    passed = _passed(first, cfg, notes)
    kept = found.renamed(early, first, passed)
    if kept is None:
        return schedule(_passed(g, cfg, notes), cfg, notes)
    rest, late = found.find_twins(passed, final=True)
    steps = kernels(rest, cfg, notes)
    ready = [(t, _passed(t.graph, cfg, notes)) for t in kept] + [(t, t.graph) for t in late]
    for twins, one in ready:
        made = [k for k in kernels(one, cfg, notes) if isinstance(k, Kernel)]
        steps += twins.copies(made, len(steps))
    whole = found.with_twins(rest, (passed, g), (*kept, *late))
    return placed(whole, steps, cfg, notes)


# inputs that four updates of two write to: with fewer there are no twins
_UPDATED = 8


def _passed(g: LoopGraph, cfg: Config, notes: list[Refusal]) -> LoopGraph:
    for name, step in passes(notes, cfg):
        if name in cfg.skip:
            continue
        g = step(g)
        if cfg.verify:
            verify(g)
    return g


def _check_devices(g: LoopGraph) -> None:
    for n in g.nodes:
        if isinstance(n, Nest):
            for b in uses(n).reads:
                if not reaches(b, n.out.device):
                    why = f"a kernel on {n.out.device} would read {b.name} on {b.device}"
                    raise Unsupported("W202", why)


def schedule(g: LoopGraph, cfg: Config, notes: list[Refusal]) -> Plan:
    """The kernels of a graph whose nests are final."""
    return placed(g, kernels(g, cfg, notes), cfg, notes)


def kernels(g: LoopGraph, cfg: Config, notes: list[Refusal]) -> list[Step]:
    """The kernels and calls of a graph whose nests are final, in order."""
    machine = machine_of(cfg)
    if not all(has_points(n) for n in g.nodes):
        g = replace(g, nodes=tuple(n for n in g.nodes if has_points(n)))
    items: list[Group | Extern] = [
        single(n, at, machine(n.out.device).parallel(n)) if isinstance(n, Nest) else n
        for at, n in enumerate(g.nodes)
    ]
    if "merge" not in cfg.skip:
        before = checks_before(g, predecessors(analyse(g)))
        items = merge_groups(items, before, notes, machine)
    if "recompute" not in cfg.skip:
        items = recompute_apart(g, items, lambda x: machine(x.device).recompute)
    return _steps(g, items, machine)


def placed(g: LoopGraph, steps: list[Step], cfg: Config, notes: list[Refusal]) -> Plan:
    """The steps that compute a graph, small ones in bundles, with memory for temporaries."""
    machine = machine_of(cfg)
    if "bundle" not in cfg.skip:
        steps = bundle_small(steps, machine)
    memory = plan_memory(g, steps, machine)
    return Plan(g, memory.steps, memory.slots, memory.fresh, memory.arena_bytes, tuple(notes),
                memory.device, memory.align)  # fmt: skip


def _touched(x: Group | Extern) -> Iterable[Buffer]:
    """What an item reads, or writes: perhaps a part of a buffer, of which others write the rest."""
    found = x if isinstance(x, Group) else uses(x)
    return (*found.reads, *found.writes)


def _steps(g: LoopGraph, items: list[Group | Extern], machine: Machine) -> list[Step]:
    returned = {v.buffer for v in g.outputs if v is not None}
    users: dict[Buffer, set[int]] = {}
    for at, x in enumerate(items):
        for b in _touched(x):
            users.setdefault(b, set()).add(at)
    steps: list[Step] = []
    count = 0
    for at, x in enumerate(items):
        if isinstance(x, Extern):
            steps.append(x)
            continue
        outside = {b for b in x.writes if users[b] - {at}} | returned
        steps.append(build(x, f"k{count}", frozenset(outside), machine(x.device)))
        count += 1
    return steps
