"""Weak references to objects from outside: read, made, and used as keys."""

from __future__ import annotations

import weakref
from typing import Any

from torchweld.capture.instances import TARGET
from torchweld.capture.predicates import RefersTo
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import klass, method
from torchweld.capture.values.base import NONE, Const, InstanceValue, Mutable, Value
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
        cap.deliver(ref.attrs[TARGET], cont)  # type: ignore[arg-type]
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
    """To an object from outside, which somebody else keeps alive."""
    callback = args[1] if len(args) > 1 else NONE
    if kwargs or not isinstance(callback, Const) or callback.obj is not None:
        raise refuse("W107", "a weak reference with a callback", cap.loc())
    if args[0].source is None or not isinstance(args[0], Mutable):
        raise refuse("W107", "a weak reference made in the frame", cap.loc())
    made = InstanceValue(weakref.ref)
    made.attrs[TARGET] = args[0]
    cap.deliver(made, cont)


def _proxy(cap: Capture, obj: Any, source: Source) -> Value:
    """A guard would look at the object that it stands for, which may be gone."""
    raise refuse("W107", "a weak proxy of an object", cap.loc())


for _kind in weakref.ProxyTypes:
    WRAPPERS.add(_kind, _proxy)
WRAPPERS.add(weakref.ref, by_identity)
WRAPPERS.add(weakref.KeyedRef, by_identity)
