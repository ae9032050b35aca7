"""Nodes of a LoopGraph with other buffers in the place of some of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchweld.ir.expr import Expr
from torchweld.ir.loop import (
    Buffer,
    Extern,
    ExternArg,
    Index,
    Load,
    Nest,
    Node,
    Scalar,
    View,
    reads,
    rebuild,
    writes,
)


class Swap:
    """A renaming. The new buffers have the shapes of the old ones, and may be laid out otherwise.

    Views of a buffer whose layout changes have to be of the whole buffer.
    """

    __slots__ = ("buffers",)

    def __init__(self, buffers: Mapping[Buffer, Buffer]) -> None:
        self.buffers = buffers

    def buffer(self, b: Buffer) -> Buffer:
        return self.buffers.get(b, b)

    def node(self, n: Node) -> Node:
        if not any(b in self.buffers for b in reads(n) | writes(n)):
            return n
        if isinstance(n, Nest):
            return replace(n, out=self.buffer(n.out), body=self.scalar(n.body),
                           index=tuple(map(self._index, n.index)))  # fmt: skip
        return self._extern(n)

    def view(self, v: View) -> View:
        b = self.buffers.get(v.buffer)
        if b is None:
            return v
        if replace(v, again=0).whole:
            return View(b, b.shape, b.strides, b.offset, v.again)
        return replace(v, buffer=b)

    def scalar(self, x: Scalar) -> Scalar:
        return rebuild(x, self._leaf)

    def _extern(self, n: Extern) -> Extern:
        return replace(
            n, outs=tuple(map(self.buffer, n.outs)), args=tuple(map(self._arg, n.args)),
            kwargs=tuple((k, self._arg(a)) for k, a in n.kwargs),
            writes=tuple(map(self.buffer, n.writes)),
        )  # fmt: skip

    def _arg(self, a: ExternArg) -> ExternArg:
        if isinstance(a, View):
            return self.view(a)
        return tuple(map(self._arg, a)) if isinstance(a, tuple) else a

    def _index(self, e: Expr) -> Expr:
        made = self.scalar(Index.make(e))
        assert isinstance(made, Index)
        return made.expr

    def _leaf(self, x: Scalar) -> Scalar | None:
        if isinstance(x, Load) and x.buffer in self.buffers:
            return Load.make(self.buffers[x.buffer], tuple(map(self._index, x.index)))
        return None
