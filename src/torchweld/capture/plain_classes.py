"""Classes written in C whose objects never change: numbers, dates and formats.

They are known by name, since few programs import them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torchweld.capture.predicates import Reduces
from torchweld.capture.session import Capture
from torchweld.capture.values.base import Const, Value
from torchweld.ir.source import Source

_NAMES = {
    "decimal": ("Decimal",), "_struct": ("Struct",),
    "datetime": ("date", "time", "datetime", "timedelta", "timezone"),
}  # fmt: skip
# what they say about the present
_IMPURE = frozenset(("now", "today", "utcnow", "fromtimestamp", "timestamp", "astimezone",
                     "__reduce__", "__reduce_ex__"))  # fmt: skip


def is_plain(kind: type) -> bool:
    """Whether objects of a class are worth the same for ever."""
    names = _NAMES.get(kind.__module__)
    return names is not None and kind.__name__ in names


def is_typing(obj: object) -> bool:
    """Whether an object is a type as `typing` writes it."""
    return type(obj).__module__ == "typing"


def is_pure(fn: Any, owner: object) -> bool:
    """Whether a method written in C depends on its arguments only; owner: its class."""
    return isinstance(owner, type) and is_plain(owner) and fn.__name__ not in _IMPURE


def wrap_plain(cap: Capture, obj: Any, source: Source) -> Value:
    """One from outside: guarded by what it consists of."""
    if type(obj).__name__ == "Struct":  # which cannot be copied
        cap.guard("is", source, obj)
    else:
        cap.guard("predicate", source, Reduces(obj))
    return Const(obj, source)


def guard_context(cap: Capture, obj: object) -> None:
    """Guard how decimal numbers are computed, if `obj` is one."""
    if type(obj).__module__ == "decimal":
        cap.guard("state", None, (decimal_context, decimal_context()))


def decimal_context() -> str:
    """The precision, rounding and traps of this thread."""
    ask: Callable[[], Any] = sys.modules["decimal"].getcontext
    now = ask()
    kept = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    return repr([*(getattr(now, k) for k in kept), [s for s, on in now.traps.items() if on]])
