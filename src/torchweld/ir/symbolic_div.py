"""Division by sizes that are not known: quotients and remainders in one form, by what is provable.

    (i*n + j) // n   ->  i, where j is a loop over less than n
    x // (4*n)       ->  (x//4)//n            x % (4*n)  ->  4*((x//4)%n) + x%4

No quotient or remainder has a product as its divisor, so that the algebra can join them again.
`expr` and this module are one: each uses the other's functions when they are called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import gcd
from typing import TYPE_CHECKING

from torchweld.ir import expr as algebra

if TYPE_CHECKING:
    from torchweld.ir.expr import Expr, Monomial


def symbolic_div(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Quotient and remainder of `a` by `b`, which is positive and no constant."""
    if b.hi is not None and b.hi == b.lo and b.hi > 0:
        n = algebra.as_expr(b.hi)
        return a // n, a % n
    exact, rest = _reduced(a, b)
    if rest is algebra.ZERO or fits(rest, b):
        return exact, rest
    if rest.hi is not None and rest.hi < 0 and _at_least(rest + b, 0):  # (2*n - 1) // n
        return exact - 1, rest + b
    q, r = _by_factors(rest, b)
    return exact + q, r


def _reduced(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`a` as exact * b + rest, with all of `b` that can be seen taken out."""
    lead, scale = next(iter(algebra.terms_of(b).items()))
    exact = algebra.ZERO
    again = True
    while again:
        again = False
        for m, c in algebra.terms_of(a).items():
            left = _without(m, lead)
            if left is None or c % scale:
                continue
            q = algebra.from_terms({left: c // scale})
            smaller = a - q * b
            if len(algebra.terms_of(smaller)) < len(algebra.terms_of(a)):
                exact, a, again = exact + q, smaller, True
                break
    return exact, a


def _without(m: Monomial, part: Monomial) -> Monomial | None:
    """The factors of `m` that are not in `part`; None if `part` is not all in it."""
    left = list(m)
    for f in part:
        if f not in left:
            return None
        left.remove(f)
    return tuple(left)


def _by_factors(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Quotient and remainder by one factor of `b` after the other: a number first."""
    terms = algebra.terms_of(b)
    ((m, c),) = terms.items() if len(terms) == 1 else (((b,), 1),)
    if any(f.lo is None or f.lo < 1 for f in m):
        m, c = (b,), 1
    if c == 1 and len(m) == 1:
        return _by_atom(a, b)
    first = algebra.as_expr(c) if c != 1 else m[0]
    other = algebra.from_terms({m if c != 1 else m[1:]: 1})
    q, r = a // first, a % first
    return q // other, (q % other) * first + r


def _by_atom(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    common = _common(a, b)
    if common is not None:
        g, x, y = common
        return x // y, (x % y) * g
    if isinstance(a, algebra.FloorDiv) and b.text() < a.den.text() and not a.den.is_const:
        return (a.num // b) // a.den, algebra.Mod.make(a, b)
    return algebra.FloorDiv.make(a, b), algebra.Mod.make(a, b)


def _common(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr] | None:
    """(g, x, y) with a = g*x and b = g*y, where g is a product of a number and positive atoms."""
    terms = (algebra.terms_of(a), algebra.terms_of(b))
    number = gcd(*(c for t in terms for c in t.values()))
    shared: list[Expr] = []
    for f in dict.fromkeys(next(iter(terms[1]))):
        if f.lo is not None and f.lo > 0:
            shared += [f] * min(m.count(f) for t in terms for m in t)
    if number == 1 and not shared:
        return None
    x, y = (algebra.from_terms({tuple((Counter(m) - Counter(shared)).elements()): c // number
                                for m, c in t.items()}) for t in terms)  # fmt: skip
    return algebra.from_terms({tuple(sorted(shared, key=lambda f: f.text())): number}), x, y


def fits(e: Expr, size: Expr) -> bool:
    """Whether it is proven that 0 <= e < size."""
    if e.lo is None or e.lo < 0:
        return False
    for symbolic in (False, True):
        most = largest(e, symbolic)
        if most is not None and _at_least(size - 1 - most, 0):
            return True
    return False


def _at_least(e: Expr, n: int) -> bool:
    found = least(e)
    return found is not None and found >= n


def largest(e: Expr, symbolic: bool = False) -> Expr | None:
    """An upper bound of `e` without loop indices; None if there is none.

    symbolic: made of sizes also where a number is known: n - 1 instead of 63.
    """
    total = algebra.ZERO
    for m, c in algebra.terms_of(e).items():
        ends = [_upper(f, symbolic) if c > 0 else _lower(f) for f in m]
        product = algebra.as_expr(c)
        for end in ends:
            if end is None:
                return None
            product = product * end
        total = total + product
    return total


def _upper(f: Expr, symbolic: bool) -> Expr | None:
    """What an atom is at most; None also if it may be negative."""
    if f.lo is None or f.lo < 0:
        return None
    match f:
        case algebra.LoopSym():
            return f.size - 1
        case algebra.SizeSym():
            return f
        case algebra.Mod() if f.hi is None or (symbolic and not f.den.is_const):
            return largest(f.den - 1, symbolic)
        case algebra.FloorDiv() if f.hi is None or (symbolic and not f.den.is_const):
            most = largest(f.num, symbolic)
            return None if most is None else most // f.den
    return None if f.hi is None else algebra.as_expr(f.hi)


def _lower(f: Expr) -> Expr | None:
    if isinstance(f, algebra.SizeSym):
        return f
    return None if f.lo is None or f.lo < 0 else algebra.as_expr(f.lo)


def least(e: Expr) -> int | None:
    """A lower bound of `e`: n*m - n is at least 2 where both are at least 2.

    Each atom is written as its least value and what it has more than that.
    """
    if e.lo is not None:
        return e.lo
    total = algebra.ZERO
    for m, c in algebra.terms_of(e).items():
        product = algebra.as_expr(c)
        for f in m:
            if f.lo is None:
                return None
            product = product * (algebra.Sym.make(f"{f.text()} - {f.lo}", 0, None) + f.lo)
        total = total + product
    return total.lo


def joined(terms: Mapping[Monomial, int], m: Monomial, c: int) -> Iterable[dict[Monomial, int]]:
    """Sums with c*(x % b)*y and c*(x // b)*b*y joined to c*x*y, where `m` is (x % b)*y."""
    for f in m:
        if not isinstance(f, algebra.Mod) or (f.den.is_const and len(m) == 1):
            continue
        left = _without(m, (f,))
        assert left is not None
        y = algebra.from_terms({left: c})
        product = algebra.terms_of((f.num // f.den) * f.den * y)
        if m in product or not all(terms.get(k) == n for k, n in product.items()):
            continue
        rest = {k: n for k, n in terms.items() if k != m and k not in product}
        for k, n in algebra.terms_of(f.num * y).items():
            rest[k] = rest.get(k, 0) + n
        yield rest
