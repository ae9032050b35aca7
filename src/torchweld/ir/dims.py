"""Sizes by name: what users write where they say beforehand which sizes vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torchweld.ir.conditions import Condition, at_most, equal, less, negation
from torchweld.ir.expr import Expr, Sym, as_expr


@dataclass(frozen=True, slots=True)
class Hint:
    """A size without a name. kind: "auto", "dynamic" or "static". Called: the same, with bounds."""

    kind: str
    min: int | None = None
    max: int | None = None

    def __call__(self, min: int | None = None, max: int | None = None) -> Hint:
        return Hint(self.kind, min, max)


class Dim:
    """A size that varies, with a name: the same wherever the name stands.

    `2 * n + 1`, `n // 2`, `n + m` are sizes that are made of others; `n <= m`, `n % 8 == 0` are
    conditions, for `Shapes`. min, max: the least and the largest value that will come.
    """

    __slots__ = ("expr",)
    AUTO: ClassVar[Hint] = Hint("auto")
    DYNAMIC: ClassVar[Hint] = Hint("dynamic")
    STATIC: ClassVar[Hint] = Hint("static")

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        self.expr: Expr = Sym.make(name, min, max)

    def __repr__(self) -> str:
        return f"Dim({self.expr.text()})"

    def __hash__(self) -> int:
        return hash(self.expr)

    def __add__(self, other: Dim | int) -> Dim:
        return of(self.expr + _inside(other))

    def __sub__(self, other: Dim | int) -> Dim:
        return of(self.expr - _inside(other))

    def __rsub__(self, other: int) -> Dim:
        return of(other - self.expr)

    def __mul__(self, other: Dim | int) -> Dim:
        return of(self.expr * _inside(other))

    def __floordiv__(self, other: Dim | int) -> Dim:
        return of(self.expr // _inside(other))

    def __mod__(self, other: Dim | int) -> Dim:
        return of(self.expr % _inside(other))

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return equal(self.expr, _inside(other)) if isinstance(other, Dim | int) else False

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return negation(self == other)

    def __le__(self, other: Dim | int) -> Condition:
        return at_most(self.expr, _inside(other))

    def __lt__(self, other: Dim | int) -> Condition:
        return less(self.expr, _inside(other))

    def __ge__(self, other: Dim | int) -> Condition:
        return at_most(_inside(other), self.expr)

    def __gt__(self, other: Dim | int) -> Condition:
        return less(_inside(other), self.expr)


def of(expr: Expr) -> Dim:
    """An expression of sizes as a size."""
    made = object.__new__(Dim)
    made.expr = expr
    return made


def _inside(x: Dim | int) -> Expr:
    return x.expr if isinstance(x, Dim) else as_expr(x)


class Shapes:
    """Which sizes of the arguments vary: `compile(dynamic_shapes=...)`.

    params: what is said of each parameter, by name or in order; see docs/dynamic.md.
    assumptions: conditions on sizes by name that hold in every call.
    """

    __slots__ = ("assumptions", "params")

    def __init__(self, params: object = None, *,
                 assumptions: tuple[Condition, ...] | list[Condition] = ()) -> None:  # fmt: skip
        self.params = params
        self.assumptions = tuple(assumptions)


__all__ = ["Dim", "Hint", "Shapes", "of"]
