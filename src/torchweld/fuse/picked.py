"""Sums over a row in which one element counts: it is picked, and nothing is summed.

sum over r of where(r == v and c, a, 0)   is   where(c and 0 <= v < n, a, 0)

if v, c and a are the same along the row: what remains of the gradient of a loss over classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, atoms
from torchweld.ir.loop import (
    Axis,
    Const,
    Index,
    Load,
    LoopGraph,
    Nest,
    Op,
    Scalar,
    cast,
    const,
    walk,
)


def pick_sums(g: LoopGraph, inline: Callable[[LoopGraph], LoopGraph]) -> LoopGraph:
    """Every such sum without its loop. inline: what is done to a graph that changed."""
    nodes = tuple(_picked(n) if isinstance(n, Nest) else n for n in g.nodes)
    changed = any(a is not b for a, b in zip(nodes, g.nodes, strict=True))
    return inline(replace(g, nodes=nodes)) if changed else g


def _picked(n: Nest) -> Nest:
    if n.reduce is None or n.reduce.kind != "sum" or len(n.reduce.axes) != 1:
        return n
    (axis,) = n.reduce.axes
    found = _choice(n.body)
    if found is None or axis.size is ZERO:
        return n
    condition, value, other = found
    terms = list(_terms(condition))
    hits = [(t, at) for t in terms if (at := _place(t, axis)) is not None]
    if len(hits) != 1 or not _is_zero(other) or _varies(value, axis):
        return n
    ((hit, at),) = hits
    terms.remove(hit)
    if any(_varies(t, axis) for t in terms):
        return n
    terms.append(Op.make("ge", (at, const(0, DType.I64)), DType.BOOL))
    terms.append(Op.make("lt", (at, Index.make(axis.size)), DType.BOOL))
    every = terms[0]
    for t in terms[1:]:
        every = Op.make("and", (every, t), DType.BOOL)
    return replace(n, body=Op.make("where", (every, value, other), n.body.dtype), reduce=None)


def _choice(x: Scalar) -> tuple[Scalar, Scalar, Scalar] | None:
    """Condition and sides of a `where`, that may be converted."""
    if not isinstance(x, Op):
        return None
    if x.name == "cast" and x.dtype.is_float:
        inner = _choice(x.args[0])
        if inner is None:
            return None
        condition, value, other = inner
        zero = const(0.0, x.dtype) if _is_zero(other) else cast(other, x.dtype)
        return condition, cast(value, x.dtype), zero
    return (x.args[0], x.args[1], x.args[2]) if x.name == "where" else None


def _terms(c: Scalar) -> Iterator[Scalar]:
    """What must all be true."""
    if isinstance(c, Op) and c.name == "and":
        for a in c.args:
            yield from _terms(a)
    else:
        yield c


def _place(c: Scalar, axis: Axis) -> Scalar | None:
    """v of a comparison r == v with the position along the axis."""
    if not isinstance(c, Op) or c.name != "eq":
        return None
    for a, b in (c.args, c.args[::-1]):
        if isinstance(a, Index) and a.expr is axis.sym and not _varies(b, axis):
            return b
    return None


def _varies(x: Scalar, axis: Axis) -> bool:
    """Whether `x` depends on the position along the axis."""
    for s in walk(x):
        read = s.index if isinstance(s, Load) else (s.expr,) if isinstance(s, Index) else ()
        if any(axis.sym in atoms(e) for e in read):
            return True
    return False


def _is_zero(x: Scalar) -> bool:
    return isinstance(x, Const) and x.bits == 0 and x.dtype.is_float
