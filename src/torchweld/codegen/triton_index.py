"""Index expressions as Triton text. 32 bits unless a value on the way needs more.

A division by a number that is no literal takes some 20 instructions, in every element. The
positions of a block lie side by side, so their quotients are that of the first one, or one more:

    q, r = weld.split(p, first, n, width)      p // n and p % n, of first <= p < first + width
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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


# --- positions of a block, divided by sizes


@dataclass(frozen=True, slots=True)
class Side:
    """Numbers side by side: their text, that of the first, and how many there are."""

    text: str
    first: str
    width: str


class Splits:
    """The quotients and remainders of one kernel. line: writes a line before any loop is open.

    point: the symbol p; block: the text of its block's number; points: of a block.
    """

    def __init__(self, point: Sym | None, block: str, points: int,
                 line: Callable[[str], None], size: Callable[[Expr], str]) -> None:  # fmt: skip
        self.point = point
        self.block = block
        self.points = points
        self.line = line
        self.size = size
        self.sides: dict[Expr, Side] = {}
        self.rests: dict[tuple[Expr, Expr], str] = {}

    def text(self, e: FloorDiv | Mod) -> str | None:
        """The name of a quotient or a remainder; None for one that is simply divided."""
        if self.point is None or self.points == 1 or not _of_sizes(e.den):
            return None
        if self._divided(e.num, e.den) is None:
            return None
        if isinstance(e, Mod):
            return self.rests[e.num, e.den]
        return self.sides[FloorDiv.make(e.num, e.den)].text

    def _side(self, e: Expr) -> Side | None:
        """`e` as numbers side by side, if that is what it is."""
        if e is self.point:
            if e not in self.sides:
                self.line(f"p0 = {self.block} * {self.points}")
                self.sides[e] = Side("p", "p0", str(self.points))
            return self.sides[e]
        if not isinstance(e, FloorDiv):
            return None
        if not isinstance(e.den, Int):
            return self._divided(e.num, e.den) if _of_sizes(e.den) else None
        inner = self._side(e.num)
        if inner is not None and e not in self.sides:
            n = e.den.n
            width = self._quotients(e.num, inner.width, n)
            self.sides[e] = Side(f"{paren(inner.text)} // {n}", f"{paren(inner.first)} // {n}",
                                 width)  # fmt: skip
        return self.sides.get(e)

    def _quotients(self, num: Expr, width: str, n: int) -> str:
        """How many quotients by `n` so many numbers have."""
        if num is self.point and self.points % n == 0:  # blocks begin at multiples of their size
            return str(self.points // n)
        return f"{paren(width)} // {n} + 2"

    def _divided(self, num: Expr, den: Expr) -> Side | None:
        """The quotient of numbers side by side; the remainder is noted beside it."""
        inner = self._side(num)
        if inner is None:
            return None
        if (num, den) not in self.rests:
            k, n = len(self.rests), self.size(den)
            self.line(f"q{k}, m{k} = weld.split({inner.text}, {inner.first}, {n}, {inner.width})")
            self.rests[num, den] = f"m{k}"
            self.sides[FloorDiv.make(num, den)] = Side(
                f"q{k}", f"{paren(inner.first)} // {n}", f"{paren(inner.width)} // {n} + 2")
        return self.sides[FloorDiv.make(num, den)]


def _of_sizes(e: Expr) -> bool:
    """Whether it is known before the kernel starts, and no literal."""
    return not isinstance(e, Int) and all(isinstance(a, SizeSym) for a in atoms(e))
