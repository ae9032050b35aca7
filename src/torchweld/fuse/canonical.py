"""Give every nest the same names for the same loops, and no loop that runs once.

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
    """The graph with canonical axis names and without axes of size 1."""
    nodes = [canonical_nest(n) if isinstance(n, Nest) else n for n in g.nodes]
    return replace(g, nodes=tuple(nodes))


def has_points(n: Node) -> bool:
    """Whether the node does anything: a nest over a size of 0 does not."""
    if not isinstance(n, Nest):
        return True
    scans = n.reduce is not None and n.reduce.is_scan
    return all(a.size is not ZERO for a in (n.all_axes if scans else n.axes))


def canonical_nest(n: Nest) -> Nest:
    """`n` renamed."""
    r = n.reduce
    if r is not None and r.kind in _EMPTY and any(a.size is ZERO for a in r.axes):
        return _over_nothing(n, _EMPTY[r.kind])
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
    if not body_of_one and all(k is v for k, v in values.items()):
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


def _over_nothing(n: Nest, start: int | bool) -> Nest:
    """A reduction without points stores the neutral element."""
    return canonical_nest(replace(n, body=const(start, n.body.dtype), reduce=None))


def stored(n: Nest) -> Scalar:
    """The value that `n` stores at one point, in the dtype of its buffer."""
    return cast(n.body, n.out.dtype)


