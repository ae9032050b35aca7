"""Give every nest the same names for the same loops, and no loop that runs once or never.

Parallel axes become i0, i1, ... and reduce axes r0, r1, ... in order, so that equal nests of
different layers share their index expressions (interning) and compare by identity.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.fuse.facts import Substitution
from torchweld.ir.expr import ONE, ZERO, Expr, index_symbol
from torchweld.ir.loop import Axis, LoopGraph, Nest, Node, Op, Reduce, Scalar, cast, const

_EMPTY = {"sum": 0, "prod": 1, "any": False, "all": True}
# over one point these are the body itself
_TRIVIAL = frozenset({"sum", "prod", "max", "min", "any", "all"})


def canonical(g: LoopGraph) -> LoopGraph:
    """The graph with canonical axis names, without axes of size 1 and nests without points."""
    nodes: list[Node] = []
    for n in g.nodes:
        if not isinstance(n, Nest):
            nodes.append(n)
            continue
        renamed = canonical_nest(n)
        if renamed is not None:
            nodes.append(renamed)
    return replace(g, nodes=tuple(nodes))


def canonical_nest(n: Nest) -> Nest | None:
    """`n` renamed; None when it has no points."""
    if any(a.size is ZERO for a in n.axes):
        return None
    if n.reduce is not None and any(a.size is ZERO for a in n.reduce.axes):
        return _over_nothing(n)
    values: dict[Expr, Expr] = {}
    axes = _rename(n.axes, "i", values)
    reduce = n.reduce
    body_of_one = False
    if reduce is not None:
        left = _rename(reduce.axes, "r", values)
        body_of_one = not left and reduce.kind in _TRIVIAL
        if left or body_of_one:
            reduce = replace(reduce, axes=left)
        else:  # positions and scans keep one loop
            reduce = replace(reduce, axes=_keep_one(reduce, values))
    if all(k is v for k, v in values.items()):
        return n
    sub = Substitution(values)
    body = sub.scalar(n.body)
    if body_of_one and n.reduce is not None and n.reduce.kind == "sum" and body.dtype.is_float:
        # a sum starts at 0.0, and 0.0 + -0.0 is 0.0
        body = Op.make("add", (body, const(0.0, body.dtype)), body.dtype)
    if body_of_one:
        return replace(n, axes=axes, index=sub.index(n.index), body=body, reduce=None)
    return replace(n, axes=axes, index=sub.index(n.index), body=body, reduce=reduce)


def _rename(axes: tuple[Axis, ...], letter: str, values: dict[Expr, Expr]) -> tuple[Axis, ...]:
    out: list[Axis] = []
    for a in axes:
        if a.size is ONE:
            values[a.sym] = ZERO
            continue
        sym = index_symbol(f"{letter}{len(out)}", a.size)
        values[a.sym] = sym
        out.append(Axis(sym, a.size))
    return tuple(out)


def _keep_one(reduce: Reduce, values: dict[Expr, Expr]) -> tuple[Axis, ...]:
    first = reduce.axes[0]
    sym = index_symbol("r0", first.size)
    values[first.sym] = sym
    return (Axis(sym, first.size),)


def _over_nothing(n: Nest) -> Nest | None:
    """A reduction without points stores the neutral element; a scan stores nothing."""
    assert n.reduce is not None
    if n.reduce.is_scan or n.reduce.kind not in _EMPTY:
        return None if n.reduce.is_scan else n
    neutral: Scalar = const(_EMPTY[n.reduce.kind], n.body.dtype)
    filled = replace(n, body=neutral, reduce=None)
    return canonical_nest(filled)


def stored(n: Nest) -> Scalar:
    """The value that `n` stores at one point, in the dtype of its buffer."""
    return cast(n.body, n.out.dtype)


