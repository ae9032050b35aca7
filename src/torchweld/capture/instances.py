"""The attributes that instances have themselves: dictionaries, slots, vars()."""

from __future__ import annotations

import contextlib
import importlib
import threading
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from torchweld.capture.class_state import MISSING as MISSING
from torchweld.capture.class_state import mro_lookup
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.values.base import Const, DictValue, InstanceValue, TupleValue, Value
from torchweld.ir.source import Attr, InstanceDict, Item, Source

# the attributes of a weak reference made in the frame
TARGET, CALLBACK = "object", "callback"
_WEAK = "torchweld.capture.functions.weak_references"


def instance_get(cap: Capture, obj: InstanceValue, name: str) -> Value | None:
    """An entry of the instance dictionary, or None; guards its absence."""
    if name == "data" and obj.klass.__module__ in ("weakref", "_weakrefset"):
        importlib.import_module(_WEAK).check_held(cap, obj)
    if name in obj.attrs:
        known = obj.attrs[name]
        if known is not None:
            cap.touched.append(known)
        return known
    table, source = _own_table(obj)
    if table is None or source is None:
        return None
    if name in table:
        found = cap.wrap(table[name], Item.make(source, name, False))
        obj.attrs[name] = found
        return found
    cap.guard("lacks_key", source, name)
    obj.attrs[name] = None
    return None


def _own_table(obj: InstanceValue) -> tuple[dict[str, Any] | None, Source | None]:
    """The dictionary of an instance from outside, and where it is read from."""
    if obj.real is None:
        return None, None
    assert obj.source is not None
    if issubclass(obj.klass, threading.local):  # each thread has a dictionary of its own
        return obj.real.__dict__, Attr.make(obj.source, "__dict__")
    return instance_dict(obj.real), InstanceDict.make(obj.source)


def instance_replaced(cap: Capture, obj: InstanceValue, name: str) -> None:
    """Guards whether an attribute that is assigned was there, which decides where it stands among
    the others. What it was does not matter."""
    table, source = _own_table(obj)
    if name in obj.attrs or table is None:
        return
    if name in table:
        cap.guard("has_key", source, name)
    else:
        instance_get(cap, obj, name)


def instance_set(cap: Capture, obj: InstanceValue, name: str, value: Value | None) -> None:
    """Write (None: delete) an entry of the instance dictionary."""
    if value is not None and obj.attrs.get(name, MISSING) is None:
        del obj.attrs[name]  # a new entry goes to the end
        obj.written.pop(name, None)
    obj.attrs[name] = value
    obj.written[name] = None
    cap.mark(obj)


def instance_dict(real: object) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def slot_get(cap: Capture, obj: InstanceValue, raw: Any, name: str) -> Value | None:
    """What a slot holds, or None while it is empty; guards what was found."""
    key = raw.__name__
    if key in obj.attrs or obj.real is None:
        known = obj.attrs.get(key)
        if known is not None:
            cap.touched.append(known)
        return known
    assert obj.source is not None
    try:
        real = raw.__get__(obj.real)
    except AttributeError:
        cap.guard("predicate", obj.source, _EmptySlot(raw))
        obj.attrs[key] = None
        return None
    found = obj.attrs[key] = cap.wrap(real, Attr.make(obj.source, name))
    return found


class _EmptySlot:
    """Answers whether a slot of an object is still empty."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __call__(self, obj: object) -> bool:
        try:
            self.raw.__get__(obj)
        except AttributeError:
            return True
        return False

    def __hash__(self) -> int:
        return id(self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EmptySlot) and other.raw is self.raw


def vars_of(cap: Capture, obj: InstanceValue) -> Value:
    """vars(obj): one live window on the instance's attributes."""
    load_all_attrs(cap, obj)
    return VarsValue(cap, obj)


class VarsValue(DictValue):
    """vars(instance): what is written to it becomes an attribute, and the other way round."""

    __slots__ = ("of",)

    def __init__(self, cap: Capture, of: InstanceValue) -> None:
        super().__init__(dict)
        self.of = of
        self.items = _AttrsOf(cap, of, names=False)  # type: ignore[assignment]
        self.keys = _AttrsOf(cap, of, names=True)  # type: ignore[assignment]


class _AttrsOf(MutableMapping[object, Value]):
    """The attributes of an instance as `items` (or, with `names`, as `keys`) of a DictValue."""

    def __init__(self, cap: Capture, of: InstanceValue, names: bool) -> None:
        self.cap = cap
        self.of = of
        self.names = names
        self.slots = slot_names(of.klass)

    def __getitem__(self, key: object) -> Value:
        found = self.of.attrs.get(str(key))
        if found is None or key in self.slots:
            raise KeyError(key)
        return Const(key) if self.names else found

    def __setitem__(self, key: object, value: Value) -> None:
        if not isinstance(key, str):
            raise refuse("W107", "a key of vars() that is no text", self.cap.loc())
        if not self.names:
            instance_set(self.cap, self.of, key, value)

    def __delitem__(self, key: object) -> None:
        if not self.names:  # both windows show the same attributes
            self[key]
            instance_set(self.cap, self.of, str(key), None)

    def __iter__(self) -> Iterator[object]:
        return iter([k for k, v in self.of.attrs.items() if v is not None and k not in self.slots])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def drop_attr(real: object, name: str) -> None:
    """Delete an attribute of an instance, if it has it: the frame may have set it before."""
    table: Any = vars(real) if isinstance(real, threading.local) else instance_dict(real)
    if table is not None and table.pop(name, MISSING) is not MISSING:
        return
    slot = mro_lookup(type(real), name)
    if isinstance(slot, types.MemberDescriptorType):
        with contextlib.suppress(AttributeError):
            slot.__delete__(real)


def slot_names(kind: type) -> frozenset[str]:
    """Names of the attributes that live in slots."""
    return frozenset(
        name for base in kind.__mro__ if not _has_no_slots(base)
        for name, raw in vars(base).items() if isinstance(raw, types.MemberDescriptorType)
    )  # fmt: skip


def _has_no_slots(base: type) -> bool:
    """Whether a class is one of the many modules, made in Python without `__slots__`.

    Their own attribute look-up asks for `__dict__` each time.
    """
    return issubclass(base, torch.nn.Module) and "__slots__" not in vars(base)


def load_all_attrs(cap: Capture, obj: InstanceValue) -> None:
    """Read the whole instance dictionary, in order, and guard its keys."""
    if obj.real is None:
        return
    table = instance_dict(obj.real) or {}
    assert obj.source is not None
    cap.guard("keys", InstanceDict.make(obj.source), tuple(table))
    before = dict(obj.attrs)
    obj.attrs.clear()
    for name in table:
        if name in before and (before[name] is not None or name in obj.written):
            obj.attrs[name] = before.pop(name)
        else:
            before.pop(name, None)
            instance_get(cap, obj, name)
    obj.attrs.update(before)


def exception_member(cap: Capture, obj: InstanceValue, name: str, cont: Cont | None) -> None:
    """args, __cause__, value, ... of an exception."""
    found = obj.attrs.get(name)
    if found is None and obj.real is not None:
        raise refuse("W107", f"attribute {name} of a {obj.klass.__name__} from outside", cap.loc())
    if found is None and name in ("__cause__", "__context__"):
        found = Const(None)
    elif found is None and name == "__traceback__":
        found = InstanceValue(types.TracebackType)  # nothing can be read from it
    elif found is None and name == "__suppress_context__":
        found = Const(False)
    elif found is None and name in ("value", "code") and issubclass(
            obj.klass, StopIteration | SystemExit):  # fmt: skip
        args = obj.attrs.get("args")
        items = cap.force_items(args.items) if isinstance(args, TupleValue) else []
        found = items[0] if items else Const(None)
    if found is None:
        raise refuse("W107", f"attribute {name} of {obj.klass.__name__}", cap.loc())
    cap.deliver(found, cont)
