"""Weak references to objects from outside: read, made, and used as keys."""

from __future__ import annotations

import weakref
from typing import Any

from torchweld.capture.instances import TARGET
from torchweld.capture.predicates import RefersTo
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import klass, method
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    InstanceValue,
    ListValue,
    Mutable,
    PartialValue,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.wrap import WRAPPERS, by_identity
from torchweld.ir.source import Applied, Source

Args = list[Value]
Kwargs = dict[str, Value]


def target_of(ref: Any) -> Any:
    """What a weak reference refers to."""
    return ref()


def is_dead(ref: Any) -> bool:
    """Whether the object of a weak reference is gone."""
    return ref() is None


@method((weakref.ref, weakref.KeyedRef), "__call__")
def call_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The object of a weak reference; that it is still there is a guard."""
    (ref,) = args
    if isinstance(ref, InstanceValue):
        made = ref.attrs[TARGET]
        assert made is not None
        if made.source is None and not is_held(cap, made):
            raise refuse("W107", "a weak reference to what nobody may hold any more", cap.loc())
        cap.deliver(made, cont)
        return
    assert isinstance(ref, Const)
    real: Any = ref.obj
    target, source = real(), ref.source or cap.pin(real)
    if target is None:
        cap.guard("predicate", source, is_dead)
        cap.deliver(NONE, cont)
        return
    known = cap.objects.get(id(target))
    if known is None:
        cap.deliver(cap.wrap(target, Applied.make(source, target_of)), cont)
        return
    if known.source is None:
        raise refuse("W107", "a weak reference to an object that is not known", cap.loc())
    cap.guard("predicate", known.source, RefersTo(real))
    cap.deliver(known, cont)


@klass(weakref.ref)
def make_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """To an object from outside, which somebody else keeps alive, or to one of the frame, which is
    found as long as the frame holds it."""
    callback = args[1] if len(args) > 1 else NONE
    if kwargs or not isinstance(callback, Const) or callback.obj is not None:
        raise refuse("W107", "a weak reference with a callback", cap.loc())
    own = isinstance(args[0], TensorValue | FunctionValue) or (
        isinstance(args[0], InstanceValue) and args[0].payload is None)
    if not own and (args[0].source is None or not isinstance(args[0], Mutable)):
        raise refuse("W107", f"a weak reference to a {args[0].cls().__name__}", cap.loc())
    if isinstance(args[0], InstanceValue) and not args[0].klass.__weakrefoffset__:
        name = args[0].klass.__name__
        raise raised(TypeError, f"cannot create weak reference to '{name}' object")
    made = InstanceValue(weakref.ref)
    made.attrs[TARGET] = args[0]
    cap.deliver(made, cont)


def is_held(cap: Capture, x: Value) -> bool:
    """Whether a variable, the stack, or an object from outside leads to an object of the frame."""
    waiting: list[Any] = [*cap.handled, *(v for v in cap.changed if v.source is not None)]
    for frame in cap.frames:
        waiting += [*frame.locals.values(), *frame.stack, *frame.cells.values()]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if value is x:
            return True
        if id(value) not in seen:
            seen.add(id(value))
            waiting += held_by(value)
    return False


def held_by(value: Any) -> list[Any]:
    """What a value holds, as far as it is known."""
    match value:
        case ListValue() | TupleValue():
            return list(value.items)
        case DictValue():
            return [*value.items.values(), *value.keys.values()]
        case SetValue():
            return list(value.items.values())
        case InstanceValue() if value.klass is weakref.ref:
            return []
        case InstanceValue():
            return [*value.attrs.values(), value.payload]
        case CellValue():
            return [value.contents]
        case FunctionValue():
            return [*value.closure, *value.defaults]
        case BoundValue():
            return [value.func, value.self_]
        case PartialValue():
            return [value.func, *value.args, *value.kwargs.values()]
    return []


def _proxy(cap: Capture, obj: Any, source: Source) -> Value:
    """A guard would look at the object that it stands for, which may be gone."""
    raise refuse("W107", "a weak proxy of an object", cap.loc())


for _kind in weakref.ProxyTypes:
    WRAPPERS.add(_kind, _proxy)
WRAPPERS.add(weakref.ref, by_identity)
WRAPPERS.add(weakref.KeyedRef, by_identity)
