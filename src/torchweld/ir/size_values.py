"""What a symbolic number is: an expression, an exact quotient, or how a float is computed."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchweld.ir.conditions import Junction, Ratio, Relation
from torchweld.ir.expr import (
    Expr,
    FloorDiv,
    Int,
    Mod,
    Poly,
    Sym,
    as_expr,
    atoms,
    evaluate,
    from_terms,
    substitute,
    terms_of,
)


@dataclass(frozen=True, slots=True)
class Loose:
    """A float, as fn(*args) computes it from numbers."""

    fn: Callable[..., float]
    args: tuple[Number, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf(Loose):
    """A float that no size decides, and that is not known before the graph runs.

    fn: called when somebody needs the value: it raises, or has the value guarded. of: what it
    stands for.
    """

    of: object = None


@dataclass(frozen=True, slots=True)
class Rounded:
    """How an integer is computed of a float, when a call begins: fn(value)."""

    fn: Callable[[float], int]
    value: Loose

    def text(self, names: Mapping[Expr, str]) -> str:
        """`int(0.7*x.shape[0])`. names: what symbols are called."""
        name = "int" if self.fn is math.trunc else self.fn.__name__
        return f"{name}({float_text(self.value, names)})"

    def now(self, values: Mapping[Expr, int]) -> int:
        """The integer for these values of the symbols."""
        return self.fn(_float_now(self.value, values))


Number = Expr | Ratio | Loose | float
_INFIX = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
          operator.pow: "**"}  # fmt: skip
# what guards compute as Python does
COMPUTABLE = (*_INFIX, operator.neg, float, math.sqrt, math.log, math.log2, math.log10, math.exp)


def is_computable(x: Number) -> bool:
    """Whether a guard can compute a float: of sizes, by known functions."""
    if not isinstance(x, Loose):
        return True
    arity = 2 if x.fn in _INFIX else 1
    return x.fn in COMPUTABLE and len(x.args) == arity and all(map(is_computable, x.args))


def float_text(x: Number, names: Mapping[Expr, str]) -> str:
    """A number as Python code."""
    match x:
        case Expr():
            shown: dict[Expr, Expr] = {s: Sym.make(n, None, None) for s, n in names.items()}
            return substitute(x, shown).text()
        case Ratio():
            num = float_text(x.num, names)
            return num if x.den == 1 else f"({num}) / {x.den}"
        case Loose():
            args = [float_text(a, names) for a in x.args]
            infix = _INFIX.get(x.fn)
            if infix is None:
                return f"{x.fn.__name__}({', '.join(args)})"
            inner = [f"({a})" if " " in a else a for a in args]
            return f"{inner[0]} {infix} {inner[1]}"
    return repr(x)


def _float_now(x: Number, values: Mapping[Expr, int]) -> Any:
    match x:
        case Expr():
            return evaluate(x, values)
        case Ratio():
            return evaluate(x.num, values) / x.den
        case Loose():
            return x.fn(*(_float_now(a, values) for a in x.args))
    return x


LARGEST = 2**53  # of the integers that all are floats


def symbols_of(value: Any) -> set[Sym]:
    """The symbols that a value depends on."""
    match value:
        case Expr():
            return {s for s in atoms(value) if isinstance(s, Sym)}
        case Relation():
            return symbols_of(value.expr)
        case Ratio():
            return symbols_of(value.num)
        case Junction():
            return set().union(*map(symbols_of, value.parts))
        case Loose():
            return set().union(*map(symbols_of, value.args))
    return set()


def common(value: Any) -> Ratio | None:
    """An exact number as a ratio."""
    match value:
        case Ratio() if value.den & (value.den - 1) == 0:
            return value
        case Expr():
            return Ratio(value, 1)
        case float() if math.isfinite(value):
            num, den = value.as_integer_ratio()
            return Ratio(as_expr(num), den) if den < LARGEST else None
    return None


def exact(fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Ratio | None:
    """What arithmetic on floats gives where no rounding is done: with small powers of 2."""
    x, y = common(a), common(b)
    if x is None or y is None:
        return None
    if fn is operator.mul:
        num, den = x.num * y.num, x.den * y.den
    else:
        num, den = fn(x.num * y.den, y.num * x.den), x.den * y.den
    return Ratio(num, den) if den <= 64 else None


def complexity(e: Expr) -> int:
    """How much an expression is written with."""
    match e:
        case Poly():
            return sum(1 + sum(map(complexity, m)) for _, m in e.terms)
        case FloorDiv() | Mod():
            return 1 + complexity(e.num) + complexity(e.den)
    return 1


def _floor(num: Expr, den: Expr) -> Expr:
    """num // den, of what is negative by what is positive: -5 // 4 as -((5 + 3) // 4)."""
    if num.hi is None or num.hi > 0:
        return num // den
    return -((den - 1 - num) // den)


def tidied(e: Expr) -> Expr:
    """n + -n % d as d times a quotient, which is what it was rounded up to."""
    if not isinstance(e, Poly):
        return e
    for c, m in e.terms:
        if len(m) == 1 and isinstance(m[0], Mod):
            x = m[0]
            rest = e - x * c
            num = _opposite(rest, x, c)
            other = rest + num * c  # in this order: the algebra joins quotient and number
            other = other - _floor(num, x.den) * x.den * c
            if _disorder(other) < _disorder(e):
                return tidied(other)
    return e


def _disorder(e: Expr) -> tuple[int, int]:
    """The length of a sum, and how many remainders are in it."""
    terms = terms_of(e)
    return len(terms), sum(isinstance(x, Mod) for m in terms for x in m)


def _opposite(rest: Expr, x: Mod, c: int) -> Expr:
    """What has the remainder `x` and cancels as much of `rest` as can be, multiplied by `c`: of
    3*n % 7 and 4*n it is -4*n."""
    if not isinstance(x.den, Int):
        return x.num
    num, d = terms_of(x.num), x.den.n
    for m, k in terms_of(rest).items():
        if m and k % c == 0 and (num.get(m, 0) + k // c) % d == 0:
            num[m] = -k // c
    return from_terms(num)


def leaves_of(value: Any) -> Iterator[Leaf]:
    """The floats, not known before the graph runs, of which a number is made."""
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, Loose):
        for x in value.args:
            yield from leaves_of(x)


class Shown:
    """What torch's own questions about symbols find in the place of a sympy expression."""

    is_number = is_Boolean = is_symbol = is_Symbol = False
    args: tuple[object, ...] = ()

    def __init__(self, node: Any) -> None:
        self.node = node

    @property
    def free_symbols(self) -> set[object]:
        # torch asks sympy what kind they are, if that was imported
        kind: Any = getattr(sys.modules.get("sympy"), "Symbol", None)
        return {s if kind is None else kind(s.name) for s in symbols_of(self.node.value)}

    def __str__(self) -> str:
        return str(self.node.str())


class Questions:
    """What torch's own questions about truth find in the place of a ShapeEnv."""

    fake_tensor_cache_enabled = False

    def _maybe_evaluate_static(self, expr: Shown, **options: object) -> bool | None:
        known: bool | None = expr.node.env.known(expr.node.condition())
        return known

    def evaluate_sym_node(self, node: Any, *args: object, fallback_value: bool | None = None,
                          **options: object) -> object:  # fmt: skip
        if fallback_value is not None and node.is_bool() and node.is_open():
            return fallback_value  # right either way
        return node.guard_bool("", 0) if node.is_bool() else node.fixed()

    def is_unbacked_symint(self, symbol: object) -> bool:
        return isinstance(symbol, Shown) and symbol.node.is_open()


QUESTIONS = Questions()
