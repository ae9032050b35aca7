"""Positions of a block divided by sizes that are not known: one division for a block.

A division by a number that is no literal takes some 20 instructions, in every element. The
positions of a block lie side by side, so their quotients are that of the first one, or one more:

    q, r = weld.split(p, first, n, width)      p // n and p % n, of first <= p < first + width
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchweld.codegen.cpp_index import paren
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, SizeSym, Sym, atoms


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
