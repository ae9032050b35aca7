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
    """What is in a class and its bases, to tell later what was assigned. Equal for one class."""

    __slots__ = ("found", "kind")

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.found = {base: dict(vars(base)) for base in kind.__mro__ if is_users(base)}

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassState) and other.kind is self.kind

    def __repr__(self) -> str:
        return "as it was"

    def changed(self) -> Iterator[ClassAttr]:
        """The attributes that hold other data by now."""
        for base, before in self.found.items():
            for name, now in vars(base).items():
                was = before.get(name)
                if was is not now and is_data(name, was) and is_data(name, now):
                    yield base, name


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
