"""Loops and generators."""

from __future__ import annotations

from torchweld.capture.items import get_iter, next_value, resume
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import Const, GeneratorValue, IteratorValue, Value
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
    elif isinstance(it, IteratorValue):
        next_value(cap, it, f.push, lambda: finished(Const(None)))
    else:
        raise refuse("W107", f"yield from {it.cls().__name__}", cap.loc())


@opcode("STOPITERATION_ERROR")
def stopiteration_error(cap: Capture, f: VFrame, i: Instr) -> None:
    """PEP 479 turns a StopIteration that leaves a generator into a RuntimeError."""
