"""Index expressions as Triton text. 32 bits unless a value on the way needs more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torchweld.codegen.cpp_index import paren, sum_text
from torchweld.codegen.sizes import symbols_of
from torchweld.ir.expr import (
    ONE,
    Expr,
    FloorDiv,
    Ind,
    Int,
    LoopSym,
    Mod,
    Monomial,
    Poly,
    SizeSym,
    Sym,
    atoms,
    terms_of,
)
from torchweld.ir.loop import Axis
from torchweld.ir.plan import Kernel

# masked lanes run over the end by less than this
LIMIT = (1 << 31) - (1 << 22)


def reaches_of(k: Kernel) -> Iterator[Expr]:
    """What has to be within LIMIT for the coordinates and offsets of a kernel to fit in 32 bits."""
    outer = ONE
    for a in (*k.grid, *((k.lanes,) if k.lanes else ())):
        outer = outer * a.size
    yield outer
    for stage in k.stages:
        inner = ONE
        for a in stage.loops:
            inner = inner * a.size
        yield inner
    for b in k.args:
        last = b.offset
        for n, step in zip(b.shape, b.strides, strict=True):
            last = last + (n - 1) * step
        yield last
    yield from symbols_of(k)


def wide(e: Expr) -> bool:
    """Whether `e`, or anything it is made of, may not fit in 32 bits.

    What is made of sizes and loops over them is within a limit that is looked at before a call:
    it is a position in a loop or in memory.
    """
    if not isinstance(e, Int) and _sized(e):
        return False
    if e.lo is None or e.hi is None or e.lo < -LIMIT or e.hi > LIMIT:
        return True
    match e:
        case Poly():
            return any(abs(c) * _reach(m) > LIMIT or any(map(wide, m)) for c, m in e.terms)
        case FloorDiv() | Mod():
            return wide(e.num) or wide(e.den)
        case _:
            return False


def wide_value(e: Expr) -> bool:
    """The same of an expression that is used as a number: nothing limits it."""
    return wide(e) or (not isinstance(e, Int | Sym) and _sized(e))


def _sized(e: Expr) -> bool:
    """Whether `e` has no bounds only because sizes have none."""
    found = atoms(e)
    return any(isinstance(a, SizeSym | LoopSym) for a in found) and not any(
        isinstance(a, Ind) for a in found
    )


def _reach(m: Monomial) -> int:
    """A bound of the absolute value of a product whose factors are bounded."""
    total = 1
    for f in m:
        if f.lo is None or f.hi is None:
            return LIMIT + 1
        total *= max(abs(f.lo), abs(f.hi), 1)
    return total


Split = Callable[[FloorDiv | Mod], str | None]


def index_text(e: Expr, leaf: Callable[[Expr], str], split: Split = lambda e: None) -> str:
    """`e` with `leaf` naming symbols and loaded values, and `split` those quotients that have a
    name."""
    match e:
        case Int():
            return str(e.n)
        case Poly():
            return sum_text(e, lambda f: index_text(f, leaf, split))
        case FloorDiv() | Mod():
            return split(e) or _div_text(e, leaf, split)
        case _:
            return leaf(e)


def _div_text(e: FloorDiv | Mod, leaf: Callable[[Expr], str], split: Split) -> str:
    num, den = index_text(e.num, leaf, split), index_text(e.den, leaf, split)
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
