"""Instances of the user's subclasses of int, float, str, bytes, set and frozenset."""

from __future__ import annotations

from typing import Any

from torchweld.capture.predicates import SameBase
from torchweld.capture.session import Capture
from torchweld.capture.state import raised, refuse
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    ListValue,
    NotConstant,
    SetValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.ir.source import Source

SIMPLE = (int, float, str, bytes)
SETS = (set, frozenset)


def base_of(kind: type) -> Any:
    """The built-in class that a class extends."""
    return next(b for b in kind.__mro__ if b in (*SIMPLE, *SETS))


def new_simple(cap: Capture, kind: type, args: list[Value]) -> InstanceValue:
    """int.__new__(kind, ...) and its like. Errors: Raised, GraphBreak."""
    base = base_of(kind)
    try:
        real = [constant(cap.unwrap(a)) for a in args]
    except NotConstant:
        why = f"a {kind.__name__} of a {args[0].cls().__name__}"
        raise refuse("W107", why, cap.loc()) from None
    try:
        return InstanceValue(kind, payload=Const(base(*real)))
    except Exception as error:
        raise raised(type(error), *error.args) from None


def new_set(cap: Capture, kind: type, args: list[Value]) -> InstanceValue:
    """set.__new__(kind), which is empty, or frozenset.__new__(kind, items)."""
    made = SetValue(base_of(kind))
    if made.kind is frozenset and args:
        given = cap.unwrap(args[0])
        if not isinstance(given, ListValue | TupleValue | SetValue):
            raise refuse("W107", f"a {kind.__name__} of a {args[0].cls().__name__}", cap.loc())
        items = given.items.values() if isinstance(given, SetValue) else (
            cap.force_items(given.items))  # fmt: skip
        for item in items:
            if not isinstance(item, Const):
                raise refuse("W107", f"a {kind.__name__} of objects", cap.loc())
            made.add(item.obj, item)
    return InstanceValue(kind, payload=made)


def base_value(obj: Any) -> Any:
    """The built-in part of an object; runs no code of its class."""
    base = base_of(type(obj))
    if base in (str, bytes):
        return base.__getitem__(obj, slice(None))
    return base.__pos__(obj)


def given_simple(cap: Capture, obj: Any, source: Source) -> InstanceValue:
    """One from outside that has attributes: its base's part is guarded by value."""
    base = base_of(type(obj))
    value = base_value(obj)
    cap.guard("predicate", source, SameBase(base, value))
    return InstanceValue(type(obj), source, obj, payload=Const(value))
