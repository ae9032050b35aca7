"""What a functools.lru_cache remembers, looked at without calling it."""

from __future__ import annotations

import gc
from typing import Any

Arguments = tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]

NOTHING = object()
_LINK = "_lru_list_elem"


class Remembered:
    """The memory of one cached function.

    Source: `lru_cache_tp_traverse` of CPython's _functoolsmodule.c says what the garbage collector
    is shown: for each link of a bounded memory its key, result and class, the dict, the mark that
    is in front of the names in a key.
    """

    __slots__ = ("_fn", "_kept", "_mark", "_table")

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        seen = gc.get_referents(fn)
        tables = [x for x in seen if type(x) is dict and x is not vars(fn)]
        self._table: dict[Any, Any] = tables[0] if tables else {}
        self._mark = next((x for x in seen if type(x) is object), NOTHING)
        # of a link that was looked at: (it, how many calls had missed by then, its result)
        self._kept: tuple[Any, int, Any] = (None, -1, NOTHING)

    def result(self, given: Arguments) -> Any:
        """What is remembered for these arguments, or NOTHING."""
        found = self._table.get(self._key(given), NOTHING)
        if type(found).__name__ != _LINK:
            return found
        misses = self._fn.cache_info().misses
        if self._kept[0] is not found or self._kept[1] != misses:
            self._kept = (found, misses, self._walked(found))
        return self._kept[2]

    def _key(self, given: Arguments) -> Any:
        args, named = given
        typed = self._fn.cache_parameters()["typed"]
        if not typed and not named:
            return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
        flat = (*args, *((self._mark,) if named else ()), *(x for pair in named for x in pair))
        return (*flat, *map(type, args), *(type(x) for _, x in named)) if typed else flat

    def _walked(self, link: Any) -> Any:
        shown = gc.get_referents(self._fn)
        for at in range(1, len(shown) - 2, 3):
            if getattr(shown[at + 2], "__name__", None) != _LINK:
                break
            if self._table.get(shown[at]) is link:
                return shown[at + 1]
        return NOTHING


class Gives:
    """Answers whether a cached function would give an object for arguments without running.

    missing: or remembers nothing, or a constant that is worth the same.
    """

    __slots__ = ("given", "memory", "missing", "result")

    def __init__(self, memory: Remembered, given: Arguments, result: object,
                 missing: bool) -> None:  # fmt: skip
        self.memory = memory
        self.given = given
        self.result = result
        self.missing = missing

    def __call__(self, _: object) -> bool:
        found = self.memory.result(self.given)
        return found is self.result or (self.missing and (
            found is NOTHING or _alike(found, self.result)))  # fmt: skip

    def __hash__(self) -> int:
        return hash(self.given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gives) and self.missing == other.missing and (
            self.given == other.given and self.result is other.result)  # fmt: skip

    def __repr__(self) -> str:
        return f"remembers {self.result!r}"


def _alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_alike, a, b))
    return bool(a == b)
