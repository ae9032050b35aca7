"""Items of objects that the frame has made in C: bytearrays, arrays of numbers, files."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont
from torchweld.capture.tables import FUNCTIONS
from torchweld.capture.values.base import Const, IteratorValue, Value
from torchweld.capture.values.owned import OwnedValue


def of_owned(cap: Capture, fn: Any, args: list[Value], cont: Cont | None) -> None:
    """A function of an object that the frame has made in C, the first of `args`."""
    FUNCTIONS[OwnedValue](cap, [Const(fn), *args], {}, cont)


def owned_iterator(cap: Capture, x: OwnedValue) -> IteratorValue | None:
    """The lines of a file, which ends where it is gone through; the items of an array."""
    if hasattr(x.klass, "__next__"):
        return IteratorValue(_reader(cap, x, next, lambda: [Const(None)]), x.klass)
    if not hasattr(x.klass, "__getitem__"):
        return None
    at = itertools.count()
    return IteratorValue(_reader(cap, x, item_or_none, lambda: [Const(next(at))]),
                         type(iter(x.twin)))  # fmt: skip


def _reader(cap: Capture, x: OwnedValue, fn: Any,
            args: Callable[[], list[Value]]) -> Callable[[], Value | None]:  # fmt: skip
    def step() -> Value | None:
        found: list[Value] = []
        of_owned(cap, fn, [x, *args()], found.append)
        end = isinstance(found[0], Const) and found[0].obj is None
        return None if end else found[0]

    return step


def item_or_none(x: Any, i: int) -> Any:
    """An item of an array of numbers, None behind its end."""
    return x[i] if i < len(x) else None


# what changes nothing
READS = frozenset((len, operator.getitem, operator.contains, item_or_none))
