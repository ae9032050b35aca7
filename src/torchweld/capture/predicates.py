"""Guards that are predicates: what is asked of an object from outside at the start of a call."""

from __future__ import annotations

from typing import Any

import torch


class Equals:
    """Answers whether a value has the type and value that it had at capture."""

    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj = obj

    def __call__(self, other: object) -> bool:
        return type(other) is type(self.obj) and bool(other == self.obj)

    def __hash__(self) -> int:
        return hash(type(self.obj))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equals) and self(other.obj)

    def __repr__(self) -> str:
        return f"== {self.obj!r}"


class SameNumber:
    """Answers whether a NumPy number has the type and the bits that it had at capture."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __call__(self, other: object) -> bool:
        same: Any = other if type(other) is type(self.obj) else None
        return same is not None and bool(same.tobytes() == self.obj.tobytes())

    def __hash__(self) -> int:
        return hash((type(self.obj), self.obj.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameNumber) and self(other.obj)

    def __repr__(self) -> str:
        return f"== {self.obj!r}"


class Reduces:
    """Answers whether an object is made of the same as one that was there at capture."""

    __slots__ = ("kind", "parts")

    def __init__(self, obj: Any) -> None:
        self.kind = type(obj)
        self.parts = obj.__reduce__()[1]

    def __call__(self, other: Any) -> bool:
        return type(other) is self.kind and bool(other.__reduce__()[1] == self.parts)

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reduces) and other.kind is self.kind and (
            other.parts == self.parts)  # fmt: skip

    def __repr__(self) -> str:
        return f"== {self.kind.__name__}{self.parts!r}"


class IsInstance:
    """Answers whether isinstance says of an object what it said at capture."""

    __slots__ = ("kind", "said")

    def __init__(self, kind: type, said: bool) -> None:
        self.kind = kind
        self.said = said

    def __call__(self, other: object) -> bool:
        return isinstance(other, self.kind) is self.said

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IsInstance) and other.kind is self.kind

    def __repr__(self) -> str:
        return f"{'' if self.said else 'not '}an instance of {self.kind.__qualname__}"


class NoSubclass:
    """Answers whether a class is still not registered with an abstract one."""

    __slots__ = ("base", "kind")

    def __init__(self, kind: type, base: type) -> None:
        self.kind = kind
        self.base = base

    def __call__(self) -> bool:
        return not issubclass(self.kind, self.base)

    def __hash__(self) -> int:
        return hash((self.kind, self.base))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoSubclass) and (
            other.kind is self.kind and other.base is self.base)  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.kind.__qualname__} is no {self.base.__qualname__}"


class SameElements:
    """Answers whether a set has the same elements, of the same types, in the same order."""

    __slots__ = ("items", "kind")

    def __init__(self, kind: type, items: tuple[object, ...]) -> None:
        self.kind = kind
        self.items = items

    def __call__(self, other: object) -> bool:
        return type(other) is self.kind and len(other) == len(self.items) and all(  # type: ignore[arg-type]
            a is b or (type(a) is type(b) and a == b) for a, b in zip(other, self.items)  # type: ignore[call-overload]  # noqa: B905
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.items))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameElements) and other.kind is self.kind and (
            other.items == self.items)  # fmt: skip

    def __repr__(self) -> str:
        return f"== {self.items!r}"


class SameBase:
    """Answers whether the built-in part of an object is worth the same; no code of its class."""

    __slots__ = ("base", "value")

    def __init__(self, base: Any, value: Any) -> None:
        self.base = base
        self.value = value

    def __call__(self, other: object) -> bool:
        return isinstance(other, self.base) and self.base.__eq__(other, self.value) is True

    def __hash__(self) -> int:
        return hash((self.base, self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameBase) and (self.base, self.value) == (other.base, other.value)

    def __repr__(self) -> str:
        return f"== {self.value!r}"


class RefersTo:
    """Answers whether an object is the one that a weak reference refers to."""

    __slots__ = ("ref",)

    def __init__(self, ref: Any) -> None:
        self.ref = ref

    def __call__(self, obj: object) -> bool:
        return self.ref() is obj

    def __hash__(self) -> int:
        return id(self.ref)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefersTo) and other.ref is self.ref


def is_default(real: Any) -> bool:
    """Whether a generator is one that operators draw from which are given none."""
    return real is torch.default_generator or any(
        real is g for g in getattr(torch.cuda, "default_generators", ()))  # fmt: skip


class LikeGenerator:
    """Answers whether an object is a generator on the same device, and no default one."""

    __slots__ = ("device",)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, x: object) -> bool:
        return type(x) is torch.Generator and x.device == self.device and not is_default(x)

    def __hash__(self) -> int:
        return hash(self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LikeGenerator) and other.device == self.device
