"""collections.deque, operator.itemgetter and its kin."""

from __future__ import annotations

import collections
import operator
from typing import Any

from torchweld.capture import polyfills
from torchweld.capture.attrs import from_python
from torchweld.capture.functions.containers import collect
from torchweld.capture.ops import changed, length, real_call
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import CLASSES, METHODS, klass, method
from torchweld.capture.values.base import (
    Const,
    NotConstant,
    Value,
    constant,
)
from torchweld.capture.values.sequences import DequeValue

Args = list[Value]
Kwargs = dict[str, Value]


# ------------------------------------------------------------------------ deque
@klass(collections.deque)
def make_deque(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A deque made in the frame."""
    given = dict(zip(("iterable", "maxlen"), args, strict=False)) | kwargs
    maxlen = given.get("maxlen", Const(None))
    if not isinstance(maxlen, Const):
        raise refuse("W107", "deque with a length that is not constant", cap.loc())
    most = real_call(lambda n: collections.deque(maxlen=n).maxlen, maxlen.obj)
    out = DequeValue([], constant(most))
    if "iterable" not in given:
        cap.deliver(out, cont)
        return

    def fill(items: list[Value]) -> None:
        cap.deliver(DequeValue(list(items), out.maxlen), cont)

    collect(cap, given["iterable"], fill)


def _extend(cap: Capture, box: DequeValue, items: list[Value]) -> None:
    box.tail.extend(items)
    box.trim()
    changed(cap, box)


def _deque(cap: Capture, x: Value) -> DequeValue:
    if not isinstance(x, DequeValue):
        raise refuse("W107", f"a deque method of a {x.cls().__name__}", cap.loc())
    return x


@method(collections.deque, "append")
def deque_append(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _extend(cap, _deque(cap, args[0]), [args[1]])
    cap.deliver(Const(None), cont)


@method(collections.deque, "extend")
def deque_extend(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])

    def fill(items: list[Value]) -> None:
        _extend(cap, box, items)
        cap.deliver(Const(None), cont)

    collect(cap, args[1], fill)


@method(collections.deque, "appendleft")
def deque_appendleft(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _left(cap, _deque(cap, args[0]), [args[1]])
    cap.deliver(Const(None), cont)


@method(collections.deque, "extendleft")
def deque_extendleft(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])

    def fill(items: list[Value]) -> None:
        _left(cap, box, items)
        cap.deliver(Const(None), cont)

    collect(cap, args[1], fill)


def _left(cap: Capture, box: DequeValue, items: list[Value]) -> None:
    box.items[:0] = items[::-1]
    if box.maxlen is not None:
        del box.items[box.maxlen :]
    changed(cap, box)


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
    item = box.items.pop(at)
    changed(cap, box)
    cap.deliver(cap.force(item), cont)


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
    changed(cap, box)
    cap.deliver(Const(None), cont)


@method(collections.deque, "copy")
def deque_copy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])
    cap.deliver(DequeValue(list(box.items), box.maxlen), cont)


@method(collections.deque, "__len__")
def deque_len(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(Const(length(cap, _deque(cap, args[0]))), cont)


@method(collections.deque, "insert")
def deque_insert(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _deque(cap, args[0])
    if box.maxlen is not None and len(box.items) >= box.maxlen:
        raise raised(IndexError, "deque already at its maximum size")
    METHODS[list, "insert"](cap, args, kwargs, cont)


@method(collections.deque, "__init__")
def deque_init(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W107", "a subclass of deque made in the frame", cap.loc())


for _name in ("clear", "reverse", "remove"):
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
