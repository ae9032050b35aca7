"""Reduce in two steps where one step would starve the threads or the caches.

    s = sum over i of body(i)    ->    p[c] = sum over r of body(c*q + r);  s = sum over c of p[c]

(1) few results, long reductions: the parts run in parallel. (2) reductions over outer axes (column
sums) whose result is not spread over the same points again: parts of a few rows stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torchweld.fuse import parts
from torchweld.fuse.deps import Deps, analyse
from torchweld.fuse.facts import Substitution, address, body_facts, extent, linear, points
from torchweld.fuse.inline import at_index
from torchweld.fuse.parts import Parts
from torchweld.fuse.target import Cut, Machine
from torchweld.fuse.tidy import covers
from torchweld.ir.expr import ONE, Expr
from torchweld.ir.loop import Axis, Buffer, Load, LoopGraph, Nest, Node, Reduce, Scalar, measured

SPLITS = frozenset({"sum", "prod", "max", "min", "any", "all"})
# on machines whose parts are cheap enough
IN_PARTS = frozenset({"argmax", "argmin", "scan_sum", "scan_prod", "scan_max", "scan_min"})
FEW_RESULTS = 8
LONG = 64 << 10  # points of a reduction that is worth two steps
PART = 8192  # points of one part
COLUMN_ROWS = 64  # rows of one part of a column reduction
COLUMN_POINTS = 256 << 10  # points of a column reduction that is worth two steps
MAX_PARTS = 1024


@dataclass(frozen=True, slots=True)
class _Done:
    """A reduction that was cut: the nest, where it stood, its parts and their results."""

    nest: Nest
    at: int
    parts: Parts
    first: Nest


@dataclass(slots=True)
class _State:
    """The graph while its reductions are cut. done: by what they compute."""

    g: LoopGraph
    deps: Deps
    names: set[str]
    machine: Machine
    done: dict[Buffer, _Done] = field(default_factory=dict)


def split_reductions(g: LoopGraph, machine: Machine) -> LoopGraph:
    """The graph with long reductions cut in parts."""
    deps = analyse(g)
    names = {b.name for n in deps.uses for b in n.reads | n.writes}
    s = _State(g, deps, names, machine)
    nodes: list[Node] = []
    for at, n in enumerate(g.nodes):
        nodes += _split(s, n, at) if isinstance(n, Nest) else [n]
    return g if len(nodes) == len(g.nodes) else replace(g, nodes=tuple(nodes))


def _split(s: _State, n: Nest, at: int) -> tuple[Nest, ...]:
    """What is to run instead of `n`."""
    if n.reduce is None or body_facts(n.body).checks or n.out in s.deps.uses[at].reads:
        return (n,)
    if not all(a.size.is_const for a in n.all_axes):
        return (n,)
    target = s.machine(n.out.device)
    pair = _paired(s, n, at) if target.parts and n.reduce.kind == "sum" else None
    if pair is not None:
        return pair
    kinds = SPLITS | IN_PARTS if target.parts else SPLITS
    cut = target.cut(s.g, s.deps, n, at) if n.reduce.kind in kinds else None
    if cut is None:
        return (n,)
    if n.reduce.is_scan:
        return parts.scan(n, cut, s.names)
    p = parts.parts_of(cut)
    if n.reduce.kind not in SPLITS:
        return parts.positions(n, p, s.names)
    first, second = parts.fold(n, p, s.names)
    if s.deps.only_writer(n.out) is not None:
        s.done[n.out] = _Done(n, at, p, first)
    return first, second


def _paired(s: _State, n: Nest, at: int) -> tuple[Nest, ...] | None:
    """`n` in the parts of the fold that it is measured from, which was cut."""
    body = _Meant(s, at).scalar(n.body)
    for ld in body_facts(body).loads:
        done = s.done.get(ld.buffer)
        if done is None:
            continue
        same = _renamed(replace(n, body=body), done.nest)
        if same is None or any(
            s.deps.written_between(b, done.at, at) for b in body_facts(done.nest.body).buffers
        ):
            continue
        m = measured(same.body, points(tuple(a.size for a in same.all_axes[len(same.axes) :])))
        if m is None or m.value is not done.nest.body or m.kind != parts.kind_of(done.nest):
            continue
        if m.other is not Load.make(done.nest.out, done.nest.index):
            continue
        make = parts.squares if m.kind == "sum" else parts.exponentials
        return make(same, m, done.first, done.parts, s.names)
    return None


class _Meant(Substitution):
    """Replaces loads of what was made of a fold that was cut, point by point, by how it is made."""

    __slots__ = ("_at", "_state")

    def __init__(self, s: _State, at: int) -> None:
        super().__init__({})
        self._state, self._at = s, at

    def load(self, x: Load, index: tuple[Expr, ...]) -> Scalar:
        made = _point_nest(self._state, x.buffer, self._at)
        return Load.make(x.buffer, index) if made is None else at_index(made, index)


def _point_nest(s: _State, b: Buffer, at: int) -> Nest | None:
    """The nest that makes all of `b`, if it reads a fold that was cut; None: another one."""
    where = s.deps.only_writer(b)
    made = None if where is None or where > at else s.g.nodes[where]
    if where is None or not isinstance(made, Nest) or made.reduce is not None:
        return None
    facts = body_facts(made.body)
    if made.mode != "set" or facts.checks or not covers(made) or not facts.buffers & s.done.keys():
        return None
    if any(s.deps.written_between(x, where, at) for x in facts.buffers):
        return None
    return made


def _renamed(n: Nest, like: Nest) -> Nest | None:
    """`n` with the loops of `like`, if they have the same sizes."""
    assert n.reduce is not None and like.reduce is not None
    mine, theirs = (n.axes, n.reduce.axes), (like.axes, like.reduce.axes)
    if [[a.size for a in x] for x in mine] != [[a.size for a in x] for x in theirs]:
        return None
    values: dict[Expr, Expr] = {
        a.sym: b.sym for a, b in zip(n.all_axes, like.all_axes, strict=True)
    }
    sub = Substitution(values)
    return replace(n, axes=like.axes, index=sub.index(n.index), body=sub.scalar(n.body),
                   reduce=Reduce(n.reduce.kind, like.reduce.axes))  # fmt: skip


def cut_for_threads(g: LoopGraph, deps: Deps, n: Nest, at: int) -> Cut | None:
    """Parts for a few threads with caches of their own."""
    assert n.reduce is not None
    results = points(tuple(a.size for a in n.axes))
    length = points(tuple(a.size for a in n.reduce.axes))
    if results < FEW_RESULTS and length >= LONG:
        return _few_results(n.reduce.axes)
    if results * length >= COLUMN_POINTS and length >= 4 * COLUMN_ROWS and by_column(n):
        return None if spread_again(g, deps, n.out, results * length) else _columns(n, results)
    return None


def _few_results(axes: Sequence[Axis]) -> Cut:
    """Whole outer axes while enough is left inside, then a part of the next one."""
    kept: list[Axis] = []
    rest = list(axes)
    parts = 1
    while True:
        inner = points(tuple(a.size for a in rest[1:]))
        first = extent(rest[0].size)
        if len(rest) == 1 or inner < PART // 2 or parts * first > 1 << 14:
            break
        kept.append(rest.pop(0))
        parts *= first
        if parts >= 16 and inner <= 8 * PART:
            return Cut(tuple(kept), None, 1, tuple(rest))
    length = _part_length(first, max(1, PART // max(inner, 1)))
    return Cut(tuple(kept), rest[0], length, tuple(rest[1:]))


def _columns(n: Nest, results: int) -> Cut:
    """Blocks of rows: whole outer axes while many rows are left inside, then part of the next."""
    assert n.reduce is not None
    rest = list(n.reduce.axes)
    length = points(tuple(a.size for a in rest))
    rows = max(COLUMN_ROWS, PART // results, length // MAX_PARTS)
    kept: list[Axis] = []
    while len(rest) > 1 and points(tuple(a.size for a in rest[1:])) >= rows // 2:
        kept.append(rest.pop(0))
    first, inner = extent(rest[0].size), points(tuple(a.size for a in rest[1:]))
    wanted = max(1, rows // inner)
    if kept and wanted >= first:
        return Cut(tuple(kept), None, 1, tuple(rest))
    return Cut(tuple(kept), rest[0], _part_length(first, wanted), tuple(rest[1:]))


def _part_length(n: int, wanted: int) -> int:
    """A divisor of `n` within a factor of 4 of `wanted`, else `wanted` itself."""
    if wanted >= n:
        return n
    near = [d for d in range(max(1, wanted // 4), min(n, wanted * 4) + 1) if n % d == 0]
    return min(near, key=lambda d: abs(d - wanted)) if near else wanted


def by_column(n: Nest) -> bool:
    """Whether memory is contiguous along a kept axis, for the widest load."""
    kept = {a.sym for a in n.axes}
    for ld in body_facts(n.body).loads:
        form = linear(address(ld.buffer.strides, ld.index))
        if len(form.strides) == len(n.all_axes):
            return any(step is ONE and s in kept for s, step in form.strides.items())
    return False


def spread_again(g: LoopGraph, deps: Deps, b: Buffer, total: int) -> bool:
    """Whether a pointwise nest over about the same points reads the result, perhaps through others.

    Then the rows of that nest are the columns here, and one kernel holds both.
    """
    stack, seen = [b], {b}
    while stack:
        for at in deps.readers.get(stack.pop(), ()):
            n = g.nodes[at]
            if not isinstance(n, Nest):
                continue
            if n.reduce is None and points(tuple(a.size for a in n.axes)) * 2 >= total:
                return True
            if n.out not in seen and len(seen) < 16:
                seen.add(n.out)
                stack.append(n.out)
    return False
