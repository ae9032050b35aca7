"""Loops and generators."""

from __future__ import annotations

import importlib
import types
from typing import Any

from torchweld.base.errors import GraphBreak
from torchweld.capture.attrs import get_attr
from torchweld.capture.generator_frames import drives, resume
from torchweld.capture.items import get_iter, next_value
from torchweld.capture.ops import user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Handed, Raised, Stuck, VFrame, refuse
from torchweld.capture.suspend import check_end, kind_of
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import (
    Const,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    Value,
)
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

    it = f.stack[-1]
    next_value(cap, it, f.push, stop)
    drives(it)


@opcode("RETURN_GENERATOR")
def return_generator(cap: Capture, f: VFrame, i: Instr) -> None:
    """Here the rest of a generator begins, which is run up to where it is suspended."""
    f.stack.append(Const(None))


@opcode("YIELD_VALUE")
def yield_value(cap: Capture, f: VFrame, i: Instr) -> None:
    value = f.stack.pop()
    if f.on_yield is None:
        raise Handed("yield", value)
    cap.frames.pop()
    f.on_yield(value)


@opcode("ASYNC_GEN_WRAP")
def async_gen_wrap(cap: Capture, f: VFrame, i: Instr) -> None:
    """Who drives the generator does it, if it is not one of the capture's own."""
    if f.on_yield is not None:
        f.stack[-1] = _asynchronous().YieldedValue(f.stack[-1])


def _asynchronous() -> Any:
    """What is loaded when the first one is met."""
    return importlib.import_module("torchweld.capture.functions.async_generators")


@opcode("GET_AITER")
def get_aiter(cap: Capture, f: VFrame, i: Instr) -> None:
    _asynchronous().aiter_(cap, [f.stack.pop()], {}, f.push)


@opcode("GET_ANEXT")
def get_anext(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: iterator -> iterator, what is awaited."""

    def awaited(x: Value) -> None:
        f.stack.append(x)
        get_awaitable(cap, f, i)

    _asynchronous().anext_(cap, [f.stack[-1]], {}, awaited)


@opcode("END_ASYNC_FOR")
def end_async_for(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: iterator, exception."""
    if not issubclass(f.stack[-1].cls(), StopAsyncIteration):
        raise Raised(f.stack.pop())
    f.popn(2)


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(cap: Capture, f: VFrame, i: Instr) -> None:
    get_iter(cap, f.stack.pop())


@opcode("GET_AWAITABLE")
def get_awaitable(cap: Capture, f: VFrame, i: Instr) -> None:
    """A coroutine that the frame made is its own iterator; objects say what theirs is."""
    x = f.stack[-1]
    hook = user_method(cap, x, "__await__")
    if hook is not None:
        cap.call(Const(hook), [f.stack.pop()], {}, f.push)
        return
    if x.cls() is not types.CoroutineType and not _asynchronous().is_awaitable(x):
        raise _while_inlined(cap, f, f"await of a {x.cls().__name__}")


def _while_inlined(cap: Capture, f: VFrame, why: str) -> GraphBreak:
    """A refusal; in a generator or coroutine that the frame made, which cannot be suspended by
    others, the capture is better off without it."""
    outer = next((x for x in cap.frames if x.on_yield is not None), None)
    if outer is None:
        return refuse("W107", why, cap.loc())
    born = next((at for made, at in cap.born.values()
                 if isinstance(made, GeneratorValue) and made.frame is outer), 0)  # fmt: skip
    return Stuck("W107", why, cap.loc(), born)


def _is_own(it: Value) -> bool:
    """Whether the capture itself advances an iterator."""
    return it.source is None and isinstance(it, IteratorValue | InstanceValue)


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
    elif f.on_yield is None and not _is_own(it) and (
            isinstance(sent, Const) and sent.obj is None):  # fmt: skip
        f.ip += 1  # as if it were suspended in the YIELD_VALUE that follows
        raise Handed("from", it)
    elif isinstance(sent, Const) and sent.obj is None and (
            it.source is None or f.on_yield is None):  # fmt: skip
        next_value(cap, it, f.push, lambda: finished(Const(None)))
    else:
        raise _while_inlined(cap, f, f"send to {it.cls().__name__} by yield from")


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
    try:
        check_end(kind_of(f.code.flags), f.stack[-1])
    except Raised as error:
        f.stack[-1] = error.value
