"""Loops and generators."""

from __future__ import annotations

from torchweld.capture.attrs import get_attr
from torchweld.capture.items import get_iter, next_value, resume
from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import Const, GeneratorValue, Value
from torchweld.frame.instr import Instr


@opcode("GET_ITER")
def get_iter_op(cap: Capture, f: VFrame, i: Instr) -> None:
    get_iter(cap, f.stack.pop())


@opcode("FOR_ITER")
def for_iter(cap: Capture, f: VFrame, i: Instr) -> None:
    def stop() -> None:
        f.stack.pop()
        assert i.target is not None
        f.ip = i.target

    next_value(cap, f.stack[-1], f.push, stop)


@opcode("RETURN_GENERATOR")
def return_generator(cap: Capture, f: VFrame, i: Instr) -> None:
    raise refuse("W109", f"{f.code.name} is a generator", cap.loc())


@opcode("YIELD_VALUE")
def yield_value(cap: Capture, f: VFrame, i: Instr) -> None:
    value = f.stack.pop()
    cap.frames.pop()
    assert f.on_yield is not None
    f.on_yield(value)


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(cap: Capture, f: VFrame, i: Instr) -> None:
    get_iter(cap, f.stack.pop())


@opcode("SEND")
def send(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: iterator, value -> iterator, item; at the end: result, and jump."""
    sent = f.stack.pop()
    it = f.stack[-1]

    def finished(result: Value) -> None:
        f.stack.pop()
        f.stack.append(result)
        assert i.target is not None
        f.ip = i.target

    if isinstance(it, GeneratorValue):
        resume(cap, it, sent, f.push, finished)
    elif isinstance(sent, Const) and sent.obj is None:
        next_value(cap, it, f.push, lambda: finished(Const(None)))
    else:
        raise refuse("W107", f"send to {it.cls().__name__} by yield from", cap.loc())


@opcode("CLEANUP_THROW")
def cleanup_throw(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: iterator, last value, exception; a StopIteration is the result of `yield from`."""
    exc = f.stack[-1]
    if not issubclass(exc.cls(), StopIteration):
        raise Raised(exc)
    f.popn(3)
    get_attr(cap, exc, "value", f.push)


@opcode("STOPITERATION_ERROR")
def stopiteration_error(cap: Capture, f: VFrame, i: Instr) -> None:
    """PEP 479 turns a StopIteration that leaves a generator into a RuntimeError."""
    if issubclass(f.stack[-1].cls(), StopIteration):
        f.stack[-1] = raised(RuntimeError, "generator raised StopIteration").value
