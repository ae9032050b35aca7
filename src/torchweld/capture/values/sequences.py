"""Lists and deques from outside whose items are not read before somebody asks for them."""

from __future__ import annotations

import collections
from collections.abc import Callable

from torchweld.capture.values.base import ListValue, Mutable, Slot
from torchweld.ir.source import Source

Open = Callable[[], list[Slot]]


class GrowingList(ListValue):
    """A list from outside whose length is not guarded until its items are asked for.

    Loops append to such lists, which are longer in every round. `tail`: what was appended before.
    """

    __slots__ = ("open", "tail")

    def __init__(self, open_: Open | None, source: Source | None, real: object) -> None:
        Mutable.__init__(self, source, real)
        self.open: Open | None = open_
        self.tail: list[Slot] = []

    @property
    def items(self) -> list[Slot]:
        if self.open is not None:
            read, self.open = self.open, None
            self.tail = [*read(), *self.tail]
        return self.tail

    @items.setter
    def items(self, value: list[Slot]) -> None:
        self.open = None
        self.tail = value


class DequeValue(GrowingList):
    """A collections.deque, which forgets what is too much for it."""

    __slots__ = ("maxlen",)

    def __init__(self, items: list[Slot], maxlen: int | None, open_: Open | None = None,
                 source: Source | None = None, real: object = None) -> None:  # fmt: skip
        super().__init__(open_, source, real)
        self.tail = items
        self.maxlen = maxlen
        if open_ is None:
            self.trim()

    @property
    def items(self) -> list[Slot]:
        if self.open is not None:
            read, self.open = self.open, None
            self.tail = [*read(), *self.tail]
            self.trim()
        return self.tail

    @items.setter
    def items(self, value: list[Slot]) -> None:
        self.open = None
        self.tail = value
        self.trim()

    def trim(self) -> None:
        """Drop items from the left until no more are left than there may be."""
        if self.open is None and self.maxlen is not None:
            del self.tail[: max(0, len(self.tail) - self.maxlen)]

    def cls(self) -> type:
        return collections.deque
