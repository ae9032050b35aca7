"""Where generated lines go: nested loops with names that are visible inside of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torchweld.ir.expr import Expr, Sym


class Val(NamedTuple):
    """A C++ expression without side effects: a name or a literal.

    `vec`: one value per lane. `level`: the outermost loop level at which it is visible.
    """

    text: str
    vec: bool
    level: int


@dataclass(slots=True)
class Level:
    """One open loop: its header, the lines collected so far, and what they named."""

    head: str
    tail: str
    syms: tuple[Sym, ...]
    lines: list[str] = field(default_factory=list)
    memo: dict[object, Val] = field(default_factory=dict)


class Nesting:
    """A stack of open loops. Lines can still be added before any open loop, in its parent."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[Level] = []
        self.depth_of: dict[Expr, int] = {}

    @property
    def innermost(self) -> int:
        return len(self.levels) - 1

    def open(self, head: str, tail: str, *syms: Sym) -> None:
        for s in syms:
            self.depth_of[s] = len(self.levels)
        self.levels.append(Level(head, tail, syms))

    def close(self) -> None:
        """Ends the innermost loop: it becomes lines of its parent."""
        level = self.levels.pop()
        for s in level.syms:
            del self.depth_of[s]
        out = self.levels[-1].lines
        if level.head:
            out.append(level.head)
        out += [f"  {line}" for line in level.lines] if level.head else level.lines
        if level.tail:
            out.append(level.tail)

    def line(self, text: str, level: int | None = None) -> None:
        self.levels[self.innermost if level is None else level].lines.append(text)

    def recall(self, key: object) -> Val | None:
        for level in reversed(self.levels):
            hit = level.memo.get(key)
            if hit is not None:
                return hit
        return None
