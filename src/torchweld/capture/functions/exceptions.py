"""Exceptions as objects: construction, arguments, text."""

from __future__ import annotations

import builtins
import sys
import types

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import function, method
from torchweld.capture.values.base import (
    NONE,
    Const,
    InstanceValue,
    ListValue,
    NotConstant,
    TupleValue,
    Value,
    constant,
)

Args = list[Value]
Kwargs = dict[str, Value]
KINDS: tuple[type[BaseException], ...] = tuple({
    kind: None for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
})  # fmt: skip

# the text of these does not follow from their arguments
_MORE_THAN_ARGS = (OSError, SyntaxError, UnicodeError, BaseExceptionGroup, ImportError)


def _exception(cap: Capture, x: Value) -> InstanceValue:
    if not isinstance(x, InstanceValue):
        raise refuse("W107", f"an exception method of {x.cls().__name__}", cap.loc())
    if x.real is not None and issubclass(x.klass, _MORE_THAN_ARGS):
        raise refuse("W107", f"a {x.klass.__name__} from outside", cap.loc())
    return x


@method(KINDS, "__init__")
def exception_init(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    exc = _exception(cap, args[0])
    if kwargs:
        raise refuse("W107", f"keyword arguments of {exc.klass.__name__}", cap.loc())
    exc.attrs["args"] = TupleValue(list(args[1:]))
    cap.deliver(Const(None), cont)


@method(BaseException, "with_traceback")
def with_traceback(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(args[0], cont)


def exception_text(cap: Capture, exc: InstanceValue, as_repr: bool) -> str:
    """str() or repr() of an exception whose class does not write its own."""
    args = exc.attrs.get("args") or TupleValue([])
    base = next(k for k in exc.klass.__mro__ if k in KINDS)
    try:
        given = constant(cap.unwrap(args))
        real = base.__new__(base, *given)
        if isinstance(real, UnicodeError) and given:
            real.__init__(*given)  # type: ignore[misc]
        real.args = constant(args)
    except NotConstant:
        raise refuse("W107", f"text of a {exc.klass.__name__} that holds objects",
                     cap.loc()) from None  # fmt: skip
    if not as_repr:
        return str(real)
    return exc.klass.__name__ + repr(real)[len(base.__name__) :]


_PLAIN = tuple(k for k in KINDS if not issubclass(k, BaseExceptionGroup))


@method(_PLAIN, "__str__")
def exception_str(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(Const(exception_text(cap, _exception(cap, args[0]), False)), cont)


@method(_PLAIN, "__repr__")
def exception_repr(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(Const(exception_text(cap, _exception(cap, args[0]), True)), cont)


@method(BaseException, "add_note")
def add_note(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    exc = _exception(cap, args[0])
    if exc.real is not None or args[1].cls() is not str:
        raise refuse("W107", "a note on an exception from outside", cap.loc())
    notes = exc.attrs.get("__notes__")
    if notes is None:
        notes = exc.attrs["__notes__"] = ListValue([])
    assert isinstance(notes, ListValue)
    notes.items.append(args[1])
    cap.deliver(Const(None), cont)


@function(sys.exc_info)
def exc_info(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    exc = cap.handled[-1] if cap.handled else NONE
    if exc is NONE:
        cap.deliver(TupleValue([NONE, NONE, NONE]), cont)
        return
    trace = InstanceValue(types.TracebackType)
    cap.deliver(TupleValue([Const(exc.cls()), exc, trace]), cont)
