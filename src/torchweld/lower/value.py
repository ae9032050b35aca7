"""Val: a Scalar with arithmetic, in which lowerings write the mathematics of one element."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto
from typing import TypeAlias

from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, as_expr
from torchweld.ir.loop import Const, Index, Op, Scalar, cast, const
from torchweld.ir.symbolic_div import fits
from torchweld.lower.dtypes import representable, saturates


class Val:
    """One scalar of a nest's body. Numbers next to it take its dtype."""

    __slots__ = ("s",)

    def __init__(self, s: Scalar) -> None:
        self.s = s

    @property
    def dtype(self) -> DType:
        return self.s.dtype

    def __add__(self, other: Operand) -> Val:
        return binary("or" if self.dtype is DType.BOOL else "add", self, other)

    def __radd__(self, other: Operand) -> Val:
        return lift(other, self.dtype) + self

    def __sub__(self, other: Operand) -> Val:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Val:
        return lift(other, self.dtype) - self

    def __mul__(self, other: Operand) -> Val:
        return binary("and" if self.dtype is DType.BOOL else "mul", self, other)

    def __rmul__(self, other: Operand) -> Val:
        return lift(other, self.dtype) * self

    def __truediv__(self, other: Operand) -> Val:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Val:
        return lift(other, self.dtype) / self

    def __neg__(self) -> Val:
        return unary("neg", self)

    def __lt__(self, other: Operand) -> Val:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Val:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Val:
        return binary("gt", self, other)

    def __ge__(self, other: Operand) -> Val:
        return binary("ge", self, other)

    def __and__(self, other: Val) -> Val:
        return binary("and", self, other)

    def __or__(self, other: Val) -> Val:
        return binary("or", self, other)

    def __invert__(self) -> Val:
        return unary("not", self)

    def to(self, dtype: DType) -> Val:
        if dtype is DType.F8E4M3FN and self.dtype not in _BELOW_448 and not saturates():
            x = self.to(DType.F32)
            return Val(cast(where(absolute(x) > 464.0, math.nan, x).s, dtype))  # 464 is a tie
        return Val(cast(self.s, dtype))


class Number(Val):
    """A number that is known when the graph runs, in f64: beside a value it takes its dtype."""

    __slots__ = ()

    def __radd__(self, other: Operand) -> Val:
        return self + other

    def __rsub__(self, other: Operand) -> Val:
        return -self + other

    def __rmul__(self, other: Operand) -> Val:
        return self * other

    def __rtruediv__(self, other: Operand) -> Val:
        return Number((lift(other, self.dtype) / Val(self.s)).s)

    def __neg__(self) -> Val:
        return Number(unary("neg", self).s)


Operand: TypeAlias = Val | int | float | bool | Expr

# what fits into f8e4m3fn, where the casts of a LoopGraph saturate
_BELOW_448 = frozenset({DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.BOOL, DType.I8, DType.U8})
LARGEST = (1 << 62) - 1  # of the indices into a dimension that has no bound
_TO_BOOL = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"})


def constant(value: float | int | bool, dtype: DType) -> Val:
    """The number `value` in `dtype`."""
    return Val(const(representable(value, dtype), dtype))


def lift(x: Operand, dtype: DType) -> Val:
    """`x` itself, or the number as a constant of `dtype`, a size as a value."""
    if isinstance(x, Expr):
        return position(x).to(dtype)
    if type(x) is Number:
        return x.to(dtype)
    return x if isinstance(x, Val) else constant(x, dtype)


def unary(name: str, x: Val) -> Val:
    return Val(Op.make(name, (x.s,), DType.BOOL if name in _TO_BOOL else x.dtype))


def binary(name: str, a: Operand, b: Operand) -> Val:
    """A two-argument row of loop_ops; a number takes the dtype of the other side."""
    if type(a) is Number and type(b) is Val:
        a = a.to(b.dtype)
    if isinstance(a, Val):
        b = lift(b, a.dtype)
    else:
        assert isinstance(b, Val)
        a = lift(a, b.dtype)
    made = Op.make(name, (a.s, b.s), DType.BOOL if name in _TO_BOOL else a.dtype)
    return Number(made) if type(a) is Number and name not in _TO_BOOL else Val(made)


def where(condition: Val, a: Operand, b: Operand) -> Val:
    """a where the condition holds, else b; only the chosen side is evaluated."""
    if type(a) is Number and type(b) is Val:
        a = a.to(b.dtype)
    if isinstance(a, Val):
        b = lift(b, a.dtype)
    else:
        assert isinstance(b, Val)
        a = lift(a, b.dtype)
    if isinstance(condition.s, Const):
        return a if condition.s.value else b
    return Val(Op.make("where", (condition.s, a.s, b.s), a.dtype))


def _named(name: str) -> Callable[[Val], Val]:
    def call(x: Val) -> Val:
        return unary(name, x)

    return call


exp, expm1, log, log1p = _named("exp"), _named("expm1"), _named("log"), _named("log1p")
sqrt, rsqrt, tanh, sigmoid = _named("sqrt"), _named("rsqrt"), _named("tanh"), _named("sigmoid")
erf, absolute, isnan, isinf = _named("erf"), _named("abs"), _named("isnan"), _named("isinf")
floor, trunc, ceil = _named("floor"), _named("trunc"), _named("ceil")


def maximum(a: Operand, b: Operand) -> Val:
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Val:
    return binary("min", a, b)


def equal(a: Operand, b: Operand) -> Val:
    return binary("eq", a, b)


def differ(a: Operand, b: Operand) -> Val:
    return binary("ne", a, b)


def power(a: Operand, b: Operand) -> Val:
    return binary("pow", a, b)


def fma(a: Operand, b: Operand, c: Val) -> Val:
    """a * b + c, rounded once where the machine can, as the kernels of eager compute it."""
    return Val(Op.make("fma", (lift(a, c.dtype).s, lift(b, c.dtype).s, c.s), c.dtype))


def truth(x: Val) -> Val:
    """Whether `x` is not zero (NaN is true)."""
    if x.dtype is DType.BOOL:
        return x
    return differ(x.to(DType.F32) if x.dtype.is_float8 else x, 0)


def position(e: Expr | int) -> Val:
    """The value of an index expression, as i64."""
    e = as_expr(e)
    return constant(e.value, DType.I64) if e.is_const else Val(Index.make(e))


def inside(e: Expr, size: Expr) -> Val | None:
    """The condition 0 <= e < size, or None where the bounds of `e` prove it."""
    checks = []
    if e.lo is None or e.lo < 0:
        checks.append(position(e) >= 0)
    if (e.hi is None or size.lo is None or e.hi >= size.lo) and not fits(e, size):
        checks.append(position(e) < position(size))
    if not checks:
        return None
    return checks[0] if len(checks) == 1 else checks[0] & checks[1]


def all_of(conditions: list[Val | None]) -> Val | None:
    """The conjunction of those conditions that are not proven; None if all are."""
    found: Val | None = None
    for c in conditions:
        if c is not None:
            found = c if found is None else found & c
    return found


def guarded(condition: Val | None, a: Val, b: Operand) -> Val:
    """`a`, or `b` where a condition that is not proven fails."""
    return a if condition is None else where(condition, a, b)


def bounded(x: Val, size: Expr) -> Expr:
    """An index computed by scalars, known to lie in 0 <= x < size."""
    return Ind.make(x.s, 0, LARGEST if size.hi is None else max(size.hi - 1, 0))


class Check(Enum):
    """What an operator does about an index out of range, and about negative ones."""

    WRAP = auto()  # IndexError; negative ones count from the end
    INDEX = auto()  # IndexError, for negative ones too
    BOUND = auto()  # RuntimeError, for negative ones too


def checked(x: Val, size: Expr, how: Check) -> Expr:
    """A loaded index into `size`, which fails the call when it is out of range."""
    i, n = x.to(DType.I64), position(size)
    if how is Check.BOUND:
        return bounded(binary("check_bound", i, n), size)
    if how is Check.INDEX:
        i = where(i < 0, n, i)
    return bounded(binary("check_index", i, n), size)
