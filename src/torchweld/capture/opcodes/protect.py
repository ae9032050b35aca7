"""Exceptions and with blocks."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchweld.capture import polyfills_groups
from torchweld.capture.attrs import INSTANCE_METHOD, MISSING, mro_lookup, watch_class
from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    Const,
    InstanceValue,
    TupleValue,
    Value,
    boolean,
)
from torchweld.frame.instr import Instr


def unwind(cap: Capture, exc: Value, base: int = 0) -> bool:
    """Find the handler of an exception, frame by frame. False: it leaves the captured frame.

    base: how many of the outermost frames are not looked at.
    """
    _chain(cap, exc)
    while len(cap.frames) > base:
        f = cap.frames[-1]
        at = f.ip - 1
        row = f.code.handler(at)
        if row is not None:
            del f.stack[row.depth :]
            f.stack += [NONE] * (row.depth - len(f.stack))  # what a throw() leaves out
            if row.lasti:
                f.stack.append(Const(at))
            f.stack.append(exc)
            f.ip = row.target
            return True
        cap.frames.pop()
        on_raise = f.on_raise
        if on_raise is not None:
            try:
                if on_raise(exc):
                    return True
            except Raised as error:
                exc = error.value
    return False


def _chain(cap: Capture, exc: Value) -> None:
    """Remember the exception that was being handled when this one was raised."""
    handled = cap.handled[-1] if cap.handled else NONE
    if isinstance(exc, InstanceValue) and handled is not NONE and handled is not exc:
        exc.attrs.setdefault("__context__", handled)


@opcode("RAISE")
def raise_op(cap: Capture, f: VFrame, i: Instr) -> None:
    if i.arg == 0:
        if not cap.handled or cap.handled[-1] is NONE:
            raise raised(RuntimeError, "No active exception to reraise")
        raise Raised(cap.handled[-1])
    cause = f.stack.pop() if i.arg == 2 else None
    exc = f.stack.pop()
    _as_exception(cap, exc, lambda made: _throw(cap, made, cause))


def _as_exception(cap: Capture, exc: Value, cont: Callable[[Value], None],
                  says: str = "exceptions must derive") -> None:  # fmt: skip
    """The exception object of `raise exc`: a class is called."""
    if isinstance(exc, Const) and isinstance(exc.obj, type) and issubclass(exc.obj, BaseException):
        cap.call(exc, [], {}, cont)
        return
    if not issubclass(exc.cls(), BaseException):
        raise raised(TypeError, f"{says} from BaseException")
    cont(exc)


def _leave_chain(first: Value, exc: Value) -> None:
    """Take an exception out of the chain of contexts that it is about to get."""
    at: object = first
    while isinstance(at, InstanceValue):
        context = at.attrs.get("__context__")
        if context is exc:
            at.attrs["__context__"] = NONE
        at = context


def _throw(cap: Capture, exc: Value, cause: Value | None) -> None:
    if not isinstance(exc, InstanceValue):
        raise refuse("W107", f"a {exc.cls().__name__} is raised", cap.loc())
    handled = cap.handled[-1] if cap.handled else NONE
    if handled is not NONE and handled is not exc:
        _leave_chain(handled, exc)
        exc.attrs["__context__"] = handled
    if cause is None:
        raise Raised(exc)
    exc.attrs["__suppress_context__"] = boolean(True)
    if isinstance(cause, Const) and cause.obj is None:
        exc.attrs["__cause__"] = cause
        raise Raised(exc)

    def chained(made: Value) -> None:
        exc.attrs["__cause__"] = made
        raise Raised(exc)

    _as_exception(cap, cause, chained, "exception causes must derive")


@opcode("RERAISE")
def reraise(cap: Capture, f: VFrame, i: Instr) -> None:
    raise Raised(f.stack.pop())


@opcode("PUSH_EXC_INFO")
def push_exc_info(cap: Capture, f: VFrame, i: Instr) -> None:
    exc = f.stack.pop()
    f.stack.append(cap.handled[-1] if cap.handled else NONE)
    f.stack.append(exc)
    cap.handled.append(exc)


@opcode("POP_EXCEPT")
def pop_except(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.pop()
    if cap.handled:
        cap.handled.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(cap: Capture, f: VFrame, i: Instr) -> None:
    kinds = f.stack.pop()
    exc = f.stack[-1]
    f.stack.append(boolean(any(issubclass(exc.cls(), k) for k in _classes(cap, kinds))))


def _classes(cap: Capture, kinds: Value) -> list[type]:
    if isinstance(kinds, Const) and isinstance(kinds.obj, type) and issubclass(
            kinds.obj, BaseException):  # fmt: skip
        return [kinds.obj]
    if isinstance(kinds, TupleValue):
        return [k for item in cap.force_items(kinds.items) for k in _classes(cap, item)]
    raise raised(TypeError, "catching classes that do not inherit from BaseException is not "
                            "allowed")  # fmt: skip


@opcode("BEFORE_WITH")
def before_with(cap: Capture, f: VFrame, i: Instr) -> None:
    _enter(cap, f, "__enter__", "__exit__", "context manager")


@opcode("BEFORE_ASYNC_WITH")
def before_async_with(cap: Capture, f: VFrame, i: Instr) -> None:
    _enter(cap, f, "__aenter__", "__aexit__", "asynchronous context manager")


def _enter(cap: Capture, f: VFrame, begins: str, ends: str, what: str) -> None:
    manager = f.stack.pop()
    kind = manager.cls()
    if kind is not RemovableHandle:  # which counts the hooks
        watch_class(cap, kind)
    enter, leave = mro_lookup(kind, begins), mro_lookup(kind, ends)
    if enter is MISSING or leave is MISSING:
        missed = f" (missed {ends} method)" if enter is not MISSING else ""
        raise raised(TypeError, f"'{kind.__name__}' object does not support the {what} "
                                f"protocol{missed}")  # fmt: skip
    if not isinstance(manager, InstanceValue) and kind is not torch.device:
        raise refuse("W107", f"with on {kind.__name__}", cap.loc())
    f.stack.append(_bound(leave, manager))
    cap.call(_bound(enter, manager), [], {}, f.push)


def _bound(raw: Any, manager: Value) -> BoundValue:
    return BoundValue(Const(raw.__func__ if type(raw) is INSTANCE_METHOD else raw), manager)


@opcode("WITH_EXCEPT_START")
def with_except_start(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: exit, lasti, previous exception, exception."""
    exc = f.stack[-1]
    cap.call(f.stack[-4], [Const(exc.cls()), exc, InstanceValue(types.TracebackType)], {}, f.push)


# -------------------------------------------------------------------------- except*
@opcode("CHECK_EG_MATCH")
def check_eg_match(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: exception, classes -> what is left of it, what matches."""
    exc, kinds = f.popn(2)
    _classes(cap, kinds)

    def divided(found: Value) -> None:
        assert isinstance(found, TupleValue)
        match, rest = cap.force_items(found.items)
        f.stack += [rest, match]
        if match is not NONE and not (isinstance(match, Const) and match.obj is None):
            cap.handled[-1] = match

    cap.call(Const(polyfills_groups.match_star), [exc, kinds], {}, divided)


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: the exception, those that the clauses left or raised -> what is raised, or None."""
    exc, excs = f.popn(2)
    cap.call(Const(polyfills_groups.to_raise), [exc, excs], {}, f.push)
