"""A LoopGraph for a range of sizes as that of one choice of them: nothing in it is symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, LoopSym, SizeSym, Sym, as_expr, index_symbol, rewrite
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Extern,
    ExternArg,
    Index,
    Load,
    LoopGraph,
    Nest,
    Node,
    Op,
    Reduce,
    Scalar,
    View,
    const,
)
from torchweld.ir.loop_verify import unguarded


def fixed(g: LoopGraph, values: Sequence[int]) -> LoopGraph:
    """`g` for the sizes `values`, one for each of its readings.

    Errors: InternalError if they are of another number, or an expression is undefined for them.
    """
    if len(values) != len(g.sizes):
        raise InternalError(f"{len(values)} sizes for {len(g.sizes)} symbols")
    work = _Fixing({s: as_expr(n) for s, n in zip(g.sizes, values, strict=True)})
    try:
        return LoopGraph(
            tuple(map(work.buffer, g.inputs)),
            tuple(map(work.node, g.nodes)),
            tuple(None if v is None else work.view(v) for v in g.outputs),
        )
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise InternalError(f"sizes {tuple(values)}: {error}") from None


@dataclass(slots=True)
class _Fixing:
    """What each part of the graph became. tops: of values that are indices, the largest."""

    sizes: Mapping[Sym, Expr]
    tops: Mapping[Expr, int] = field(default_factory=dict)
    exprs: dict[Expr, Expr] = field(default_factory=dict)
    buffers: dict[Buffer, Buffer] = field(default_factory=dict)
    scalars: dict[Scalar, Scalar] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        found = self.exprs.get(e)
        if found is None:
            found = self.exprs[e] = rewrite(e, self._leaf)
        return found

    def _leaf(self, e: Expr) -> Expr | None:
        match e:
            case SizeSym():
                return self.sizes[e]
            case LoopSym():
                return index_symbol(e.name, self.expr(e.size))
            case Ind():
                assert isinstance(e.scalar, Scalar)
                return Ind.make(self.scalar(e.scalar), e.smin, self.tops.get(e, e.smax))
        return None

    def all(self, of: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple([self.expr(e) for e in of])

    def buffer(self, b: Buffer) -> Buffer:
        found = self.buffers.get(b)
        if found is None:
            found = self.buffers[b] = Buffer.make(
                b.name, b.dtype, self.all(b.shape), self.all(b.strides), self.expr(b.offset),
                b.role, b.device,
            )  # fmt: skip
        return found

    def scalar(self, x: Scalar) -> Scalar:
        found = self.scalars.get(x)
        if found is None:
            found = self.scalars[x] = self._scalar(x)
        return found

    def _scalar(self, x: Scalar) -> Scalar:
        match x:
            case Op():
                return Op.make(x.name, tuple([self.scalar(a) for a in x.args]), x.dtype)
            case Load():
                return Load.make(self.buffer(x.buffer), self.all(x.index))
            case Index():
                e = self.expr(x.expr)
                return const(e.n, DType.I64) if isinstance(e, Int) else Index.make(e)
        return x

    def axes(self, of: Sequence[Axis]) -> tuple[Axis, ...]:
        made = []
        for a in of:
            size = self.expr(a.size)
            made.append(Axis(index_symbol(a.name, size), size))
        return tuple(made)

    def node(self, n: Node) -> Node:
        if isinstance(n, Extern):
            return replace(
                n, outs=tuple(map(self.buffer, n.outs)), args=tuple(map(self.arg, n.args)),
                kwargs=tuple((name, self.arg(a)) for name, a in n.kwargs),
                writes=tuple(map(self.buffer, n.writes)),
            )  # fmt: skip
        tops = self._tops(n)
        return _Fixing(self.sizes, tops)._nest(n) if tops else self._nest(n)

    def _tops(self, n: Nest) -> dict[Expr, int]:
        """What is known of indices that were loaded: those that are used at every point of a nest
        are inside of the dimension, whose size is a number now."""
        found: dict[Expr, int] = {}
        used = [(n.out, n.index)]
        used += [(x.buffer, x.index) for x in unguarded(n) if isinstance(x, Load)]
        for buffer, index in used:
            for e, size in zip(index, buffer.shape, strict=True):
                last = self.expr(size).hi if isinstance(e, Ind) else None
                if isinstance(e, Ind) and last is not None and 0 < last <= e.smax:
                    found[e] = min(found.get(e, e.smax), last - 1)
        return found

    def _nest(self, n: Nest) -> Nest:
        combine = None if n.reduce is None else Reduce(n.reduce.kind, self.axes(n.reduce.axes))
        return Nest(self.buffer(n.out), self.axes(n.axes), self.all(n.index), self.scalar(n.body),
                    combine, n.mode, n.origins)  # fmt: skip

    def view(self, v: View) -> View:
        return View(self.buffer(v.buffer), self.all(v.shape), self.all(v.strides),
                    self.expr(v.offset))  # fmt: skip

    def arg(self, a: ExternArg) -> ExternArg:
        match a:
            case View():
                return self.view(a)
            case Expr():
                e = self.expr(a)
                return e.n if isinstance(e, Int) else e
            case tuple():
                return tuple(map(self.arg, a))
        return a
