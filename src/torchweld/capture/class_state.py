"""What is in a class, and which of its attributes are data that may be assigned."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Any

from torch.utils.hooks import RemovableHandle

MISSING = object()
# whose modules' classes are not assigned to
UNWATCHED = ("torch", "builtins", "math", "operator", "collections", "functools", "typing", "enum",
              "types", "itertools", "abc", "contextlib", "dataclasses", "copy",
              "inspect")  # fmt: skip
HEAP_TYPE = 1 << 9  # of `__flags__`: attributes of the class can be assigned
ClassAttr = tuple[type, str]
ALL = ""  # among the names that were read: every one
_GONE = object()


def mro_lookup(kind: type, name: str) -> Any:
    """The raw class attribute, descriptors not applied; MISSING if there is none."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def users_hook(kind: type, name: str) -> Any:
    """What a class does for a special method, in Python or by a function that another class has
    under another name; None where C code does it as always."""
    for base in kind.__mro__:
        if name in vars(base):
            raw = vars(base)[name]
            borrowed = is_watched(base) and getattr(raw, "__objclass__", None) is not base
            return raw if isinstance(raw, types.FunctionType) or (
                borrowed and callable(raw)) else None  # fmt: skip
    return None


def is_watched(kind: type) -> bool:
    """Whether the user made a class."""
    return str(getattr(kind, "__module__", "")).split(".")[0] not in UNWATCHED


class ClassState:
    """What is in a class and its bases, to tell later what was assigned. Equal for one class.

    names: of the attributes that the capture reads, of whatever object; it may go on to read.
    tables: what is in classes, which states of other classes share.
    """

    __slots__ = ("found", "kind", "mro", "names")

    def __init__(self, kind: type, names: set[str], tables: dict[type, dict[str, object]]) -> None:
        self.kind, self.mro, self.names = kind, kind.__mro__, names
        self.found: dict[type, dict[str, object]] = {}
        for base in self.mro:
            if base.__flags__ & HEAP_TYPE:
                if base not in tables:
                    tables[base] = dict(vars(base))
                self.found[base] = tables[base]

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassState) and other.kind is self.kind

    def __repr__(self) -> str:
        return "as it was"

    def holds(self) -> bool:
        """Whether whatever was assigned in the meantime is nothing that the capture has read."""
        return self.kind.__mro__ == self.mro and not any(
            self.reads(name) and not _same(was, now) for _, name, was, now in self._assigned())

    def reads(self, name: str) -> bool:
        """Whether the capture may have read an attribute: by its name, or because it means
        something to Python, torch or another library that made a base."""
        special = name == "_fields" or (name.startswith("__") and name.endswith("__"))
        special = special and name != _REMEMBERED
        return special or name in self.names or ALL in self.names or any(
            name in vars(base) for base in self.mro if not is_users(base))

    def changed(self) -> Iterator[ClassAttr]:
        """The attributes that were read and hold other data by now."""
        for base, name, was, now in self._assigned():
            data = _GONE not in (was, now) and is_data(name, was) and is_data(name, now)
            if data and is_users(base) and self.reads(name):
                yield base, name

    def _assigned(self) -> Iterator[tuple[type, str, object, object]]:
        """Class, name, what was there and what is there now."""
        for base, before in self.found.items():
            now = vars(base)
            for name in {**before, **now}:
                was, is_ = before.get(name, _GONE), now.get(name, _GONE)
                if was is not is_:
                    yield base, name, was, is_


# what the first copy or pickle of an instance leaves in its class
_REMEMBERED = "__slotnames__"


def _same(a: object, b: object) -> bool:
    """Whether two constants are the same to whoever does not ask for their identity."""
    return type(a) is type(b) and type(a) in _PLAIN and repr(a) == repr(b)


_PLAIN = (bool, int, float, str, bytes)


def is_users(kind: type) -> bool:
    """Whether a class is the user's own, and an ordinary one."""
    module = str(getattr(kind, "__module__", "")).split(".")[0]
    if module == "torch" and kind is not RemovableHandle:  # which counts the hooks
        return False
    return bool(kind.__flags__ & HEAP_TYPE) and not issubclass(kind, enum.Enum | type)


def is_data(name: str, raw: object) -> bool:
    """Whether a class attribute is no method and means nothing to Python."""
    dunder = name.startswith("__") and name.endswith("__")
    return not dunder and not has_protocol(type(raw))


def has_protocol(kind: type) -> bool:
    return any(hasattr(kind, n) for n in ("__get__", "__set__", "__delete__"))
