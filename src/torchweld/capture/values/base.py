"""Value: what the capture knows about one Python object.

A Value is met once per object: identity of Values is identity of the objects they stand for, so
aliasing is kept by construction. Mutable families are the cells of the abstract heap; `changed`
says that the real object (if it has a source) must be brought up to date at the end.
"""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from torchweld.capture.arrays.dtypes import NUMPY
from torchweld.capture.values.past import Past
from torchweld.ir.source import Source


class Value:
    """Base of all families. `source`: how the object is found again; None if made in the frame."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    def cls(self) -> type:
        """The Python type of the object."""
        raise NotImplementedError


class Const(Value):
    """An object known exactly: an immutable value, or one that is used by identity only."""

    __slots__ = ("obj",)

    def __init__(self, obj: object, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    @property
    def sample(self) -> object:
        """An object of the same class; the object itself where that is known."""
        return self.obj

    def cls(self) -> type:
        return type(self.obj)

    def __repr__(self) -> str:
        return f"Const({self.obj!r})"


class SizeValue(Const):
    """A number that is made of sizes that vary: a torch.SymInt or SymFloat of ours.

    Reading `obj` fixes the sizes.
    """

    __slots__ = ("number",)

    def __init__(self, number: Any) -> None:
        Value.__init__(self)
        self.number = number

    @property
    def obj(self) -> object:  # type: ignore[override]
        return self.number.node.fixed()

    @property
    def sample(self) -> object:
        return self.number.node.hint

    def cls(self) -> type:
        if isinstance(self.number, torch.SymBool):
            return bool
        return int if isinstance(self.number, torch.SymInt) else float

    def __repr__(self) -> str:
        return f"SizeValue({self.number})"


class Loose(Const):
    """An object from outside that is guarded by its type only.

    Reading `obj` guards which object it is, or with `how="equal"` what it is equal to; `real` is
    for those who guard what they use of it.
    """

    __slots__ = ("fixed", "guard", "how", "real")

    def __init__(self, real: object, guard: Callable[[str, Source, object], None],
                 source: Source, how: str = "is") -> None:  # fmt: skip
        Value.__init__(self, source)
        self.real = real
        self.guard = guard
        self.how = how
        self.fixed = False

    @property
    def obj(self) -> object:  # type: ignore[override]
        if not self.fixed:
            self.fixed = True
            assert self.source is not None
            self.guard(self.how, self.source, self.real)
        return self.real

    def cls(self) -> type:
        return type(self.real)


NONE, TRUE, FALSE = Const(None), Const(True), Const(False)


def boolean(x: object) -> Const:
    return TRUE if x else FALSE


class _Unbound(Value):
    """What LOAD_FAST_AND_CLEAR pushes for a local without a value."""

    __slots__ = ()


UNBOUND = _Unbound()


class TensorValue(Value):
    """A tensor: the FX node that computes it and a FakeTensor with its metadata."""

    __slots__ = ("fake", "kind", "node")

    def __init__(self, node: Node, fake: torch.Tensor, kind: type = torch.Tensor,
                 source: Source | None = None) -> None:  # fmt: skip
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.kind = kind

    def cls(self) -> type:
        return self.kind

    def __repr__(self) -> str:
        return f"Tensor({self.node.name}: {self.fake.dtype}{tuple(self.fake.shape)})"


class ArrayValue(Value):
    """A NumPy array: the tensor that has its memory.

    scalar: it is no array but a NumPy number, which nobody can write to.
    """

    __slots__ = ("scalar", "tensor")

    def __init__(self, tensor: TensorValue, scalar: bool = False,
                 source: Source | None = None) -> None:  # fmt: skip
        super().__init__(source)
        self.tensor = tensor
        self.scalar = scalar

    def cls(self) -> type:
        return NUMPY[self.tensor.fake.dtype].type if self.scalar else np.ndarray

    def __repr__(self) -> str:
        return f"Array({self.tensor!r})"


class Lazy:
    """An item of a container from outside that was not read yet."""

    __slots__ = ("obj", "source")

    def __init__(self, obj: object, source: Source) -> None:
        self.obj = obj
        self.source = source


Slot = Value | Lazy


class StandIn:
    """What real code holds in the place of a value that is not known as a Python object."""

    __slots__ = ()


class IdKey:
    """A dict key that is equal to itself only: an object hashed by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdKey) and other.value is self.value


_ages = itertools.count()


def next_age() -> int:
    """The age of what is made next."""
    return next(_ages)


class Mutable(Value):
    """A cell of the abstract heap. `real`: the object itself when it came from outside.

    age: a number that is larger for what was met or made later.
    """

    __slots__ = ("age", "changed", "real")

    def __init__(self, source: Source | None = None, real: object = None) -> None:
        super().__init__(source)
        self.real = real
        self.changed = False
        self.age = next(_ages)


class ListValue(Mutable):
    __slots__ = ("items",)

    def __init__(self, items: list[Slot], source: Source | None = None,
                 real: object = None) -> None:  # fmt: skip
        super().__init__(source, real)
        self.items = items

    def cls(self) -> type:
        return list


class TupleValue(Value):
    """A tuple, named tuple, torch.Size or other immutable tuple subclass."""

    __slots__ = ("items", "kind")

    def __init__(self, items: list[Slot], kind: type = tuple, source: Source | None = None) -> None:
        super().__init__(source)
        self.items = items
        self.kind = kind

    def cls(self) -> type:
        return self.kind


class DictValue(Mutable):
    """A dict, OrderedDict or defaultdict, keyed by `hash_key` of the key.

    `complete`: whether `items` has every key in order. A dict from outside starts incomplete: keys
    are read on demand, and `absent` remembers those that were found missing. attrs: what an
    OrderedDict has besides.
    """

    __slots__ = ("absent", "attrs", "complete", "factory", "items", "keys", "kind")

    def __init__(self, kind: type = dict, source: Source | None = None,
                 real: object = None) -> None:  # fmt: skip
        super().__init__(source, real)
        self.kind = kind
        self.items: dict[object, Slot] = {}
        self.keys: dict[object, Value] = {}
        self.absent: set[object] = set()
        self.complete = real is None
        self.factory: Value = NONE
        self.attrs: dict[str, Value] = {}

    def cls(self) -> type:
        return self.kind


class SetValue(Mutable):
    """A set or frozenset: key -> element.

    twin: a real set of the keys with the same history, for the order in which Python goes through
    it; None when that order is not known. past: that history, None if it is not known.
    """

    __slots__ = ("items", "kind", "past", "twin")

    def __init__(self, kind: type = set, source: Source | None = None, real: object = None) -> None:
        super().__init__(source, real)
        self.kind = kind
        self.items: dict[object, Value] = {}
        self.twin: set[object] | None = set() if real is None else None
        self.past: Past | None = Past()

    def add(self, key: object, item: Value) -> None:
        """Put one element in."""
        self.items.setdefault(key, item)
        self.do("add", (key,), (key,))

    def drop(self, key: object) -> None:
        """Take one element out if it is there."""
        self.items.pop(key, None)
        self.do("discard", (key,), (key,))

    def do(self, name: str, given: Any, noted: Any) -> Any:
        """What a method gives, called on the twin. noted: the arguments as the past has them."""
        if self.past is not None:
            self.past.steps.append((name, noted))
        return None if self.twin is None else getattr(self.twin, name)(*given)

    def cls(self) -> type:
        return self.kind


class InstanceValue(Mutable):
    """An object of a Python class.

    attrs: instance attributes read or written so far (None marks a deleted one); `written` names
    those that changed. payload: the built-in part of a subclass of list, dict, tuple, int, ...
    """

    __slots__ = ("attrs", "klass", "payload", "written")

    def __init__(self, klass: type, source: Source | None = None, real: object = None,
                 payload: Value | None = None) -> None:  # fmt: skip
        super().__init__(source, real)
        self.klass = klass
        self.attrs: dict[str, Value | None] = {}
        self.written: dict[str, None] = {}
        self.payload = payload

    def cls(self) -> type:
        return self.klass

    def __repr__(self) -> str:
        return f"Instance({self.klass.__name__})"


# what a built-in function may ask a value for
_ASKED = ("__str__", "__repr__", "__format__", "__hash__", "__eq__", "__index__", "__int__",
          "__float__", "__len__", "__iter__", "__getitem__", "__contains__", "__bool__", "__lt__",
          "__gt__", "__le__", "__ge__", "__ne__", "__abs__", "__round__", "__trunc__", "__floor__",
          "__ceil__", "__missing__")  # fmt: skip


def is_plain(x: InstanceValue) -> bool:
    """Whether a built-in function sees in an instance nothing but its built-in part."""
    for kind in x.klass.__mro__:
        if not kind.__flags__ & (1 << 9):
            return True
        if any(isinstance(vars(kind).get(name), types.FunctionType) for name in _ASKED):
            return False
    return True


class UserException(InstanceValue):
    """An exception whose class writes its own __init__: its arguments alone do not make it again,
    so it cannot leave the frame."""

    __slots__ = ()


class CellValue(Mutable):
    """A closure cell; `contents` is None while empty. place: where a real one's are found."""

    __slots__ = ("contents", "place")

    def __init__(self, contents: Slot | None, source: Source | None = None,
                 real: object = None, place: Source | None = None) -> None:  # fmt: skip
        super().__init__(source, real)
        self.contents = contents
        self.place = place

    def cls(self) -> type:
        return types.CellType


class FunctionValue(Value):
    """A function made in the frame."""

    __slots__ = ("attrs", "closure", "code", "defaults", "globals", "kwdefaults", "name",
                 "qualname")  # fmt: skip

    def __init__(self, code: types.CodeType, globals_: Value, closure: tuple[CellValue, ...],
                 defaults: list[Value], kwdefaults: dict[str, Value]) -> None:  # fmt: skip
        super().__init__(None)
        self.code = code
        self.globals = globals_
        self.closure = closure
        self.defaults = defaults
        self.kwdefaults = kwdefaults
        self.name = code.co_name
        self.qualname = code.co_qualname
        self.attrs: dict[str, Value] = {}

    def cls(self) -> type:
        return types.FunctionType


class BoundValue(Value):
    """A callable with its first argument bound: a method."""

    __slots__ = ("func", "self_")

    def __init__(self, func: Value, self_: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.func = func
        self.self_ = self_

    def cls(self) -> type:
        return types.MethodType


class PartialValue(Value):
    """functools.partial(func, *args, **kwargs)."""

    __slots__ = ("args", "func", "kind", "kwargs")

    def __init__(self, func: Value, args: list[Value], kwargs: dict[str, Value], kind: type,
                 source: Source | None = None) -> None:  # fmt: skip
        super().__init__(source)
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.kind = kind

    def cls(self) -> type:
        return self.kind


class SuperValue(Value):
    """super(klass, self)."""

    __slots__ = ("klass", "self_")

    def __init__(self, klass: type, self_: Value) -> None:
        super().__init__(None)
        self.klass = klass
        self.self_ = self_

    def cls(self) -> type:
        return super


class LateText(Value):
    """A text that is known only after the graph has run.

    parts: three values for each piece: what is formatted, its conversion, its format spec.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: list[Value]) -> None:
        super().__init__(None)
        self.parts = parts

    def cls(self) -> type:
        return str


class SliceValue(Value):
    """slice(start, stop, step) with a part that is not a plain constant."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Value, Value, Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.parts = parts

    def cls(self) -> type:
        return slice


class ViewValue(Value):
    """keys(), values() or items() of a dict."""

    __slots__ = ("of", "what")

    def __init__(self, of: DictValue, what: str) -> None:
        super().__init__(None)
        self.of = of
        self.what = what

    def cls(self) -> type:
        return {"keys": type({}.keys()), "values": type({}.values())}.get(
            self.what, type({}.items()))  # fmt: skip


class IteratorValue(Mutable):
    """An iterator that advances without running user code.

    step() gives the next Value, or None at the end. remake: writes the statements that make it
    again into a residual program, and gives its name. taken: how often one from outside was
    advanced.
    """

    __slots__ = ("kind", "remake", "step", "taken")

    def __init__(self, step: Callable[[], Value | None], kind: type,
                 remake: Callable[[Any], str] | None = None, source: Source | None = None,
                 real: object = None) -> None:  # fmt: skip
        super().__init__(source, real)
        self.step = step
        self.kind = kind
        self.remake = remake
        self.taken = 0

    def cls(self) -> type:
        return self.kind


class GeneratorValue(Mutable):
    """A suspended virtual frame: of a generator or a coroutine.

    read: gives the frame of one from outside, when it is asked for.
    """

    __slots__ = ("_frame", "finished", "kind", "read", "running")

    def __init__(self, frame: Any, kind: type = types.GeneratorType, source: Source | None = None,
                 real: object = None, read: Callable[[], Any] | None = None) -> None:  # fmt: skip
        super().__init__(source, real)
        self._frame, self.read = frame, read
        self.kind = kind
        self.finished = False
        self.running = False

    @property
    def frame(self) -> Any:
        if self.read is not None:
            self._frame, self.read = self.read(), None
        return self._frame

    def cls(self) -> type:
        return self.kind


_DICTS = (dict, collections.OrderedDict)


class NotConstant(Exception):
    """The value is not known as a Python constant."""


def constant(x: Slot) -> Any:
    """The Python object of a value that consists of constants. Errors: NotConstant."""
    match x:
        case Const():
            return x.obj
        case TupleValue():
            items = [constant(i) for i in x.items]
            return tuple(items) if x.kind is tuple else _tuple_of(x.kind, items)
        case ListValue() if x.cls() is list:
            return [constant(i) for i in x.items]
        case DictValue() if x.complete and x.kind in _DICTS:
            found = {constant(x.keys[k]): constant(v) for k, v in x.items.items()}
            return found if x.kind is dict else x.kind(found)
        case SetValue():
            return x.kind(constant(i) for i in x.items.values())
        case SliceValue():
            return slice(*(constant(p) for p in x.parts))
        case InstanceValue(payload=Const() as part) if is_plain(x):
            return part.obj
    raise NotConstant


def _tuple_of(kind: type, items: list[Any]) -> Any:
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def is_constant(x: Slot) -> bool:
    try:
        constant(x)
    except NotConstant:
        return False
    return True


def hash_key(x: Value) -> object:
    """What a dict or set files the value under: equal keys give equal results.

    Errors: TypeError for unhashable values, as Python.
    """
    match x:
        case Const():
            hash(x.obj)
            return x.obj
        case TupleValue():
            return tuple(hash_key(i) if isinstance(i, Value) else i.obj for i in x.items)
        case SetValue() if x.kind is frozenset:
            return frozenset(x.items)
        case ListValue() | DictValue() | SetValue():
            raise TypeError(f"unhashable type: '{x.cls().__name__}'")
        case _:
            return IdKey(x)
