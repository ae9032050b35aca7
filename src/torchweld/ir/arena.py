"""Arena: where temporaries of known lifetimes lie in one piece of memory."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Arena(Generic[T]):
    """Free gaps of the arena, kept sorted by offset."""

    align: int
    gaps: list[tuple[int, int]] = field(default_factory=list)  # (offset, bytes)
    live: set[T] = field(default_factory=set)
    slots: dict[T, tuple[int, int]] = field(default_factory=dict)  # (offset, bytes)
    top: int = 0

    def take(self, b: T, size: int) -> None:
        """Place `b` in the smallest gap that holds it, else at the end."""
        need = self._room(size)
        fits = [gap for gap in self.gaps if gap[1] >= need]
        if fits:
            gap = min(fits, key=lambda x: (x[1], x[0]))
            self.gaps.remove(gap)
            offset = gap[0]
            if gap[1] > need:
                insort(self.gaps, (offset + need, gap[1] - need))
        else:
            offset = self._at_end(need)
        self.live.add(b)
        self.slots[b] = offset, size

    def _room(self, size: int) -> int:
        return max(-(-size // self.align) * self.align, self.align)

    def _at_end(self, need: int) -> int:
        """Grow the arena, from the last gap if that touches the end."""
        if self.gaps and sum(self.gaps[-1]) == self.top:
            offset, _ = self.gaps.pop()
        else:
            offset = self.top
        self.top = offset + need
        return offset

    def give(self, b: T) -> None:
        """Return the slot of `b`, joining neighbouring gaps."""
        self.live.remove(b)
        start, size = self.slots[b]
        insort(self.gaps, (start, self._room(size)))
        joined: list[tuple[int, int]] = []
        for offset, n in self.gaps:
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + n)
            else:
                joined.append((offset, n))
        self.gaps = joined
