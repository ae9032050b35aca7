"""isinstance and issubclass by Python's rules: exact types, what a metaclass says, the bases."""

from __future__ import annotations

import abc
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.attrs import watch_class
from torchweld.capture.class_state import ALL, is_watched, mro_lookup
from torchweld.capture.ops import truth
from torchweld.capture.predicates import IsInstance, NoSubclass
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import function, method
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    Mutable,
    TensorValue,
    TupleValue,
    Value,
    boolean,
)

Args = list[Value]
Kwargs = dict[str, Value]
Answer = Callable[[bool], None]

_PROTOCOLS: Any = type(typing.Protocol)


@function(isinstance)
def isinstance_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    x, kinds = args
    is_instance(cap, x, _classinfo(cap, kinds), lambda yes: cap.deliver(boolean(yes), cont))


@function(issubclass)
def issubclass_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, kinds = args
    if not (isinstance(kind, Const) and isinstance(kind.obj, type)):
        raise raised(TypeError, "issubclass() arg 1 must be a class")
    _one_of(_classinfo(cap, kinds), lambda k, rest: _is_subclass(cap, kind, k, rest),
            lambda yes: cap.deliver(boolean(yes), cont))  # fmt: skip


def _classinfo(cap: Capture, kinds: Value) -> Any:
    if isinstance(kinds, TupleValue):
        return tuple(_classinfo(cap, k) for k in cap.force_items(kinds.items))
    if isinstance(kinds, Const):
        if getattr(kinds.obj, "_is_protocol", False):
            cap.names.add(ALL)  # it is told by what a class has
        return kinds.obj
    raise refuse("W107", f"isinstance with {kinds.cls().__name__}", cap.loc())


def is_instance(cap: Capture, x: Value, kinds: Any, answer: Answer) -> None:
    """isinstance(x, kinds), given to `answer`."""
    _one_of(kinds, lambda kind, rest: _is_of(cap, x, kind, rest), answer)


def _one_of(kinds: Any, ask: Callable[[Any, Answer], None], answer: Answer) -> None:
    """Ask about one class after the other, until one of them says yes."""
    if not isinstance(kinds, tuple | types.UnionType):
        ask(kinds, answer)
        return
    left = list(kinds if isinstance(kinds, tuple) else kinds.__args__)

    def go_on(yes: bool) -> None:
        if yes or not left:
            answer(yes)
        else:
            _one_of(left.pop(0), ask, go_on)

    go_on(False)


def _is_of(cap: Capture, x: Value, kind: Any, answer: Answer) -> None:
    if x.cls() is kind:
        answer(True)
        return
    hook = _users_check(cap, kind, "__instancecheck__")
    if hook is not None:
        cap.call(Const(hook), [Const(kind), x], {}, lambda v: truth(cap, v, answer))
        return
    answer(_plainly(cap, x, kind))


def _is_subclass(cap: Capture, x: Const, kind: Any, answer: Answer) -> None:
    given: Any = x.obj
    hook = _users_check(cap, kind, "__subclasscheck__")
    if hook is not None:
        cap.call(Const(hook), [Const(kind), x], {}, lambda v: truth(cap, v, answer))
        return
    yes = issubclass(given, kind)
    _note_no(cap, given, kind, yes)
    answer(yes)


def _users_check(cap: Capture, kind: object, name: str) -> types.FunctionType | None:
    """The check that a metaclass of the user's makes, in Python; it may get one later."""
    meta: Any = type(kind)
    if meta is type or not issubclass(meta, type) or not is_watched(meta):
        return None
    hook = mro_lookup(meta, name)
    owner = next((base for base in meta.__mro__ if name in vars(base)), type)
    watch_class(cap, meta)
    if not is_watched(owner):
        return None
    return hook if isinstance(hook, types.FunctionType) else None


def _plainly(cap: Capture, x: Value, kind: Any) -> bool:
    """What isinstance says where no check of the user's runs."""
    if type(kind) is _PROTOCOLS and kind._is_protocol:
        return _shows(cap, x, kind)
    yes = _by_class(x, kind)
    _note_no(cap, x.cls(), kind, yes)
    return yes


def _by_class(x: Value, kind: Any) -> bool:
    if isinstance(x, Const):
        return isinstance(x.sample, kind)
    if isinstance(x, TensorValue):
        return _is_tensor_instance(x, kind)
    real = getattr(x, "real", None)
    if real is not None:
        return isinstance(real, kind)
    return issubclass(x.cls(), kind)


def _shows(cap: Capture, x: Value, kind: Any) -> bool:
    """Whether an object has all that a protocol asks for, which objects may get and lose."""
    real = x.sample if isinstance(x, Const) else getattr(x, "real", None)
    if real is None or (isinstance(x, Mutable) and x.changed):
        return _has_all(cap, x, kind)
    yes = isinstance(real, kind)
    if isinstance(x, InstanceValue) and x.source is not None:
        cap.guard("predicate", x.source, IsInstance(kind, yes))
    return yes


def _has_all(cap: Capture, x: Value, kind: Any) -> bool:
    """The same of an object that the frame has made or changed."""
    if not getattr(kind, "_is_runtime_protocol", False):
        raise refuse("W107", "isinstance with a protocol that is not checked", cap.loc())
    try:
        if issubclass(x.cls(), kind):
            return True
    except TypeError:
        pass  # a protocol of data
    own = x.attrs if isinstance(x, InstanceValue) else {}
    names: Any = typing._get_protocol_attrs(kind)  # type: ignore[attr-defined]
    return all(getattr(x.cls(), n, None) is not None or own.get(n) is not None for n in names)


def _note_no(cap: Capture, x: type, kind: Any, yes: bool) -> None:
    """A class may be registered with an abstract one at any time; it stays so then."""
    if yes or not isinstance(kind, abc.ABCMeta):
        return
    if is_watched(x) or is_watched(kind):
        cap.guard("state", None, (NoSubclass(x, kind), True))


def _is_tensor_instance(x: TensorValue, kind: Any) -> bool:
    if kind in (torch.nn.Parameter, torch.nn.Buffer):
        return x.kind is kind or (kind is torch.nn.Parameter and issubclass(x.kind, kind))
    if isinstance(kind, type) and issubclass(kind, torch.Tensor):
        return issubclass(x.kind, kind)
    if isinstance(kind, type) and isinstance(x.fake, kind) and not hasattr(kind, "fake_mode"):
        return True
    return issubclass(x.kind, kind)


@method(type, "__instancecheck__")
def type_instancecheck(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, x = args
    assert isinstance(kind, Const)
    cap.deliver(boolean(_plainly(cap, x, kind.obj)), cont)


@method(type, "__subclasscheck__")
def type_subclasscheck(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, x = args
    if not (isinstance(kind, Const) and isinstance(x, Const) and isinstance(x.obj, type)):
        raise refuse("W107", "__subclasscheck__ of what is no class", cap.loc())
    of: Any = kind.obj
    cap.deliver(boolean(type.__subclasscheck__(of, x.obj)), cont)


# what `super()` of a check of the user's leads to
function(abc.ABCMeta.__instancecheck__)(type_instancecheck)
function(abc.ABCMeta.__subclasscheck__)(type_subclasscheck)
