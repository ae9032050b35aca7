"""Asynchronous generators that a frame makes, and loops over what is iterated asynchronously."""

from __future__ import annotations

import types
from collections.abc import AsyncGenerator, Callable
from typing import Any

from torchweld.capture import polyfills_async
from torchweld.capture.attrs import mro_lookup
from torchweld.capture.functions.iterators import call_as
from torchweld.capture.generator_frames import resume, throw
from torchweld.capture.ops import user_method
from torchweld.capture.rebuild import BUILDERS
from torchweld.capture.residual import Residual
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import FUNCTIONS, METHODS
from torchweld.capture.values.base import (
    Const,
    GeneratorValue,
    TupleValue,
    Value,
    boolean,
)
from torchweld.capture.values.yielded import AsyncValue, YieldedValue
from torchweld.ir.source import Source

Args = list[Value]
Kwargs = dict[str, Value]


async def _some() -> AsyncGenerator[None, None]:
    yield


def _kind_of(made: Any) -> type:
    made.close()  # or Python says that it was not awaited
    return type(made)


# what agen.asend(x) and agen.athrow(x) are
ASEND, ATHROW = _kind_of(_some().asend(None)), _kind_of(_some().aclose())


def is_awaitable(x: Value) -> bool:
    """Whether a generator may be awaited as it is."""
    return isinstance(x, GeneratorValue | AsyncValue) and x.cls() in (ASEND, ATHROW)


def outside(cap: Capture, obj: Any, source: Source) -> Value:
    """An asynchronous generator from outside, of which there is a new one in each call."""
    cap.guard("type", source, type(obj))
    return AsyncValue(type(obj), source)


def _build(r: Residual, x: AsyncValue) -> str:
    assert x.of is not None
    return r.assign(f"{r.expr(x.of)}.__anext__()")


BUILDERS[AsyncValue] = _build


# ------------------------------------------------------------------------------- generators
def _handing(cap: Capture, cont: Cont | None) -> Cont:
    """What is done with what the generator hands out: (whether it is yielded, the value)."""

    def hand(value: Value) -> None:
        own = isinstance(value, YieldedValue)
        item = value.of if isinstance(value, YieldedValue) else value
        cap.deliver(TupleValue([boolean(own), item]), cont)

    return hand


def _ended(_: Value) -> None:
    raise raised(StopAsyncIteration)


def advance(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen, value = args
    assert isinstance(gen, GeneratorValue)
    resume(cap, gen, value, _handing(cap, cont), _ended)


def fail(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen, error = args
    assert isinstance(gen, GeneratorValue)
    throw(cap, gen, error, _handing(cap, cont), _ended)


def is_over(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (gen,) = args
    assert isinstance(gen, GeneratorValue)
    cap.deliver(boolean(gen.finished), cont)


def _method(name: str, kind: type, polyfill: Any) -> None:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        given = args if name != "__anext__" else [*args, Const(None)]
        if name != "athrow":
            call_as(cap, kind, polyfill, given, {}, cont)
            return
        error = args[-1] if len(args) < 4 and not isinstance(args[-1], Const) else args[1]
        if isinstance(error, Const) and isinstance(error.obj, type):
            cap.call(error, [], {}, lambda made: call_as(
                cap, kind, polyfill, [args[0], made], {}, cont))  # fmt: skip
            return
        call_as(cap, kind, polyfill, [args[0], error], {}, cont)

    METHODS.add((types.AsyncGeneratorType, name), handler)


def _itself(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(args[0], cont)


_method("__anext__", ASEND, polyfills_async.asend)
_method("asend", ASEND, polyfills_async.asend)
_method("athrow", ATHROW, polyfills_async.athrow)
_method("aclose", ATHROW, polyfills_async.aclose)
METHODS.add((types.AsyncGeneratorType, "__aiter__"), _itself)
FUNCTIONS.add(polyfills_async.advance, advance)
FUNCTIONS.add(polyfills_async.fail, fail)
FUNCTIONS.add(polyfills_async.is_over, is_over)


# ------------------------------------------------------------------------ asynchronous loops
def aiter_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """aiter(x), and how an asynchronous loop begins."""
    _special(cap, args[0], "__aiter__", "async for' requires an object with __aiter__ method", cont)


def anext_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """anext(x), and what each round of an asynchronous loop awaits."""
    if len(args) > 1:
        cap.call(Const(polyfills_async.anext_or), args, {}, cont)
        return
    _special(cap, args[0], "__anext__", "async for' requires an iterator with __anext__ method",
             cont)  # fmt: skip


def _special(cap: Capture, x: Value, name: str, needs: str, cont: Cont | None) -> None:
    hook: Callable[..., Any] | None = user_method(cap, x, name)
    if hook is None and isinstance(x, GeneratorValue) and x.kind is types.AsyncGeneratorType:
        hook = mro_lookup(x.kind, name)
    if isinstance(x, AsyncValue) and x.kind is types.AsyncGeneratorType:
        cap.deliver(x if name == "__aiter__" else AsyncValue(ASEND, None, x), cont)
        return
    if hook is None:
        raise refuse("W107", f"'{needs}, got {x.cls().__name__}", cap.loc())
    cap.call(Const(hook), [x], {}, cont)
