"""Object identity: `is`, and guards that two outside objects are not one."""

from __future__ import annotations

import torch

from torchweld.capture.session import Capture
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    Mutable,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.ir.source import InstanceDict, Item, Source

_ALIASED = (Mutable, TensorValue, ArrayValue)
# the dicts of an nn.Module: nobody passes them as arguments
_INTERNAL = frozenset((*torch.nn.Module().__dict__, "__dict__"))


def same(cap: Capture, a: Value, b: Value) -> bool:
    """a is b. Two objects from outside that are not one now are guarded to stay two."""
    if isinstance(a, Const) and isinstance(b, Const):
        if a.cls() is not b.cls():
            return False
        if isinstance(a.obj, int | float | str | bytes | tuple | complex):
            return a is b or bool(a.obj == b.obj)
        return a.obj is b.obj
    if _is_empty(a) and _is_empty(b):
        return True
    if a is not b:
        guard_distinct(cap, a, b)
    return a is b or _one_is_the_other(cap, a, b) or _one_is_the_other(cap, b, a)


def _is_empty(x: Value) -> bool:
    """Whether a value is the empty tuple, of which there is one."""
    known = isinstance(x, TupleValue) and x.kind is tuple and not x.items
    return known or (isinstance(x, Const) and x.cls() is tuple and not x.obj)


def _one_is_the_other(cap: Capture, a: Value, b: Value) -> bool:
    """Whether `b` is the real object that was made for `a`."""
    return isinstance(b, Const) and id(a) in cap.private.reals and (
        cap.private.reals[id(a)] is b.obj)  # fmt: skip


def guard_distinct(cap: Capture, a: Value, b: Value) -> None:
    if a.source is None or b.source is None or a.source is b.source:
        return
    if isinstance(a, _ALIASED) and isinstance(b, _ALIASED) and (
            a.cls() is b.cls()):  # fmt: skip
        cap.guard("distinct", a.source, b.source)


def guard_changed(cap: Capture) -> None:
    """An outside object that the frame changes must stay another one than all others it read."""
    changed = [c for c in cap.changed if c.source is not None and c.real is not None]
    if not changed:
        return
    others = [v for v in cap.objects.values() if isinstance(v, Mutable) and v.source is not None]
    for cell in changed:
        for other in others:
            if other is not cell and type(other.real) is type(cell.real) and not (
                    _internal(other.source) and _internal(cell.source)):  # fmt: skip
                guard_distinct(cap, cell, other)


def _internal(source: Source | None) -> bool:
    """Is this a dict that nn.Module keeps for itself?"""
    return (isinstance(source, Item) and isinstance(source.base, InstanceDict)
            and source.key in _INTERNAL)  # fmt: skip
