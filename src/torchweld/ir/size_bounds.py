"""Between which numbers an expression of sizes lies, by the bounds of its symbols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm

from torchweld.ir.expr import (
    ZERO,
    Expr,
    FloorDiv,
    Int,
    Mod,
    Monomial,
    Poly,
    Sym,
    as_expr,
    from_terms,
    substitute,
    terms_of,
)

Interval = tuple[int | None, int | None]


class Intervals:
    """Bounds of expressions, each found once as long as no symbol gets other bounds."""

    def __init__(self) -> None:
        self._symbols: dict[Expr, Interval] = {}  # of those whose bounds are not their own
        self._narrowed: dict[Expr, Expr] = {}  # a symbol -> the same with its bounds of now
        self._found: dict[Expr, Interval] = {}
        self._lowest: dict[Expr, int | None] = {}

    def narrow(self, symbol: Sym, lo: int | None, hi: int | None) -> None:
        """From now on the symbol is in these bounds."""
        self._symbols[symbol] = lo, hi
        self._narrowed[symbol] = Sym.make(symbol.name, lo, hi)
        self._clear()

    def forget(self, symbol: Expr) -> None:
        """The symbol is no more: it is known by others."""
        self._symbols.pop(symbol, None)
        self._narrowed.pop(symbol, None)
        self._clear()

    def _clear(self) -> None:
        self._found.clear()
        self._lowest.clear()

    def rebuilt(self, e: Expr) -> Expr:
        """The expression as it is simplified by the bounds of now."""
        return substitute(e, self._narrowed) if self._narrowed else e

    def of(self, e: Expr) -> Interval:
        """The least and the largest value of an expression; None where there may be no bound."""
        found = self._found.get(e)
        if found is None:
            found = self._found[e] = self._bounds(e)
        return found

    def _bounds(self, e: Expr) -> Interval:
        match e:
            case Sym():
                return self._symbols.get(e, (e.lo, e.hi))
            case FloorDiv():
                lo, hi = _of_quotient(self.of(e.num), self.of(e.den))
            case Mod():
                lo, hi = _of_remainder(self.of(e.num), self.of(e.den))
            case Poly():
                above = self._least(-e)
                lo, hi = self._least(e), None if above is None else -above
            case _:
                return e.lo, e.hi
        return most(lo, e.lo), least(hi, e.hi)

    def _least(self, e: Expr) -> int | None:
        """A lower bound of a sum."""
        if e not in self._lowest:
            terms = terms_of(e)
            found = _sum([self._of_term(c, m)[0] for m, c in terms.items()])
            if found is None and any(len(m) > 1 for m in terms):
                found = self._by_excess(terms.items())
            if found is None:
                found = self._by_division(terms.items())
            self._lowest[e] = found
        return self._lowest[e]

    def _of_term(self, coefficient: int, factors: Monomial) -> Interval:
        """Bounds of a product of atoms and a number."""
        ends = [self.of(f) for f in factors]
        if len(ends) == 1:
            lo, hi = (None if n is None else coefficient * n for n in ends[0])
            return (lo, hi) if coefficient > 0 else (hi, lo)
        if all(lo is not None and lo >= 0 for lo, _ in ends):
            lo, hi = coefficient, coefficient
            for a, b in ends:
                lo = lo * (a or 0)
                hi = None if hi is None or b is None else hi * b
            return (lo, hi) if coefficient > 0 else (hi, lo)
        lo, hi = coefficient, coefficient
        for a, b in ends:
            if a is None or b is None or hi is None:
                return None, None
            corners = (lo * a, lo * b, hi * a, hi * b)
            lo, hi = min(corners), max(corners)
        return lo, hi

    def _by_excess(self, terms: Iterable[tuple[Monomial, int]]) -> int | None:
        """s0*s1 - s0 is at least 2 where both are at least 2: each atom is written as its least
        value and what it has more than that."""
        more: dict[Expr, Expr] = {}
        total = ZERO
        for m, c in terms:
            product = as_expr(c)
            for x in m:
                if x not in more:
                    lo, hi = self.of(x)
                    rest = Sym.make(f"_{len(more)}", 0, None)
                    if lo is None and hi is None:
                        return None
                    more[x] = rest + lo if lo is not None else as_expr(hi or 0) - rest
                product = product * more[x]
            total = total + product
        return total.lo

    def _by_division(self, terms: Iterable[tuple[Monomial, int]]) -> int | None:
        """7*((n + 6)//7) - n is at least 0: d*(x//d) is one of x - d + 1, ..., x."""
        divided = {m: m[0] for m, _ in terms if len(m) == 1 and isinstance(m[0], FloorDiv)}
        quotients = {m: q for m, q in divided.items() if isinstance(q.den, Int)}
        if not quotients:
            return None
        scale = lcm(*(q.den.value for q in quotients.values()))
        total = from_terms({m: c * scale for m, c in terms if m not in quotients})
        for m, c in terms:
            if m in quotients:
                num, den = quotients[m].num, quotients[m].den.value
                total = total + (num - (den - 1 if c > 0 else 0)) * (c * scale // den)
        lo = self.of(total)[0]
        return None if lo is None else -(-lo // scale)


def _of_quotient(num: Interval, den: Interval) -> Interval:
    (n, m), (d, e) = num, den
    if d is None or d <= 0:
        return None, None
    lo = None if n is None else n // d if n < 0 else 0 if e is None else n // e
    hi = None if m is None else m // d if m >= 0 else -1 if e is None else m // e
    return lo, hi


def _of_remainder(num: Interval, den: Interval) -> Interval:
    hi = None if den[1] is None else den[1] - 1
    return 0, least(hi, num[1]) if num[0] is not None and num[0] >= 0 else hi


def _sum(parts: Sequence[int | None]) -> int | None:
    total = 0
    for n in parts:
        if n is None:
            return None
        total += n
    return total


def least(a: int | None, b: int | None) -> int | None:
    """The smaller one; None is no bound."""
    return b if a is None else a if b is None else min(a, b)


def most(a: int | None, b: int | None) -> int | None:
    """The larger one; None is no bound."""
    return b if a is None else a if b is None else max(a, b)
