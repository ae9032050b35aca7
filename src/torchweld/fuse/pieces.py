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
from torchweld.ir.expr import ONE, ZERO, Expr, Int, SizeSym, Sym, atoms
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
    start: tuple[Expr, ...]
    length: tuple[Expr, ...]


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
    """What `n` writes as a box; None if it is none."""
    if n.reduce is not None or n.mode != "set":
        return None
    left = {a.sym: a.size for a in n.axes}
    axes: list[Sym | None] = []
    start: list[Expr] = []
    length: list[Expr] = []
    for e in n.index:
        found = [] if isinstance(e, Int) else [a for a in left if a in atoms(e)]
        sym = found[0] if found else None
        first = e if sym is None else e - sym
        if not _known(first):
            return None
        axes.append(sym)
        start.append(first)
        length.append(ONE if sym is None else left.pop(sym))
    return None if left else _Piece(n, tuple(axes), tuple(start), tuple(length))


def _known(e: Expr) -> bool:
    """Whether the place is the same at every point of the loops."""
    return isinstance(e, Int) or all(isinstance(a, SizeSym) for a in atoms(e))


def _covers(b: Buffer, pieces: list[_Piece]) -> bool:
    """Whether the first box is all of `b`, or the boxes follow each other along one dimension."""
    if pieces[0].length == b.shape:
        return True
    cut = [d for d, n in enumerate(b.shape) if any(p.length[d] is not n for p in pieces)]
    if len(cut) != 1:
        return False
    (d,) = cut
    ends = [p.start[d] + p.length[d] for p in pieces]
    if all(isinstance(e, Int) for e in (b.shape[d], *ends, *(p.start[d] for p in pieces))):
        return _reaches(b.shape[d].value, [(p.start[d].value, e.value)
                                           for p, e in zip(pieces, ends, strict=True)])  # fmt: skip
    return _follow(b.shape[d], {p.start[d]: e for p, e in zip(pieces, ends, strict=True)},
                   len(pieces))  # fmt: skip


def _reaches(size: int, ranges: list[tuple[int, int]]) -> bool:
    """Whether the ranges, which may overlap, leave nothing out."""
    end = 0
    for first, last in sorted(ranges):
        if first > end:
            return False
        end = max(end, last)
    return end == size


def _follow(size: Expr, ends: dict[Expr, Expr], count: int) -> bool:
    """Whether the ranges, which are known by where they start, follow one another."""
    end: Expr = ZERO
    for _ in range(count):
        if end not in ends:
            return False
        end = ends.pop(end)
    return end is size


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
        if first is not ZERO:
            tests.append(Op.make("ge", (place, _number(first)), DType.BOOL))
        if first + n is not size:
            tests.append(Op.make("lt", (place, _number(first + n)), DType.BOOL))
        for t in tests:
            found = t if found is None else Op.make("and", (found, t), DType.BOOL)
    return found


def _number(e: Expr) -> Scalar:
    return const(e.n, DType.I64) if isinstance(e, Int) else Index.make(e)
