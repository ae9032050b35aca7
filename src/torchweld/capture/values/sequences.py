"""Lists, tuples and deques from outside whose items are not read before somebody asks for them."""

from __future__ import annotations

import collections
from collections.abc import Callable

from torchweld.capture.values.base import Lazy, ListValue, Mutable, Slot, TupleValue, Value
from torchweld.ir.source import Item, Source

Open = Callable[[bool], list[Slot]]
"""Reads the items. Its argument: whether the code says itself how many there are."""


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
        self.read()
        return self.tail

    @items.setter
    def items(self, value: list[Slot]) -> None:
        self.open = None
        self.tail = value

    def read(self, of: int | None = None) -> None:
        """Read the items if they were not. of: so many are unpacked."""
        if self.open is not None:
            assert isinstance(self.real, list)
            found = self.open(of == len(self.real) + len(self.tail))
            self.open, self.tail = None, [*found, *self.tail]

    def beside(self, at: int) -> Slot | None:
        """One item of a list that was not read, counted from either end: lists of other lengths
        have one too. None where it has none, or where all were read."""
        real, tail = self.real, self.tail
        if self.open is None:
            return None
        assert isinstance(real, list) and self.source is not None
        if -len(tail) <= at < 0:
            return tail[at]
        return _one(real, self.source, at + len(tail) if at < 0 else at)


class UnreadTuple(TupleValue):
    """A tuple from outside whose length is not guarded until its items are asked for."""

    __slots__ = ("_read", "open", "real")

    def __init__(self, open_: Open, kind: type, source: Source, real: tuple[object, ...]) -> None:
        Value.__init__(self, source)
        self.kind = kind
        self.open: Open | None = open_
        self.real = real
        self._read: list[Slot] = []

    @property
    def items(self) -> list[Slot]:
        self.read()
        return self._read

    @items.setter
    def items(self, value: list[Slot]) -> None:
        self.open = None
        self._read = value

    def read(self, of: int | None = None) -> None:
        """As of lists."""
        if self.open is not None:
            self._read, self.open = self.open(of == len(self.real)), None

    def beside(self, at: int) -> Slot | None:
        """As of lists."""
        if self.open is None:
            return None
        assert self.source is not None
        return _one(self.real, self.source, at)


def _one(real: list[object] | tuple[object, ...], source: Source, at: int) -> Slot | None:
    if not -len(real) <= at < len(real):
        return None
    return Lazy(real[at], Item.make(source, at, True))


class DequeValue(GrowingList):
    """A collections.deque, which forgets what is too much for it."""

    __slots__ = ("maxlen",)

    def beside(self, at: int) -> Slot | None:
        """None: which item is where depends on what it has forgotten."""
        return None

    def __init__(self, items: list[Slot], maxlen: int | None, open_: Open | None = None,
                 source: Source | None = None, real: object = None) -> None:  # fmt: skip
        super().__init__(open_, source, real)
        self.tail = items
        self.maxlen = maxlen
        if open_ is None:
            self.trim()

    @property
    def items(self) -> list[Slot]:
        self.read()
        return self.tail

    @items.setter
    def items(self, value: list[Slot]) -> None:
        self.open = None
        self.tail = value
        self.trim()

    def read(self, of: int | None = None) -> None:
        """As of lists."""
        if self.open is not None:
            found = self.open(False)
            self.open, self.tail = None, [*found, *self.tail]
            self.trim()

    def trim(self) -> None:
        """Drop items from the left until no more are left than there may be."""
        if self.open is None and self.maxlen is not None:
            del self.tail[: max(0, len(self.tail) - self.maxlen)]

    def cls(self) -> type:
        return collections.deque
