"""Keys of dicts and elements of sets whose class writes its own __hash__ or __eq__, or has them
written by `dataclass`.

Those of the user's are interpreted, at once. Keys of one capture that are equal are filed under one
object. How often Python asks is not followed, so a class that changes or prints something when it
is asked is refused.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, refuse
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    NotConstant,
    Value,
    constant,
    next_age,
)


class UserKey:
    """What equal keys are filed under. cap: to end the capture if another kind of key is met."""

    __slots__ = ("cap", "number", "value")

    def __init__(self, cap: Capture, number: int, value: Value) -> None:
        self.cap = cap
        self.number = number
        self.value = value

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        """Asked by dicts and sets if the hashes are equal."""
        if not isinstance(other, UserKey):
            raise refuse("W107", "keys of different classes with one hash", self.cap.loc())
        return other is self


def user_key(cap: Capture, x: InstanceValue) -> UserKey:
    """What an instance is filed under. Errors: GraphBreak."""
    before = (len(cap.effects), dict(cap.globals_written))
    cap.pure.append(next_age())
    try:
        found = _find(cap, x)
    except Raised:
        raise refuse("W107", f"an exception in __hash__ or __eq__ of {x.klass.__name__}",
                     cap.loc()) from None  # fmt: skip
    finally:
        cap.pure.pop()
    if (len(cap.effects), cap.globals_written) != before:
        raise refuse("W106", f"a side effect of __hash__ or __eq__ of {x.klass.__name__}",
                     cap.loc())  # fmt: skip
    return found


def _find(cap: Capture, x: InstanceValue) -> UserKey:
    number = _asked(cap, hash, x)
    same_hash = cap.user_keys.setdefault(number, [])
    for known in same_hash:
        if known.value is x or _asked(cap, bool, _inner(cap, operator.eq, known.value, x)):
            return known  # type: ignore[no-any-return]
    made = UserKey(cap, number, x)
    same_hash.append(made)
    return made


def _inner(cap: Capture, fn: Any, *args: Value) -> Value:
    assert cap.inner is not None
    return cap.inner(cap, Const(fn), list(args), {})


def _asked(cap: Capture, fn: Any, *args: Value) -> Any:
    try:
        return constant(_inner(cap, fn, *args))
    except NotConstant:
        raise refuse("W107", "a hash or an equality that is no constant", cap.loc()) from None


class FieldsKey:
    """A dict key that is equal to every instance of its class with equal fields."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type, fields: tuple[object, ...]) -> None:
        self.kind = kind
        self.fields = fields

    def __hash__(self) -> int:
        return hash((self.kind, self.fields))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldsKey) and (self.kind, self.fields) == (
            other.kind, other.fields)  # fmt: skip


def hashes_by_fields(kind: type) -> bool:
    """Whether equality and hash of a class are those that `dataclass` wrote."""
    if not dataclasses.is_dataclass(kind):
        return False
    written = (getattr(kind.__hash__, "__code__", None), getattr(kind.__eq__, "__code__", None))
    return all(c is not None and c.co_filename == "<string>" for c in written)
