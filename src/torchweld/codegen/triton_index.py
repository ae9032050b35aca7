"""Index expressions as Triton text. 32 bits unless a value on the way needs more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchweld.codegen.cpp_index import paren, sum_text
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Monomial, Poly, Sym, terms_of
from torchweld.ir.loop import Axis

# masked lanes run over the end by less than this
LIMIT = (1 << 31) - (1 << 22)


def wide(e: Expr) -> bool:
    """Whether `e`, or anything it is made of, may not fit in 32 bits."""
    if e.lo is None or e.hi is None or e.lo < -LIMIT or e.hi > LIMIT:
        return True
    match e:
        case Poly():
            return any(abs(c) * _reach(m) > LIMIT or any(map(wide, m)) for c, m in e.terms)
        case FloorDiv() | Mod():
            return wide(e.num) or wide(e.den)
        case _:
            return False


def _reach(m: Monomial) -> int:
    """A bound of the absolute value of a product whose factors are bounded."""
    total = 1
    for f in m:
        if f.lo is None or f.hi is None:
            return LIMIT + 1
        total *= max(abs(f.lo), abs(f.hi), 1)
    return total


def index_text(e: Expr, leaf: Callable[[Expr], str]) -> str:
    """`e` with `leaf` naming symbols and loaded values."""
    match e:
        case Int():
            return str(e.n)
        case Poly():
            return sum_text(e, lambda f: index_text(f, leaf))
        case FloorDiv() | Mod():
            return _div_text(e, leaf)
        case _:
            return leaf(e)


def _div_text(e: FloorDiv | Mod, leaf: Callable[[Expr], str]) -> str:
    num, den = index_text(e.num, leaf), index_text(e.den, leaf)
    quotient = isinstance(e, FloorDiv)
    if e.num.lo is None or e.num.lo < 0:  # Triton's // and % round toward zero
        return f"weld.{'int_floor_div' if quotient else 'int_mod'}({num}, {den})"
    return f"{paren(num)} {'//' if quotient else '%'} {paren(den)}"


def injective(e: Expr, axes: Iterable[Axis]) -> bool:
    """Whether two points of the axes never have the same `e`: strides that clear one another."""
    steps = {a.sym: a.size for a in axes if not (isinstance(a.size, Int) and a.size.n == 1)}
    found: list[tuple[int, int]] = []
    for factors, coef in terms_of(e).items():
        if not factors:
            continue
        size = steps.pop(factors[0], None) if isinstance(factors[0], Sym) else None
        if len(factors) > 1 or not isinstance(size, Int):
            return False
        found.append((abs(coef), size.n))
    reach = 0
    for step, n in sorted(found):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return not steps
