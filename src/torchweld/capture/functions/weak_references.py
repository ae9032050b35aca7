"""Weak references to objects from outside: read, made, and used as keys."""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch

from torchweld.capture.instances import CALLBACK, TARGET
from torchweld.capture.let_go import may_be_gone
from torchweld.capture.predicates import RefersTo
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
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
from torchweld.ir.source import Applied, Source

Args = list[Value]
Kwargs = dict[str, Value]


def target_of(ref: Any) -> Any:
    """What a weak reference refers to."""
    return ref()


def is_dead(ref: Any) -> bool:
    """Whether the object of a weak reference is gone."""
    return ref() is None


def call_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The object of a weak reference; that it is still there is a guard."""
    (ref,) = args
    if isinstance(ref, InstanceValue):
        made = ref.attrs[TARGET]
        assert made is not None
        _need_held(cap, made)
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
        path = Applied.make(source, target_of)
        if may_be_gone(cap, path, isinstance(target, torch.Tensor)):
            raise refuse("W107", _LET_GO, cap.loc())
        cap.deliver(cap.wrap(target, path), cont)
        return
    if known.source is None:
        raise refuse("W107", "a weak reference to an object that is not known", cap.loc())
    _need_held(cap, known)
    cap.guard("predicate", known.source, RefersTo(real))
    cap.deliver(known, cont)


def make_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """To an object from outside, which somebody else keeps alive, or to one of the frame, which is
    found as long as the frame holds it."""
    if kwargs:
        raise raised(TypeError, "weakref() takes no keyword arguments")
    _make(cap, weakref.ref, args, cont)


def new_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """How the subclasses of the standard library make one."""
    kind = args[0]
    if kwargs or not isinstance(kind, Const) or kind.obj not in _SUBCLASSES:
        raise refuse("W107", "a weak reference of a class of its own", cap.loc())
    _make(cap, kind.obj, args[1:], cont)


def init_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(NONE, cont)


def _make(cap: Capture, kind: type, args: Args, cont: Cont | None) -> None:
    target, callback = args[0], args[1] if len(args) > 1 else NONE
    calls = not isinstance(callback, Const) or callback.obj is not None
    own = isinstance(target, TensorValue | FunctionValue) or (
        isinstance(target, InstanceValue) and target.payload is None)
    if not own and (target.source is None or not isinstance(target, Mutable)) and not (
            isinstance(target, Const) and isinstance(target.obj, types.FunctionType)):  # fmt: skip
        raise refuse("W107", f"a weak reference to a {target.cls().__name__}", cap.loc())
    if isinstance(target, InstanceValue) and not target.klass.__weakrefoffset__:
        name = target.klass.__name__
        raise raised(TypeError, f"cannot create weak reference to '{name}' object")
    if calls and not isinstance(target, Const):
        if target.source is None and not _only_removes(callback):
            raise refuse("W107", "a weak reference with a callback", cap.loc())
        cap.weakly_held.append(target)
    made = InstanceValue(kind)
    made.attrs[TARGET] = target
    if calls:
        made.attrs[CALLBACK] = callback
    cap.deliver(made, cont)


def _only_removes(callback: Value) -> bool:
    """Whether a callback takes an entry out of a container of weak references."""
    if isinstance(callback, FunctionValue):
        return callback.code.co_filename in _FILES
    fn = callback.obj if isinstance(callback, Const) else None
    return isinstance(fn, types.FunctionType) and fn.__code__.co_filename in _FILES


_SUBCLASSES = (weakref.KeyedRef, weakref.WeakMethod)
_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_FILES = (weakref.__file__, weakref.WeakSet.add.__code__.co_filename)


_LET_GO = "a weak reference to what nobody may hold any more"


def check_held(cap: Capture, x: InstanceValue) -> None:
    """A container of weak references is looked into: an object that nobody holds any more would be
    gone from it. Errors: GraphBreak."""
    if not issubclass(x.klass, _CONTAINERS):
        return
    for own in cap.weakly_held:
        _need_held(cap, own)
    if x.real is None:
        return
    real: Any = x.real
    for target in list(real):
        known = cap.objects.get(id(target))
        if known is not None:
            _need_held(cap, known)
        elif may_be_gone(cap, None, isinstance(target, torch.Tensor)):
            raise refuse("W107", _LET_GO, cap.loc())


def _need_held(cap: Capture, x: Value) -> None:
    """Errors: GraphBreak if nobody may hold an object any more that is only known to be there."""
    if isinstance(x, Const) and x.source is None:
        return
    if is_held(cap, x):
        return
    if x.source is None or may_be_gone(cap, x.source, isinstance(x, TensorValue)):
        raise refuse("W107", _LET_GO, cap.loc())


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
        case InstanceValue() if issubclass(value.klass, weakref.ref):
            return [value.attrs.get(CALLBACK)]
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


def proxy(cap: Capture, obj: Any, source: Source) -> Value:
    """A guard would look at the object that it stands for, which may be gone."""
    raise refuse("W107", "a weak proxy of an object", cap.loc(),
                 "pass the object, or a weakref.ref of it")  # fmt: skip
