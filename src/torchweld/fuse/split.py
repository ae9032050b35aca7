"""Reduce in two steps where one step would starve the threads or the caches.

    s = sum over i of body(i)    ->    p[c] = sum over r of body(c*q + r);  s = sum over c of p[c]

(1) few results, long reductions: the parts run in parallel. (2) reductions over outer axes (column
sums) whose result is not spread over the same points again: parts of a few rows stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchweld.fuse.deps import Deps, analyse
from torchweld.fuse.facts import Substitution, address, body_facts, extent, linear, points
from torchweld.fuse.target import Cut, Machine
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr, as_expr
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Index,
    Load,
    LoopGraph,
    Nest,
    Node,
    Op,
    Reduce,
    Scalar,
    axis,
    const,
    contiguous,
)
from torchweld.ir.loop_eval import neutral

SPLITS = frozenset({"sum", "prod", "max", "min", "any", "all"})
FEW_RESULTS = 8
LONG = 64 << 10  # points of a reduction that is worth two steps
PART = 8192  # points of one part
COLUMN_ROWS = 64  # rows of one part of a column reduction
COLUMN_POINTS = 256 << 10  # points of a column reduction that is worth two steps
MAX_PARTS = 1024


def split_reductions(g: LoopGraph, machine: Machine) -> LoopGraph:
    """The graph with long reductions cut in parts."""
    deps = analyse(g)
    names = {b.name for n in deps.uses for b in n.reads | n.writes}
    nodes: list[Node] = []
    for at, n in enumerate(g.nodes):
        cut = _cut_of(g, deps, n, at, machine) if isinstance(n, Nest) else None
        if cut is None or not isinstance(n, Nest):
            nodes.append(n)
            continue
        nodes += _parts(n, cut, names)
    return g if len(nodes) == len(g.nodes) else replace(g, nodes=tuple(nodes))


def _cut_of(g: LoopGraph, deps: Deps, n: Nest, at: int, machine: Machine) -> Cut | None:
    if n.reduce is None or n.reduce.kind not in SPLITS or body_facts(n.body).checks:
        return None
    if not all(a.size.is_const for a in n.all_axes) or n.out in deps.uses[at].reads:
        return None
    return machine(n.out.device).cut(g, deps, n, at)


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


def _parts(n: Nest, cut: Cut, names: set[str]) -> tuple[Nest, Nest]:
    """The nest of the parts and the nest that combines them."""
    assert n.reduce is not None
    outer = [*cut.kept]
    body = n.body
    inner = [*cut.rest]
    if cut.axis is not None:
        size = extent(cut.axis.size)
        count = -(-size // cut.length)
        part, within = axis("part", count), axis("within", cut.length)
        place = part.sym * cut.length + within.sym
        values: dict[Expr, Expr] = {cut.axis.sym: place}
        body = Substitution(values).scalar(body)
        if count * cut.length != size:
            body = _guarded(body, place, size, n.reduce.kind)
        outer.append(part)
        inner.insert(0, within)
    axes = (*outer, *n.axes)
    shape = tuple(a.size for a in axes)
    partial = Buffer.make(
        fresh_name(n.out.name + "_part", names), body.dtype, shape, contiguous(shape), ZERO,
        "temp", n.out.device,
    )  # fmt: skip
    first = Nest(partial, axes, tuple(a.sym for a in axes), body,
                 Reduce(n.reduce.kind, tuple(inner)), origins=n.origins)  # fmt: skip
    load = Load.make(partial, tuple(a.sym for a in axes))
    return first, replace(n, body=load, reduce=Reduce(n.reduce.kind, tuple(outer)))


def _guarded(body: Scalar, place: Expr, size: int, kind: str) -> Scalar:
    """The neutral element behind the end of the last part."""
    inside = Op.make("lt", (Index.make(place), const(as_expr(size).value, DType.I64)), DType.BOOL)
    rest = const(neutral(kind, body.dtype), body.dtype)
    return Op.make("where", (inside, body, rest), body.dtype)


def fresh_name(name: str, names: set[str]) -> str:
    """`name`, lengthened if it is taken; taken from now on."""
    while name in names:
        name += "_"
    names.add(name)
    return name
