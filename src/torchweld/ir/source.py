"""Source: how a value is found again at the start of a call.

One object answers both "how is this loaded" and "what does a guard talk about".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torchweld.base.intern import Interned


class Source(Interned):
    """A path from the call's arguments or from a pinned object to a value."""

    __slots__ = ()

    def text(self) -> str:
        """How a user would write it."""
        raise NotImplementedError


class Local(Source):
    """An argument of the captured frame: flat position and name."""

    __slots__ = ("index", "name")
    _fields: ClassVar[tuple[str, ...]] = ("index", "name")
    index: int
    name: str

    def text(self) -> str:
        return self.name


class Pinned(Source):
    """An object that the entry itself refers to (a function, a globals dict, a module, a class)."""

    __slots__ = ("label", "token")
    _fields: ClassVar[tuple[str, ...]] = ("token", "label")
    token: Token
    label: str

    def text(self) -> str:
        return self.label


class Token:
    """Identity of a pinned object; equal only to itself. Holds the object."""

    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj = obj

    def __hash__(self) -> int:
        return id(self.obj) >> 4

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other.obj is self.obj


class Attr(Source):
    """getattr(base, name), by the full protocol."""

    __slots__ = ("base", "name")
    _fields: ClassVar[tuple[str, ...]] = ("base", "name")
    base: Source
    name: str

    def text(self) -> str:
        return f"{self.base.text()}.{self.name}"


class Item(Source):
    """base[key] of a dict (any immutable key) or of a list or tuple (int key), read raw."""

    __slots__ = ("base", "key", "sequence")
    _fields: ClassVar[tuple[str, ...]] = ("base", "key", "sequence")
    base: Source
    key: object
    sequence: bool

    def text(self) -> str:
        if isinstance(self.base, InstanceDict) and isinstance(self.key, str):
            return f"{self.base.base.text()}.{self.key}"
        if isinstance(self.base, Pinned) and self.base.label.startswith("globals"):
            return str(self.key)
        return f"{self.base.text()}[{self.key!r}]"


class Keyed(Source):
    """base[key] of a dict, where the key is a tensor, which is found at a source itself."""

    __slots__ = ("base", "key")
    _fields: ClassVar[tuple[str, ...]] = ("base", "key")
    base: Source
    key: Source

    def text(self) -> str:
        return f"{self.base.text()}[{self.key.text()}]"


class InstanceDict(Source):
    """vars(base): the instance dictionary."""

    __slots__ = ("base",)
    _fields: ClassVar[tuple[str, ...]] = ("base",)
    base: Source

    def text(self) -> str:
        return f"vars({self.base.text()})"


class ClosureCell(Source):
    """The contents of the index-th closure cell of a function."""

    __slots__ = ("base", "index", "name")
    _fields: ClassVar[tuple[str, ...]] = ("base", "index", "name")
    base: Source
    index: int
    name: str

    def text(self) -> str:
        return self.name


class CellContents(Source):
    """The contents of a cell object."""

    __slots__ = ("base",)
    _fields: ClassVar[tuple[str, ...]] = ("base",)
    base: Source

    def text(self) -> str:
        return f"{self.base.text()}.cell_contents"


class Reduced(Source):
    """base.__reduce__(): what an iterator of a built-in type still has to give."""

    __slots__ = ("base",)
    _fields: ClassVar[tuple[str, ...]] = ("base",)
    base: Source

    def text(self) -> str:
        return f"{self.base.text()}.__reduce__()"


class Applied(Source):
    """fn(base): a function without side effects, such as torch.from_numpy."""

    __slots__ = ("base", "fn")
    _fields: ClassVar[tuple[str, ...]] = ("base", "fn")
    base: Source
    fn: Callable[..., object]

    def text(self) -> str:
        return f"{getattr(self.fn, '__name__', self.fn)}({self.base.text()})"


class TypeOf(Source):
    """type(base)."""

    __slots__ = ("base",)
    _fields: ClassVar[tuple[str, ...]] = ("base",)
    base: Source

    def text(self) -> str:
        return f"type({self.base.text()})"


def is_passed(source: Source) -> bool:
    """Whether a path leads to an argument, or to an item of one: many are only passed on."""
    while type(source) is Item:
        source = source.base
    return type(source) is Local
