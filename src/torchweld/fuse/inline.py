"""Recompute a pointwise producer where it is read, so that its result never reaches memory.

A producer goes into its readers when that costs nothing (read once, at as many points as it has),
when it is cheap and reads no more than it stores, or when the roofline model says that the reader
is not slower for it. Not across a write to something that the producer reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchweld.base.errors import Refusal
from torchweld.fuse.canonical import stored
from torchweld.fuse.cost import size_of
from torchweld.fuse.deps import Deps, analyse
from torchweld.fuse.facts import (
    Substitution,
    body_facts,
    flops_along,
    index_scalars,
    points,
    symbols,
)
from torchweld.fuse.group import injective
from torchweld.fuse.target import Machine, Target, reaches
from torchweld.fuse.tidy import covers, may_raise
from torchweld.ir.expr import Expr, Ind, SizeSym, Sym
from torchweld.ir.loop import Buffer, Load, LoopGraph, Nest, Node, Op, Scalar, scalars_in, walk

FREE_FLOPS = 12  # of a producer without loads (masks, positions)
MAX_BODY = 300  # distinct scalars of one body
MAX_LOADS = 32
Index = tuple[Expr, ...]


@dataclass(slots=True)
class _State:
    """The graph while producers are moved into their readers."""

    g: LoopGraph
    deps: Deps
    returned: set[Buffer]
    refusals: list[Refusal]
    machine: Machine
    chosen: dict[Buffer, Nest] = field(default_factory=dict)


def inline_producers(g: LoopGraph, notes: list[Refusal], machine: Machine) -> LoopGraph:
    """The graph with producers recomputed where that pays; `notes` gets why the others are not."""
    s = _State(g, analyse(g), {v.buffer for v in g.outputs if v is not None}, notes, machine)
    nodes: list[Node] = []
    for at, n in enumerate(g.nodes):
        if not isinstance(n, Nest):
            nodes.append(n)
            continue
        if any(b in s.chosen for b in s.deps.uses[at].reads):
            n = _apply(s, n)
        if _try(s, n, at):
            continue
        nodes.append(n)
    return replace(g, nodes=tuple(nodes)) if s.chosen else g


class _Inliner(Substitution):
    """Replaces loads of chosen buffers by their producers' bodies."""

    __slots__ = ("_made", "chosen")

    def __init__(self, chosen: dict[Buffer, Nest]) -> None:
        super().__init__({})
        self.chosen = chosen
        self._made: dict[tuple[Buffer, Index], Scalar] = {}

    def load(self, x: Load, index: Index) -> Scalar:
        p = self.chosen.get(x.buffer)
        if p is None:
            return x if index == x.index else Load.make(x.buffer, index)
        key = (x.buffer, index)
        if key not in self._made:
            self._made[key] = at_index(p, index)
        return self._made[key]


def at_index(p: Nest, index: Index) -> Scalar:
    """The value that `p` stores at `index` of its buffer."""
    values: dict[Expr, Expr] = {
        e: at
        for e, at in zip(p.index, index, strict=True)
        if e is not at and isinstance(e, Sym) and not isinstance(e, SizeSym)
    }
    if not values:
        return stored(p)
    return Substitution(values).scalar(stored(p))


def _apply(s: _State, n: Nest) -> Nest:
    sub = _Inliner(s.chosen)
    return replace(n, body=sub.scalar(n.body), index=sub.index(n.index))


def _try(s: _State, p: Nest, at: int) -> bool:
    """Choose `p` for inlining; answers whether its own nest is not needed any more."""
    readers = s.deps.readers.get(p.out, [])
    if not readers or not _movable(s, p):
        return False
    pairs = [(s.g.nodes[c], c) for c in readers]
    nests = [(n, c) for n, c in pairs if isinstance(n, Nest)]
    stays = p.out in s.returned or len(nests) < len(pairs)
    why = _why_not(s, p, at, nests, stays)
    if why:
        s.refusals.append(Refusal("W206", f"{p.out.name} is not recomputed: {why}"))
        return False
    s.chosen[p.out] = p
    return not stays


def _movable(s: _State, p: Nest) -> bool:
    return (
        p.reduce is None and p.mode == "set" and p.out.role == "temp"
        and s.deps.only_writer(p.out) is not None and covers(p)
    )  # fmt: skip


def _why_not(s: _State, p: Nest, at: int, readers: list[tuple[Nest, int]], stays: bool) -> str:
    """The reason to keep `p` as a nest of its own; empty if there is none."""
    facts = body_facts(stored(p))
    light = not facts.dear and not facts.checks
    if stays and not (light and not facts.loads and facts.flops <= FREE_FLOPS):
        return "it is stored anyway"
    target = s.machine(p.out.device)
    if not stays and len(readers) > 1 and not _cheap(p, target):
        names = ", ".join(n.out.name for n, _ in readers)
        return f"{names} read it, and computing it again costs more than loading it"
    for n, c in readers:
        why = _elsewhere(p, n) or _blocked(s, p, at, n, c) or _too_dear(p, n, target)
        if why:
            return why
    return ""


def _cheap(p: Nest, target: Target) -> bool:
    """Few operations, and no more bytes read per point than stored."""
    facts = body_facts(stored(p))
    if facts.dear or facts.checks:
        return False
    if not facts.loads:
        return facts.flops <= FREE_FLOPS
    total = points(tuple(a.size for a in p.axes))
    read = 0.0
    for ld in facts.loads:
        own = [a.size for a in p.axes if a.sym in index_symbols(ld.index)]
        read += ld.buffer.dtype.bytes * points(tuple(own)) / max(total, 1)
    flops = flops_along(stored(p), p.axes[-1].sym) if p.axes else facts.flops
    return flops <= target.cheap_flops and read <= 1.1 * p.out.dtype.bytes


def index_symbols(index: Index) -> set[Expr]:
    """The symbols that an index depends on, those behind loaded values included."""
    found: set[Expr] = set()
    for e in index:
        for s in symbols(e):
            if isinstance(s, Ind):
                assert isinstance(s.scalar, Scalar)
                for ld in body_facts(s.scalar).loads:
                    found |= index_symbols(ld.index)
                for x in body_facts(s.scalar).exprs:
                    found |= symbols(x)
            else:
                found.add(s)
    return found


def sites_of(n: Nest, b: Buffer) -> list[Index]:
    """The distinct indices at which `n` reads `b`."""
    found = [ld.index for ld in body_facts(n.body).loads if ld.buffer is b]
    for x in index_scalars(n.index):
        found += [ld.index for ld in body_facts(x).loads if ld.buffer is b]
    return list(dict.fromkeys(found))


def _elsewhere(p: Nest, n: Nest) -> str:
    """Why the reader's device cannot read what `p` reads."""
    far = next((b for b in body_facts(p.body).buffers if not reaches(b, n.out.device)), None)
    return "" if far is None else f"{far.name}, which it reads, is on {far.device}"


def _blocked(s: _State, p: Nest, at: int, n: Nest, c: int) -> str:
    """Why moving the loads of `p` to the reader `n` would change what they see."""
    loads = body_facts(p.body).loads
    for b in dict.fromkeys(ld.buffer for ld in loads):
        if s.deps.written_between(b, at, c):
            return f"{b.name}, which it reads, is written before {n.out.name} reads it"
    sites = sites_of(n, p.out)
    if any(ld.buffer is n.out for ld in loads):
        for site in sites:
            where = dict(zip(p.index, site, strict=True))
            moved = Substitution(where)
            for ld in loads:
                if ld.buffer is n.out and moved.index(ld.index) != n.index:
                    return f"it reads {n.out.name} at places that {n.out.name} overwrites"
        if n.reduce is not None or n.mode != "set" or not injective(n):
            return f"it reads {n.out.name}, which its reader overwrites"
    if may_raise(p) and not _everywhere(p, n, sites):
        return "an index in it is checked, and its reader does not read all of it"
    if _drops_checks(p, sites):
        return "its reader checks an index that it does not depend on"
    if body_facts(n.body).size + len(sites) * body_facts(p.body).size > MAX_BODY:
        return f"the body of {n.out.name} would become too large"
    if len(body_facts(n.body).loads) + len(sites) * len(loads) > MAX_LOADS:
        return f"{n.out.name} would read too many buffers"
    return ""


def _drops_checks(p: Nest, sites: list[Index]) -> bool:
    """Whether a checked index at which `p.out` is read is none any more in the body of `p`."""
    checked = [k for site in sites for k, e in enumerate(site)
               if any(body_facts(x).checks for x in scalars_in(e))]  # fmt: skip
    if not checked:
        return False
    facts = body_facts(stored(p))
    used = index_symbols((*facts.exprs, *(e for ld in facts.loads for e in ld.index)))
    return any(p.index[k] not in used for k in checked)


def _everywhere(p: Nest, n: Nest, sites: list[Index]) -> bool:
    """Whether `n` surely reads every element of `p.out`."""
    sizes = {a.sym: a.size for a in n.all_axes}
    for index in sites:
        own = [e for e in index if isinstance(e, Sym)]
        whole = all(
            (e in sizes and sizes[e] is size)  # type: ignore[index]
            or (e.is_const and size.is_const and size.value == 1)
            for e, size in zip(index, p.out.shape, strict=True)
        )
        if whole and len(set(own)) == len(own):
            return not any(isinstance(x, Op) and x.name == "where" for x in walk(n.body))
    return False


def _too_dear(p: Nest, n: Nest, target: Target) -> str:
    """Why computing `p` inside of `n` is slower than storing and loading it."""
    axes = n.all_axes
    there = points(tuple(a.size for a in p.axes))
    evaluated = 0
    for index in sites_of(n, p.out):
        used = index_symbols(index)
        # what does not move along the innermost loop is computed outside of it
        mine = axes[:-1] if axes and axes[-1].sym not in used else axes
        evaluated += points(tuple(a.size for a in mine))
    if evaluated <= there:
        return ""
    facts = body_facts(stored(p))
    flops = facts.flops + 1
    here = points(tuple(a.size for a in axes))
    mine_bytes = _traffic(n)
    own_bytes = _traffic(p)
    own_flops = here * (body_facts(n.body).flops + 1)
    before = target.time_ns(mine_bytes, own_flops) + target.time_ns(own_bytes, there * flops)
    left = mine_bytes + own_bytes - 2 * size_of(p.out)
    after = target.time_ns(left, own_flops + evaluated * flops)
    if after <= before:
        return ""
    times = evaluated / max(there, 1)
    return f"{n.out.name} would compute it {times:.3g} times per element"


def _traffic(n: Nest) -> int:
    """Bytes that a nest moves, each buffer once."""
    total = size_of(n.out)
    every = points(tuple(a.size for a in n.all_axes))
    for b in {ld.buffer for ld in body_facts(n.body).loads}:
        total += min(size_of(b), every * b.dtype.bytes)
    return total


