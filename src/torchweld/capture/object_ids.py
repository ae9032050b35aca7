"""Which object a value from outside is, where a frame relies on it."""

from __future__ import annotations

import weakref
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    FunctionValue,
    InstanceValue,
    Mutable,
    TensorValue,
    Value,
)


class ObjectId(Value):
    """id() of an object that the frame has made, which has one such value."""

    __slots__ = ("of",)

    def __init__(self, of: Value) -> None:
        super().__init__(None)
        self.of = of

    def cls(self) -> type:
        return int


class IsObject:
    """Answers whether an object is this one, which is not kept alive by the question.

    why: what relied on it, in words.
    """

    __slots__ = ("name", "object", "why")

    def __init__(self, obj: Any, why: str) -> None:
        self.object = weakref.ref(obj)
        self.name = type(obj).__name__
        self.why = why

    def __call__(self, other: object) -> bool:
        return self.object() is other

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IsObject) and self.object() is other.object()

    def __repr__(self) -> str:
        return f"is the {self.name} {self.why}"


def identity_of(cap: Capture, x: Value) -> Value:
    """id(x); of an object from outside it is guarded. Errors: GraphBreak W107 if it cannot be."""
    real: object = None
    if x.source is None and isinstance(x, Mutable | TensorValue | ArrayValue | FunctionValue):
        known = cap.ids.get(id(x))
        if known is None:
            known = cap.ids[id(x)] = ObjectId(x)
        return known
    if isinstance(x, TensorValue):
        real = cap.builder.reals.get(id(x))
    elif isinstance(x, InstanceValue):
        real = x.real
    if real is None or x.source is None or not hasattr(type(real), "__weakref__"):
        raise refuse("W107", "id() of an object of the frame", cap.loc())
    cap.guard("predicate", x.source, IsObject(real, "whose id() was asked"))
    return Const(id(real))
