"""Exceptions and with blocks."""

from __future__ import annotations

from torchweld.capture.attrs import MISSING, get_attr, mro_lookup
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


def unwind(cap: Capture, exc: Value) -> bool:
    """Find the handler of an exception, frame by frame. False: it leaves the captured frame."""
    while cap.frames:
        f = cap.frames[-1]
        at = f.ip - 1
        row = f.code.handler(at)
        if row is not None:
            del f.stack[row.depth :]
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


@opcode("RAISE")
def raise_op(cap: Capture, f: VFrame, i: Instr) -> None:
    if i.arg == 0:
        if not cap.handled or cap.handled[-1] is NONE:
            raise raised(RuntimeError, "No active exception to reraise")
        raise Raised(cap.handled[-1])
    if i.arg == 2:
        f.stack.pop()  # __cause__ is not modelled: nothing captured can read it
    exc = f.stack.pop()
    if isinstance(exc, Const) and isinstance(exc.obj, type) and issubclass(exc.obj, BaseException):
        cap.call(exc, [], {}, _throw)
        return
    if not issubclass(exc.cls(), BaseException):
        raise raised(TypeError, "exceptions must derive from BaseException")
    raise Raised(exc)


def _throw(exc: Value) -> None:
    raise Raised(exc)


@opcode("RERAISE")
def reraise(cap: Capture, f: VFrame, i: Instr) -> None:
    exc = f.stack.pop()
    if i.arg:
        lasti = f.stack[-i.arg]
        if isinstance(lasti, Const) and isinstance(lasti.obj, int):
            # the handler of the place that raised first has been left already
            f.ip = f.ip
    raise Raised(exc)


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
    if isinstance(kinds, Const) and isinstance(kinds.obj, type):
        return [kinds.obj]
    if isinstance(kinds, Const) and isinstance(kinds.obj, tuple):
        return list(kinds.obj)
    if isinstance(kinds, TupleValue):
        return [k for item in cap.force_items(kinds.items) for k in _classes(cap, item)]
    raise raised(TypeError, "catching classes that do not inherit from BaseException is not allowed")


@opcode("BEFORE_WITH")
def before_with(cap: Capture, f: VFrame, i: Instr) -> None:
    manager = f.stack.pop()
    if not isinstance(manager, InstanceValue):
        raise refuse("W107", f"with on {manager.cls().__name__}", cap.loc())
    for name in ("__enter__", "__exit__"):
        if mro_lookup(manager.klass, name) is MISSING:
            raise raised(TypeError, f"'{manager.klass.__name__}' object does not support the "
                                    "context manager protocol")  # fmt: skip

    def enter(exit_: Value) -> None:
        f.stack.append(exit_)
        raw = mro_lookup(manager.klass, "__enter__")
        cap.call(BoundValue(Const(raw), manager), [], {}, f.push)

    get_attr(cap, manager, "__exit__", enter)


@opcode("WITH_EXCEPT_START")
def with_except_start(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: exit, lasti, previous exception, exception."""
    exc = f.stack[-1]
    cap.call(f.stack[-4], [Const(exc.cls()), exc, NONE], {}, f.push)
