"""What the text of a kernel depends on: kernels with equal keys have equal texts.

The layers of a model give the same few kernels again and again. Reading a kernel for its key costs
a tenth of printing it. Buffers count by their places among the arguments, scalars by the places at
which they are met, so a key is as long as the kernel has distinct scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchweld.ir.expr import Expr, Ind, Int, Sym, atoms, rewrite
from torchweld.ir.loop import Buffer, Const, Index, Load, Nest, Op, Scalar, walk
from torchweld.ir.plan import Kernel

Key = tuple[object, ...]
Printed = TypeVar("Printed")
# key -> what is printed of such kernels, from whatever graph it was met in first
_TEXTS: dict[Key, Any] = {}
_MOST_TEXTS = 5_000


def printed(key: Key, print_it: Callable[..., Printed], *given: object) -> Printed:
    """What is printed of a kernel with this key: of the first one that is met."""
    found: Printed | None = _TEXTS.get(key)
    if found is None:
        if len(_TEXTS) >= _MOST_TEXTS:
            _TEXTS.clear()
        found = _TEXTS[key] = print_it(*given)
    return found


def key_of(k: Kernel) -> Key:
    """The key of a kernel: everything about it but names, origins and which buffers it is for."""
    reader = _Reader([*k.args, *(x.buffer for x in k.locals)])
    stages = tuple((s.loops, tuple(reader.nest(n) for n in s.nests)) for s in k.stages)
    args = tuple(_looks(b) for b in k.args)
    local = tuple((_looks(x.buffer), x.kind) for x in k.locals)
    return (k.grid, k.lanes, k.tile, k.grain, args, local, tuple(reader.rows), stages)


def _looks(b: Buffer) -> Key:
    return (b.dtype, b.shape, b.strides, b.offset, b.role, b.device)


class _Reader:
    """rows: one for each distinct scalar, in the order in which they are met."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self.rows: list[Key] = []
        self._places = {b: i for i, b in enumerate(buffers)}
        self._met: dict[Scalar, int] = {}

    def nest(self, n: Nest) -> Key:
        axes = (n.axes, n.reduce and (n.reduce.kind, n.reduce.axes), n.mode)
        index = tuple([self._expr(e) for e in n.index])
        return (self._places[n.out], axes, index, self._scalar(n.body))

    def _scalar(self, x: Scalar) -> int:
        for s in walk(x):  # children first
            if s not in self._met:
                self.rows.append(self._row(s))
                self._met[s] = len(self.rows) - 1
        return self._met[x]

    def _row(self, s: Scalar) -> Key:
        match s:
            case Op():
                return (s.name, s.dtype, tuple([self._met[a] for a in s.args]))
            case Load():
                return (self._places[s.buffer], tuple([self._expr(e) for e in s.index]))
            case Index():
                return (self._expr(s.expr),)
            case Const():
                return (s,)
        raise TypeError(type(s).__name__)

    def _expr(self, e: Expr) -> Expr:
        """`e` with symbols that name rows in the place of loaded values."""
        if isinstance(e, Int | Sym) or not any(isinstance(a, Ind) for a in atoms(e)):
            return e
        return rewrite(e, self._loaded)

    def _loaded(self, e: Expr) -> Expr | None:
        if not isinstance(e, Ind):
            return None
        assert isinstance(e.scalar, Scalar)
        return Sym.make(f"@{self._scalar(e.scalar)}", e.smin, e.smax)
