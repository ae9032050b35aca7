"""collections.deque, operator.itemgetter and its kin, weak references."""

from __future__ import annotations

import collections
import operator
import weakref
from typing import Any

from torchweld.capture import polyfills
from torchweld.capture.attrs import from_python
from torchweld.capture.functions.containers import collect
from torchweld.capture.instances import TARGET
from torchweld.capture.ops import length
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import CLASSES, METHODS, klass, method
from torchweld.capture.values.base import (
    Const,
    DequeValue,
    InstanceValue,
    Mutable,
    NotConstant,
    Value,
    constant,
)
from torchweld.ir.source import Applied

Args = list[Value]
Kwargs = dict[str, Value]


# ------------------------------------------------------------------------ deque
@klass(collections.deque)
def make_deque(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A deque made in the frame. One from outside is used by identity only."""
    given = dict(zip(("iterable", "maxlen"), args, strict=False)) | kwargs
    maxlen = given.get("maxlen", Const(None))
    if not isinstance(maxlen, Const):
        raise refuse("W107", "deque with a length that is not constant", cap.loc())
    out = DequeValue([], maxlen.obj)  # type: ignore[arg-type]
    if "iterable" not in given:
        cap.deliver(out, cont)
        return

    def fill(items: list[Value]) -> None:
        _extend(out, items)
        cap.deliver(out, cont)

    collect(cap, given["iterable"], fill)


def _extend(box: DequeValue, items: list[Value]) -> None:
    box.items.extend(items)
    if box.maxlen is not None:
        del box.items[: max(0, len(box.items) - box.maxlen)]


def _deque(cap: Capture, x: Value) -> DequeValue:
    if not isinstance(x, DequeValue):
        raise refuse("W107", f"a deque method of a {x.cls().__name__} from outside", cap.loc())
    return x


@method(collections.deque, "append")
def deque_append(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _extend(_deque(cap, args[0]), [args[1]])
    cap.deliver(Const(None), cont)


@method(collections.deque, "extend")
def deque_extend(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])

    def fill(items: list[Value]) -> None:
        _extend(box, items)
        cap.deliver(Const(None), cont)

    collect(cap, args[1], fill)


@method(collections.deque, "appendleft")
def deque_appendleft(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _left(_deque(cap, args[0]), [args[1]])
    cap.deliver(Const(None), cont)


@method(collections.deque, "extendleft")
def deque_extendleft(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])

    def fill(items: list[Value]) -> None:
        _left(box, items)
        cap.deliver(Const(None), cont)

    collect(cap, args[1], fill)


def _left(box: DequeValue, items: list[Value]) -> None:
    box.items[:0] = items[::-1]
    if box.maxlen is not None:
        del box.items[box.maxlen :]


@method(collections.deque, "popleft")
def deque_popleft(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _pop(cap, args, 0, cont)


@method(collections.deque, "pop")
def deque_pop(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _pop(cap, args, -1, cont)


def _pop(cap: Capture, args: Args, at: int, cont: Cont | None) -> None:
    box = _deque(cap, args[0])
    if not box.items:
        raise raised(IndexError, "pop from an empty deque")
    cap.deliver(cap.force(box.items.pop(at)), cont)


@method(collections.deque, "rotate")
def deque_rotate(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])
    try:
        n = constant(args[1]) if len(args) > 1 else 1
    except NotConstant:
        raise refuse("W102", "rotate by a number that is not constant", cap.loc()) from None
    real = collections.deque(box.items)
    real.rotate(n)
    box.items[:] = real
    cap.deliver(Const(None), cont)


@method(collections.deque, "copy")
def deque_copy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])
    cap.deliver(DequeValue(list(box.items), box.maxlen), cont)


@method(collections.deque, "__len__")
def deque_len(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(Const(length(cap, _deque(cap, args[0]))), cont)


for _name in ("clear", "reverse", "remove", "insert"):
    METHODS.add((collections.deque, _name), METHODS[(list, _name)])


# ------------------------------------------------------- itemgetter and its kin
def _getter(kind: Any, run: Any) -> None:
    """A callable of the operator module: its arguments are constants, its call a polyfill."""

    def make(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        try:
            real = [constant(a) for a in args]
            made = kind(*real, **{k: constant(v) for k, v in kwargs.items()})
        except NotConstant:
            raise refuse("W107", f"{kind.__name__} of a value that is not constant",
                         cap.loc()) from None  # fmt: skip
        except TypeError as error:
            raise raised(TypeError, *error.args) from None
        cap.deliver(Const(made), cont)

    def call(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        getter, obj = args
        assert isinstance(getter, Const)
        given = getter.obj.__reduce__()[1:]
        cap.call(Const(run), [obj, from_python(given)], {}, cont)

    CLASSES.add(kind, make)
    METHODS.add((kind, "__call__"), call)


_getter(operator.itemgetter, polyfills.get_items)
_getter(operator.attrgetter, polyfills.get_attrs)
_getter(operator.methodcaller, polyfills.call_method)


# -------------------------------------------------------------- weak references
@method(weakref.ref, "__call__")
def call_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The object of a weak reference from outside: guarded to be the one that is known by now, or
    found through the reference."""
    (ref,) = args
    if isinstance(ref, InstanceValue):
        cap.deliver(ref.attrs[TARGET], cont)  # type: ignore[arg-type]
        return
    assert isinstance(ref, Const)
    target = ref.obj()  # type: ignore[operator]
    known = cap.objects.get(id(target))
    if known is None or known.source is None:
        if ref.source is None or target is None:
            raise refuse("W107", "a weak reference to an object that was not met before",
                         cap.loc())  # fmt: skip
        cap.deliver(cap.wrap(target, Applied.make(ref.source, operator.call)), cont)
        return
    cap.guard("is", known.source, target)
    cap.deliver(known, cont)


@klass(weakref.ref)
def make_weakref(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """To an object from outside, which somebody else keeps alive."""
    if len(args) != 1 or kwargs or args[0].source is None or not isinstance(args[0], Mutable):
        raise refuse("W107", "a weak reference made in the frame", cap.loc())
    made = InstanceValue(weakref.ref)
    made.attrs[TARGET] = args[0]
    cap.deliver(made, cont)
