"""What was done to a set: the order in which Python goes through one depends on its history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Step = tuple[str, tuple[object, ...]]


class Past:
    """Calls of methods of a set, in order. A set among the arguments is given by its own past.

    begins: how the set came to be if it was not empty: (past of another one, method, arguments).
    """

    __slots__ = ("begins", "steps")

    def __init__(self, begins: tuple[Past, str, tuple[object, ...]] | None = None,
                 steps: Iterable[Step] = ()) -> None:  # fmt: skip
        self.begins = begins
        self.steps = list(steps)

    def copy(self) -> Past:
        """The same, to which nothing will be added."""
        return Past(self.begins, self.steps)

    def elements(self) -> Iterator[Any]:
        """Every element that was ever named."""
        begins = () if self.begins is None else ((self.begins[1], (self.begins[0],
                                                                   *self.begins[2])),)  # fmt: skip
        for name, given in (*begins, *self.steps):
            x: Any
            for x in given:
                if isinstance(x, Past):
                    yield from x.elements()
                elif name in ("add", "discard"):
                    yield x
                else:
                    yield from x

    def made(self) -> Any:
        """A new set with this past."""
        if self.begins is None:
            return self.repeated(set())
        first, name, given = self.begins
        return self.repeated(_done(first.made(), name, given))

    def repeated(self, box: Any) -> Any:
        """The set after the same was done to it."""
        for name, given in self.steps:
            _done(box, name, given)
        return box


def _done(box: Any, name: str, given: tuple[object, ...]) -> Any:
    return getattr(box, name)(*(g.made() if isinstance(g, Past) else g for g in given))
