"""What is said about sizes: relations, conditions made of them, and facts with their lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd

from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.expr import (
    ZERO,
    Expr,
    Int,
    Poly,
    Sym,
    as_expr,
    evaluate,
    from_terms,
    substitute,
    terms_of,
)


@dataclass(frozen=True, slots=True)
class Relation:
    """`expr op 0`, where op is "==", "!=" or "<="."""

    op: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Junction:
    """All parts hold, or at least one."""

    every: bool
    parts: tuple[Condition, ...]


Condition = Relation | Junction | bool


@dataclass(frozen=True, slots=True)
class Fact:
    """`left op right` holds; `at` is the user's line that needed it."""

    op: str
    left: Expr
    right: Expr
    at: Loc = NOWHERE

    def text(self, names: Mapping[Expr, str] | None = None) -> str:
        """`2 <= s0`. names: what symbols are called instead."""
        shown: dict[Expr, Expr] = {s: Sym.make(n, None, None) for s, n in (names or {}).items()}
        left, right = (substitute(e, shown).text() for e in (self.left, self.right))
        return f"{left} {self.op} {right}"

    def holds(self, values: Mapping[Expr, int]) -> bool:
        """Whether it is true of these values of the symbols."""
        return OPERATIONS[self.op](evaluate(self.left, values) - evaluate(self.right, values))


@dataclass(frozen=True, slots=True)
class Ratio:
    """num / den as a float, where the division is exact or the quotient is only rounded once."""

    num: Expr
    den: int


OPERATIONS: dict[str, Callable[[int], bool]] = {
    "==": lambda d: d == 0,
    "!=": lambda d: d != 0,
    "<=": lambda d: d <= 0,
}


# ---------------------------------------------------------------- conditions
def equal(a: Expr | int, b: Expr | int) -> Condition:
    return settled(Relation("==", as_expr(a) - b))


def at_most(a: Expr | int, b: Expr | int) -> Condition:
    """a <= b"""
    return settled(Relation("<=", as_expr(a) - b))


def less(a: Expr | int, b: Expr | int) -> Condition:
    """a < b"""
    return at_most(as_expr(a) + 1, b)


def negation(c: Condition) -> Condition:
    """The condition that holds where `c` does not."""
    match c:
        case bool():
            return not c
        case Junction():
            return junction(not c.every, *(negation(p) for p in c.parts))
        case Relation("<="):
            return settled(Relation("<=", 1 - c.expr))
        case Relation():
            return Relation("!=" if c.op == "==" else "==", c.expr)


def junction(every: bool, *parts: Condition) -> Condition:
    """All of the parts, or any of them."""
    left = tuple(p for p in parts if p is not every)
    if any(isinstance(p, bool) for p in left):
        return not every
    if not left:
        return every
    return left[0] if len(left) == 1 else Junction(every, left)


def condition_text(c: Condition) -> str:
    match c:
        case Relation():
            return fact_of(c, NOWHERE).text()
        case Junction():
            return (" and " if c.every else " or ").join(condition_text(p) for p in c.parts)
    return str(c)


def settled(c: Relation) -> Condition:
    """A relation in one form, or its truth where the bounds of the symbols decide it."""
    c = normal(c)
    return by_range(c.op, c.expr.lo, c.expr.hi, c)


def by_range(op: str, lo: int | None, hi: int | None, unknown: Condition) -> Condition:
    if op == "<=":
        if hi is not None and hi <= 0:
            return True
        return False if lo is not None and lo > 0 else unknown
    if lo is not None and lo == hi == 0:
        return op == "=="
    apart = (lo is not None and lo > 0) or (hi is not None and hi < 0)
    return op == "!=" if apart else unknown


def normal(c: Relation) -> Relation:
    """Without a common factor; equalities with a positive first coefficient."""
    terms = terms_of(c.expr)
    common = gcd(*(n for m, n in terms.items() if m)) if terms else 0
    if common == 0:
        return c
    constant = terms.get((), 0)
    if c.op == "<=":
        # common*x + constant <= 0 is x <= floor(-constant / common)
        scaled = {m: n // common for m, n in terms.items() if m}
        scaled[()] = -(-constant // common)
        return Relation(c.op, from_terms(scaled))
    if constant % common:
        return Relation(c.op, Int.make(1))  # never equal
    first = c.expr.terms[0][0] if isinstance(c.expr, Poly) else 1
    scale = common if first > 0 else -common
    return Relation(c.op, from_terms({m: n // scale for m, n in terms.items()}))


def fact_of(c: Relation, at: Loc) -> Fact:
    """A relation with what is subtracted on the other side."""
    terms = terms_of(c.expr)
    left = from_terms({m: n for m, n in terms.items() if n > 0})
    right = from_terms({m: -n for m, n in terms.items() if n < 0})
    if c.op != "<=" and (isinstance(left, Int) or (isinstance(right, Sym) and left is not right)):
        left, right = right, left
    return Fact(c.op, left, right, at)


def floor_ratio(x: Ratio) -> Expr:
    """math.floor(num / den): rounding does not carry a quotient over an integer below 2**53."""
    return x.num // x.den


def round_ratio(x: Ratio) -> Expr:
    """round(num / den): up from more than a half, and from a half if the result is even then."""
    whole, rest = x.num // x.den, x.num % x.den
    return whole + (rest * 2 + whole % 2) // (x.den + 1)


def ceil_ratio(x: Ratio) -> Expr:
    return ZERO - (ZERO - x.num) // x.den


# ---------------------------------------------------------------- asked when the graph runs
class LateFactError(Exception):
    """What the compiled code relies on does not hold: the frame has to run eagerly."""


def suppose(op: str, difference: int) -> None:
    """Raise unless `difference op 0`. Errors: LateFactError."""
    if not _holds_now(op, difference):
        raise LateFactError(f"{difference} {op} 0 does not hold")


def check(message: str, *parts: tuple[str, int]) -> None:
    """A check of the user's: all parts hold, as in `suppose`. Errors: RuntimeError."""
    if not all(_holds_now(*part) for part in parts):
        raise RuntimeError(message)


def choose(op: str, difference: int, then: int, otherwise: int) -> int:
    """`then` where `difference op 0`, else `otherwise`."""
    return then if _holds_now(op, difference) else otherwise


def _holds_now(op: str, difference: int) -> bool:
    if op == "<=":
        return difference <= 0
    return (difference == 0) is (op == "==")
