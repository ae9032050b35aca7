"""One nest for a buffer that several nests write piece by piece.

    y[i] = a[i] for i:4;  y[i + 4] = b[i] for i:6    ->    y[i] = where(i < 4, a[i], b[i - 4])

Concatenation and slice assignment become index maps: one kernel instead of several, and values
that a reader can compute for itself. A load is guarded by its branch of `where`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchweld.fuse.canonical import stored
from torchweld.fuse.deps import Deps, analyse
from torchweld.fuse.facts import Substitution, body_facts
from torchweld.fuse.group import loads_of
from torchweld.fuse.target import Machine
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Int, Sym, terms_of
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Index,
    LoopGraph,
    Nest,
    Node,
    Op,
    Scalar,
    axis,
    const,
)

MAX_PIECES = 8
MAX_SIZE = 120  # distinct scalars of all pieces


@dataclass(frozen=True, slots=True)
class _Piece:
    """The box that a nest writes: per dimension the axis (None: one place), start and length."""

    nest: Nest
    axes: tuple[Sym | None, ...]
    start: tuple[int, ...]
    length: tuple[int, ...]


def join_pieces(g: LoopGraph, machine: Machine) -> LoopGraph:
    """The graph with buffers that are written in boxes written by one nest each."""
    deps = analyse(g)
    joined: dict[int, Node | None] = {}
    for b, at in deps.writers.items():
        if 1 < len(at) <= MAX_PIECES and b.role == "temp" and machine(b.device).join_pieces:
            pieces = _pieces(g, deps, b, at)
            if pieces is not None:
                joined.update(dict.fromkeys(at))
                joined[at[-1]] = _whole(b, pieces)
    if not joined:
        return g
    nodes = [joined.get(at, n) for at, n in enumerate(g.nodes)]
    return replace(g, nodes=tuple(n for n in nodes if n is not None))


def _pieces(g: LoopGraph, deps: Deps, b: Buffer, at: list[int]) -> list[_Piece] | None:
    """The boxes in the order of their writers, if they cover `b` and may all be written last."""
    if any(r <= at[-1] for r in deps.readers.get(b, ())):
        return None
    found: list[_Piece] = []
    size = 0
    for i in at:
        n = g.nodes[i]
        piece = _box(n) if isinstance(n, Nest) else None
        if piece is None or any(deps.written_between(ld.buffer, i, at[-1] + 1)
                                for ld in loads_of(piece.nest)):  # fmt: skip
            return None
        facts = body_facts(piece.nest.body)
        size += facts.size
        if facts.checks or size > MAX_SIZE:
            return None
        found.append(piece)
    return found if _covers(b, found) else None


def _box(n: Nest) -> _Piece | None:
    """What `n` writes as a box; None if it is none, or its size is not known."""
    if n.reduce is not None or n.mode != "set":
        return None
    left = {a.sym: a.size for a in n.axes}
    axes: list[Sym | None] = []
    start: list[int] = []
    length: list[int] = []
    for e, size in zip(n.index, n.out.shape, strict=True):
        terms = dict(terms_of(e))
        first = terms.pop((), 0)
        if not isinstance(size, Int) or len(terms) > 1:
            return None
        sym: Sym | None = None
        extent: Expr = Int.make(1)
        for factors, coef in terms.items():
            if coef != 1 or len(factors) != 1 or not isinstance(factors[0], Sym):
                return None
            sym = factors[0]
            if sym not in left:
                return None
            extent = left.pop(sym)
        if not isinstance(extent, Int):
            return None
        axes.append(sym)
        start.append(first)
        length.append(extent.n)
    return None if left else _Piece(n, tuple(axes), tuple(start), tuple(length))


def _covers(b: Buffer, pieces: list[_Piece]) -> bool:
    """Whether the first box is all of `b`, or the boxes follow each other along one dimension."""
    shape = tuple(n.value for n in b.shape)
    if pieces[0].length == shape:
        return True
    cut = [d for d, n in enumerate(shape) if any(p.length[d] != n for p in pieces)]
    if len(cut) != 1:
        return False
    end = 0
    for p in sorted(pieces, key=lambda p: p.start[cut[0]]):
        if p.start[cut[0]] > end:
            return False
        end = max(end, p.start[cut[0]] + p.length[cut[0]])
    return end == shape[cut[0]]


def _whole(b: Buffer, pieces: list[_Piece]) -> Nest:
    """One nest over all of `b`; where boxes overlap, the later one counts."""
    axes = tuple(axis(f"i{d}", n) for d, n in enumerate(b.shape))
    body = _moved(pieces[0], axes)
    for p in pieces[1:]:
        inside = _inside(p, b, axes)
        value = _moved(p, axes)
        body = value if inside is None else Op.make("where", (inside, value, body), body.dtype)
    origins = tuple(dict.fromkeys(o for p in pieces for o in p.nest.origins))
    return Nest(b, axes, tuple(a.sym for a in axes), body, origins=origins)


def _moved(p: _Piece, axes: tuple[Axis, ...]) -> Scalar:
    """What a box holds, at a point of the whole."""
    values: dict[Expr, Expr] = {
        s: a.sym - first for s, first, a in zip(p.axes, p.start, axes, strict=True) if s is not None
    }
    return Substitution(values).scalar(stored(p.nest))


def _inside(p: _Piece, b: Buffer, axes: tuple[Axis, ...]) -> Scalar | None:
    """Whether a point of the whole lies in the box; None if all do."""
    found: Scalar | None = None
    for a, first, n, size in zip(axes, p.start, p.length, b.shape, strict=True):
        place = Index.make(a.sym)
        tests = []
        if first > 0:
            tests.append(Op.make("ge", (place, const(first, DType.I64)), DType.BOOL))
        if first + n < size.value:
            tests.append(Op.make("lt", (place, const(first + n, DType.I64)), DType.BOOL))
        for t in tests:
            found = t if found is None else Op.make("and", (found, t), DType.BOOL)
    return found
