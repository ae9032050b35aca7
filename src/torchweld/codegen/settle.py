"""Kernel -> Kernel with what bounds decide already decided, and small integers in 32 bits.

    index(i) < 0, where 0 <= i          false, and the `where` on it is gone
    check_index(index(i), n), i < n     index(i); as an index: plain i, so the load is contiguous
    index(i) <= index(j)                compared as i32: twice the lanes of an i64 vector

Values do not change: only what cannot overflow is narrowed.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, Sym, atoms, rewrite
from torchweld.ir.loop import Const, Index, Load, Nest, Op, Scalar, const, walk
from torchweld.ir.loop_ops import CHECKS
from torchweld.ir.plan import Kernel

LOW, HIGH = -(1 << 31), (1 << 31) - 1
Bounds = tuple[int, int]

COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "max", "min"})
EXACT_INTS = frozenset({DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL})


def settle(k: Kernel) -> Kernel:
    """`k` with every nest settled."""
    done = _Settled()
    stages = tuple(replace(s, nests=tuple(done.nest(n) for n in s.nests)) for s in k.stages)
    return replace(k, stages=stages)


class _Settled:
    """Memo of one kernel: scalars that stand for others, their bounds and their i32 forms."""

    def __init__(self) -> None:
        self._new: dict[Scalar, Scalar] = {}
        self._bounds: dict[Scalar, Bounds | None] = {}
        self._narrow: dict[Scalar, Scalar] = {}

    def nest(self, n: Nest) -> Nest:
        body = self.scalar(n.body)
        index = tuple(self.expr(e) for e in n.index)
        if body is n.body and all(a is b for a, b in zip(index, n.index, strict=True)):
            return n
        return replace(n, body=body, index=index)

    def scalar(self, x: Scalar) -> Scalar:
        for s in walk(x):  # children first
            if s not in self._new:
                self._new[s] = self._rebuilt(s)
        return self._new[x]

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, Int | Sym) or not any(isinstance(a, Ind) for a in atoms(e)):
            return e
        return rewrite(e, self._ind)

    def _ind(self, e: Expr) -> Expr | None:
        if not isinstance(e, Ind) or not isinstance(e.scalar, Scalar):
            return None
        x = self.scalar(e.scalar)
        return x.expr if isinstance(x, Index) else Ind.make(x, e.smin, e.smax)

    def _rebuilt(self, s: Scalar) -> Scalar:
        match s:
            case Load():
                return Load.make(s.buffer, tuple(self.expr(e) for e in s.index))
            case Index():
                return Index.make(self.expr(s.expr))
            case Op():
                return self._op(Op.make(s.name, tuple(self._new[a] for a in s.args), s.dtype))
            case _:
                return s

    def _op(self, x: Op) -> Scalar:
        if x.name == "where" and isinstance(x.args[0], Const):
            return x.args[1] if x.args[0].value else x.args[2]
        if x.name in CHECKS and self._proven(x):
            return x.args[0]
        if x.args[0].dtype is not DType.I64:
            return x
        if x.name in COMPARE:
            known = _decided(x.name, self.bounds(x.args[0]), self.bounds(x.args[1]))
            if known is not None:
                return const(known, DType.BOOL)
        narrow = x.name in COMPARE or (x.name == "cast" and x.dtype is not DType.I32)
        if narrow and all(self.bounds(a) is not None for a in x.args):
            return Op.make(x.name, tuple(self.narrow(a) for a in x.args), x.dtype)
        return x

    def _proven(self, x: Op) -> bool:
        i, n = x.args
        at = self.bounds(i)
        return at is not None and isinstance(n, Const) and at[0] >= 0 and at[1] < int(n.value)

    def bounds(self, x: Scalar) -> Bounds | None:
        """What an i64 scalar may be, if that and all it is made of fit in 32 bits."""
        for s in walk(x):
            if s not in self._bounds:
                found = self._bounds_here(s) if s.dtype is DType.I64 else None
                fits = found is not None and found[0] >= LOW and found[1] <= HIGH
                self._bounds[s] = found if fits else None
        return self._bounds[x]

    def _bounds_here(self, s: Scalar) -> Bounds | None:
        match s:
            case Const():
                return int(s.value), int(s.value)
            case Index():
                if s.expr.lo is None or s.expr.hi is None or _loaded(s.expr):
                    return None
                return s.expr.lo, s.expr.hi
            case Op(name="cast"):
                return _range(s.args[0].dtype)
            case Op(name="where"):
                a, b = self._bounds[s.args[1]], self._bounds[s.args[2]]
                return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
            case Op() if s.name in ARITHMETIC:
                known = [self._bounds[a] for a in s.args]
                return _interval(s.name, [k for k in known if k is not None], len(known))
        return None

    def narrow(self, x: Scalar) -> Scalar:
        """`x`, whose bounds fit, computed as i32."""
        hit = self._narrow.get(x)
        if hit is None:
            hit = self._narrow[x] = self._narrowed(x)
        return hit

    def _narrowed(self, x: Scalar) -> Scalar:
        match x:
            case Const():
                return const(int(x.value), DType.I32)
            case Op(name="cast"):
                source = x.args[0]
                return source if source.dtype is DType.I32 else Op.make("cast", x.args, DType.I32)
            case Op(name="where"):
                args = (x.args[0], self.narrow(x.args[1]), self.narrow(x.args[2]))
                return Op.make("where", args, DType.I32)
            case Op():
                return Op.make(x.name, tuple(self.narrow(a) for a in x.args), DType.I32)
            case _:
                return Op.make("cast", (x,), DType.I32)


def _loaded(e: Expr) -> bool:
    return not isinstance(e, Int | Sym) and any(isinstance(a, Ind) for a in atoms(e))


def _range(dtype: DType) -> Bounds | None:
    if dtype not in EXACT_INTS:
        return None
    if dtype in (DType.U8, DType.BOOL):
        return 0, 255 if dtype is DType.U8 else 1
    return -(1 << (8 * dtype.bytes - 1)), (1 << (8 * dtype.bytes - 1)) - 1


def _interval(name: str, known: list[Bounds], arity: int) -> Bounds | None:
    if len(known) != arity:
        return None
    if name == "neg":
        return -known[0][1], -known[0][0]
    (a, b), (c, d) = known
    if name == "add":
        return a + c, b + d
    if name == "sub":
        return a - d, b - c
    if name == "mul":
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    return (max(a, c), max(b, d)) if name == "max" else (min(a, c), min(b, d))


def _decided(name: str, a: Bounds | None, b: Bounds | None) -> bool | None:
    """The answer of a comparison that bounds decide."""
    if a is None or b is None:
        return None
    if name in ("gt", "ge"):
        name, a, b = ("lt" if name == "gt" else "le"), b, a
    if name == "lt":
        return True if a[1] < b[0] else False if a[0] >= b[1] else None
    if name == "le":
        return True if a[1] <= b[0] else False if a[0] > b[1] else None
    if a[1] < b[0] or b[1] < a[0]:
        return name == "ne"
    same = a == b and a[0] == a[1]
    return name == "eq" if same else None
