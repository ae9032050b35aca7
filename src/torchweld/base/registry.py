"""Tables with one owner per key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Registry(Generic[K, V]):
    """A table filled at import time: every key is registered exactly once.

    Errors: KeyError on a second registration, naming both owners.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows: dict[K, V] = {}

    def add(self, key: K, value: V) -> V:
        if key in self._rows:
            raise KeyError(
                f"{self.name}: {key!r} is registered twice: {self._rows[key]!r}, {value!r}"
            )
        self._rows[key] = value
        return value

    def register(self, *keys: K) -> Callable[[V], V]:
        """Decorator form of `add` for one value under several keys."""

        def decorate(value: V) -> V:
            for key in keys:
                self.add(key, value)
            return value

        return decorate

    def get(self, key: K) -> V | None:
        """The row of `key`, or None if nothing was registered."""
        return self._rows.get(key)

    def __getitem__(self, key: K) -> V:
        return self._rows[key]

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def items(self) -> list[tuple[K, V]]:
        return list(self._rows.items())
