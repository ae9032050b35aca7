"""Hash-consing: structurally equal nodes are one object, so equality is identity.

Source: Filliatre and Conchon 2006, "Type-safe modular hash-consing".
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T", bound="Interned")


class Interned:
    """Base of frozen tree nodes. `Node.make(*fields)` returns the one node with these fields.

    A subclass declares `__slots__` with its field names in order (plus anything derived, filled by
    `_derive`). Equality and hash are those of object: identity. Fields must be hashable; children
    are interned already, so hashing is one level deep.
    """

    __slots__ = ("__weakref__", "_key")
    _fields: ClassVar[tuple[str, ...]] = ()
    _table: ClassVar[WeakValueDictionary[Any, Interned]] = WeakValueDictionary()
    _key: tuple[Any, ...]

    @classmethod
    def make(cls: type[T], *values: Any) -> T:
        key = (cls, *values, *map(type, values))
        found = Interned._table.get(key)
        if found is not None:
            return found  # type: ignore[return-value]
        node = object.__new__(cls)
        for name, value in zip(cls._fields, values, strict=True):
            object.__setattr__(node, name, value)
        object.__setattr__(node, "_key", key)
        node._derive()
        Interned._table[key] = node
        return node

    def _derive(self) -> None:
        """Fill derived slots; called once, before the node is shared."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), tuple(getattr(self, f) for f in self._fields))

    def __deepcopy__(self, memo: object) -> Interned:
        return self

    def __copy__(self) -> Interned:
        return self


def _remake(cls: type[Interned], values: tuple[Any, ...]) -> Interned:
    return cls.make(*values)
