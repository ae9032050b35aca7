"""Methods of object, type, BaseException and functions that classes written in Python call."""

from __future__ import annotations

import collections
import types

import torch

from torchweld.capture.attrs import (
    class_attr,
    generic_attr,
    no_attr,
)
from torchweld.capture.attrs_write import generic_del, generic_set
from torchweld.capture.calls import construct, construct_plain, new_instance
from torchweld.capture.functions.builtin import text_of
from torchweld.capture.functions.containers import collect
from torchweld.capture.identity import same
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import FUNCTIONS, function, klass, method
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    InstanceValue,
    ListValue,
    TupleValue,
    Value,
    boolean,
)

Args = list[Value]
Kwargs = dict[str, Value]


def _new(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """<built-in>.__new__(cls, ...)."""
    kind = args[0]
    if not (isinstance(kind, Const) and isinstance(kind.obj, type)):
        raise raised(TypeError, "__new__(X): X is not a type object")
    if issubclass(kind.obj, tuple) and len(args) > 1:
        collect(cap, args[1], lambda items: cap.deliver(new_instance(
            cap, kind.obj, [TupleValue(list(items))]), cont))  # fmt: skip
        return
    if issubclass(kind.obj, frozenset) and len(args) > 1:
        collect(cap, args[1], lambda items: cap.deliver(new_instance(
            cap, kind.obj, [TupleValue(list(items))]), cont))  # fmt: skip
        return
    if kind.obj.__flags__ & (1 << 9):
        cap.deliver(new_instance(cap, kind.obj, args[1:]), cont)
        return
    construct(cap, kind, kind.obj, args[1:], kwargs, cont, None)


for _base in (object, dict, list, tuple, collections.OrderedDict, collections.defaultdict, int,
              float, str, bytes, set, frozenset):  # fmt: skip
    if _base.__new__ not in FUNCTIONS:
        FUNCTIONS.add(_base.__new__, _new)


@method(tuple, "__new__")
def tuple_new(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _new(cap, args, kwargs, cont)


@method(object, "__init__")
def object_init(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(Const(None), cont)


@method((object, torch.nn.Module), "__getattribute__")
def object_getattribute(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    obj, name = args[0], text_of(cap, args[1])
    if not isinstance(obj, InstanceValue):
        raise refuse("W107", f"object.__getattribute__ of {obj.cls().__name__}", cap.loc())
    generic_attr(cap, obj, name, cont, no_attr)


@method(object, "__setattr__")
def object_setattr(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    obj, name = args[0], text_of(cap, args[1])
    if not isinstance(obj, InstanceValue):
        raise refuse("W106", f"assignment to attribute {name} of {obj.cls().__name__}", cap.loc())
    generic_set(cap, obj, name, args[2], lambda _: cap.deliver(Const(None), cont))


@method(object, "__delattr__")
def object_delattr(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    obj, name = args[0], text_of(cap, args[1])
    if not isinstance(obj, InstanceValue):
        raise refuse("W106", f"del of attribute {name} of {obj.cls().__name__}", cap.loc())
    generic_del(cap, obj, name, lambda _: cap.deliver(Const(None), cont))


@method(object, "__eq__")
def object_eq(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(True) if same(cap, args[0], args[1]) else Const(NotImplemented), cont)


@method(object, "__ne__")
def object_ne(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(False) if same(cap, args[0], args[1]) else Const(NotImplemented), cont)


def _descriptor_get(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """function.__get__(obj, type)."""
    fn, obj = args[0], args[1]
    bound = not (isinstance(obj, Const) and obj.obj is None)
    cap.deliver(BoundValue(fn, obj) if bound else fn, cont)


FUNCTIONS.add(types.FunctionType.__get__, _descriptor_get)


def _class(cap: Capture, x: Value) -> tuple[Const, type]:
    if isinstance(x, Const) and isinstance(x.obj, type):
        return x, x.obj
    raise refuse("W107", f"a {x.cls().__name__} as a class", cap.loc())


@function(type.__call__)
def type_call(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, real = _class(cap, args[0])
    construct_plain(cap, kind, real, args[1:], kwargs, cont, None)


@method(type, "__getattribute__")
def type_getattribute(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, real = _class(cap, args[0])
    class_attr(cap, kind, real, text_of(cap, args[1]), cont)


@method(type, "mro")
def type_mro(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _, real = _class(cap, args[0])
    cap.deliver(ListValue([Const(k) for k in real.__mro__]), cont)


@klass(types.SimpleNamespace)
def simple_namespace(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if args:
        raise refuse("W107", "SimpleNamespace of a mapping", cap.loc())
    made = InstanceValue(types.SimpleNamespace)
    made.attrs.update(kwargs)
    cap.deliver(made, cont)


@function(types.MethodType)
def make_method(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(BoundValue(args[0], args[1]), cont)
