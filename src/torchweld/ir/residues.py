"""Equalities that say which remainder a size leaves when it is divided by a number."""

from __future__ import annotations

from itertools import permutations
from math import gcd

from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Sym, terms_of


def residue_in(e: Expr) -> tuple[Expr, int, int] | None:
    """(n, d, r) if `e` is 0 exactly where n % d is r, and n is a size or the quotient of one: of
    (a*n + b) % d - c and n - d * (n // d) - r, which may be multiplied by symbols that are not 0.
    """
    terms = terms_of(e)
    shared = set.intersection(*(set(m) for m in terms)) if terms else set()
    shared = {x for x in shared if isinstance(x, Sym) and (x.lo or 0) > 0}
    parts = {tuple(x for x in m if x not in shared): c for m, c in terms.items()}
    r = parts.pop((), 0)
    if len(parts) == 1:
        ((m, c),) = parts.items()
        if len(m) == 1 and isinstance(m[0], Mod) and abs(c) == 1 and isinstance(m[0].den, Int):
            return _of_remainder(m[0].num, m[0].den.n, -r * c)
    if len(parts) == 2:
        for sign in (1, -1):
            for (m, c), (k, f) in permutations(parts.items()):
                if len(m) == len(k) == 1 and _is_size(m[0]) and c == sign and (
                        k[0] is m[0] // -(sign * f) if sign * f < 0 else False):  # fmt: skip
                    return m[0], -(sign * f), -r * sign
    return None


def _is_size(x: Expr) -> bool:
    quotient = isinstance(x, FloorDiv) and isinstance(x.num, Sym) and isinstance(x.den, Int)
    return quotient or isinstance(x, Sym)


def _of_remainder(num: Expr, d: int, r: int) -> tuple[Expr, int, int] | None:
    """What n % d is where (a*n + b) % d is r."""
    terms = terms_of(num)
    b = terms.pop((), 0)
    if len(terms) != 1 or not 0 <= r < d:
        return None
    ((m, a),) = terms.items()
    if len(m) != 1 or not _is_size(m[0]) or gcd(a, d) != 1:
        return None
    return m[0], d, (r - b) * pow(a, -1, d) % d


def all_divided(e: Expr) -> list[tuple[Sym, int]]:
    """(n, d) of each n if `e` is a product of n and the same of d * (n // d), one less the other:
    it is 0 exactly where every n % d is 0, since n // d of positive n is too small else."""
    terms = terms_of(e)
    if len(terms) != 2 or () in terms:
        return []
    for sign in (1, -1):
        (m, c), (k, f) = list(terms.items())[::sign]
        left, right, product = [x for x in m if x not in k], [x for x in k if x not in m], -c
        found: list[tuple[Sym, int]] = []
        for x in right:
            if not isinstance(x, FloorDiv) or not isinstance(x.den, Int) or x.num not in left or (
                    not isinstance(x.num, Sym) or (x.num.lo or 0) < 1):  # fmt: skip
                break
            left.remove(x.num)
            product *= x.den.n
            found.append((x.num, x.den.n))
        else:
            plain = all(isinstance(x, Sym) and (x.lo or 0) > 0 for x in set(m) & set(k))
            if len(found) > 1 and not left and product == f and plain:
                return found
    return []
