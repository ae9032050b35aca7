"""What a symbolic number is: an expression, an exact quotient, or how a float is computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchweld.ir.expr import Expr, Sym, as_expr, atoms
from torchweld.ir.sizes import Junction, Ratio, Relation


@dataclass(frozen=True, slots=True)
class Loose:
    """A float, as fn(*args) computes it from numbers."""

    fn: Callable[..., float]
    args: tuple[Number, ...]


Number = Expr | Ratio | Loose | float
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
