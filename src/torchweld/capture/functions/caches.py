"""Functions that remember: functools.lru_cache, called or made in the frame, and singledispatch.

What a cached function remembers is looked at in the capture; the compiled code calls it again at
the end, so that it counts, forgets and remembers as in eager. What it does not remember is
interpreted, and must be a constant.
"""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

from torchweld.capture import polyfills_caches
from torchweld.capture.attrs import from_python
from torchweld.capture.functions.builtin import polyfill
from torchweld.capture.late import LateNumber
from torchweld.capture.lru import NOTHING, Arguments, Gives, Remembered
from torchweld.capture.namespaces import of_the_user
from torchweld.capture.numbers import is_graph_number
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.symbolic import is_varying
from torchweld.capture.tables import function, klass, method
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    Mutable,
    NotConstant,
    TupleValue,
    Value,
    constant,
    next_age,
)
from torchweld.capture.wrap import IMMUTABLE

Args = list[Value]
Kwargs = dict[str, Value]


@method(functools._lru_cache_wrapper, "__call__")
def call_cached(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A call of a cached function from outside; of a logger's method it is an effect."""
    fn, *given = args
    assert isinstance(fn, Const)
    real: Any = fn.obj
    if given and isinstance(given[0], InstanceValue) and issubclass(
            given[0].klass, logging.Logger):  # fmt: skip
        cap.effects.append((Const(real), given, kwargs))
        cap.deliver(Const(None), cont)
        return
    if any(map(_varies, (*given, *kwargs.values()))):
        _interpret(cap, fn, None, (given, kwargs), cont)
        return
    key = _key(cap, real, given, kwargs)
    source, memory = fn.source or cap.pin(real), Remembered(real)
    found, ours = memory.result(key), _is_ours(real)
    if found is NOTHING:
        _interpret(cap, fn, functools.partial(Gives, memory, key), (given, kwargs), cont)
        return
    lasts = _lasts(found)
    if ours or not lasts:
        cap.guard("predicate", source, Gives(memory, key, found, missing=False))
    _count(cap, real, given, kwargs)
    cap.deliver(from_python(found) if lasts else cap.wrap(found, cap.pin(found)), cont)


def _lasts(x: object) -> bool:
    """Whether another object that is equal does as well."""
    return all(map(_lasts, x)) if type(x) is tuple else isinstance(x, IMMUTABLE)


def _varies(x: Value) -> bool:
    """Whether a number is not known, as one that changes between calls: no key to look for."""
    return is_varying(x) or is_graph_number(x) or (isinstance(x, LateNumber) and not x.fixed)


def _is_ours(real: Any) -> bool:
    """Whether somebody may look at what a cached function has counted; else it is installed."""
    code = getattr(real.__wrapped__, "__code__", None)
    return code is None or of_the_user(code.co_filename)


def _count(cap: Capture, real: Any, args: Args, kwargs: Kwargs) -> None:
    """The call itself, once the frame has ended; what a function calls that runs then calls it."""
    if _is_ours(real) and not cap.pure:
        cap.effects.append((Const(real), args, kwargs))


def _key(cap: Capture, real: Any, args: Args, kwargs: Kwargs) -> Arguments:
    """What the arguments are filed under. Errors: GraphBreak for objects that the frame makes."""
    named = tuple((k, _part(cap, real, v)) for k, v in kwargs.items())
    return tuple(_part(cap, real, a) for a in args), named


def _part(cap: Capture, real: Any, x: Value) -> Any:
    name = getattr(real, "__qualname__", "function")
    if isinstance(x, InstanceValue):
        if x.source is None or x.real is None or type(x.real).__hash__ is not object.__hash__:
            raise refuse("W103", f"cached {name} of an object", cap.loc())
        cap.guard("is", x.source, x.real)
        return x.real
    try:
        part = constant(cap.unwrap(x))
        hash(part)
    except (NotConstant, TypeError):
        raise refuse("W103", f"cached {name} of a {x.cls().__name__}", cap.loc()) from None
    return part


def _interpret(cap: Capture, fn: Const, gives: Callable[..., Gives] | None,
               given: tuple[Args, Kwargs], cont: Cont | None) -> None:  # fmt: skip
    """Run a function that eager runs once: it must change nothing, and give a constant.

    gives: makes the guard that it gives a result; None if that is not known.
    Errors: GraphBreak if it does not; the frame is captured again when the result is remembered.
    """
    real: Any = fn.obj
    source, name = fn.source or cap.pin(real), getattr(real, "__qualname__", "function")
    before, age = (len(cap.effects), dict(cap.globals_written)), next_age()
    if gives is not None:
        cap.until.append((source, gives(NOTHING, missing=False)))
    if not isinstance(real.__wrapped__, types.FunctionType):
        raise refuse("W103", f"cached {name} is written in C", cap.loc())
    cap.pure.append(age)

    def done(made: Value) -> None:
        cap.pure.pop()
        outside = any(c.source is not None and c.age > age for c in cap.changed)
        if outside or (len(cap.effects), cap.globals_written) != before:
            raise refuse("W106", f"the first call of cached {name} has a side effect", cap.loc(),
                         "none needed: what it remembers is part of the next graph")  # fmt: skip
        try:
            result = NOTHING if _varies(made) else _object(made)
        except NotConstant:
            why = f"cached {name} gives a {made.cls().__name__}"
            raise refuse("W103", why, cap.loc()) from None
        cap.until = cap.until[: -1 if gives is not None else None]
        if gives is not None and result is not NOTHING and _is_ours(real):
            cap.guard("predicate", source, gives(result, missing=True))
        _count(cap, real, *given)
        cap.deliver(made, cont)

    def failed(_: Value) -> bool:
        cap.pure.pop()
        cap.until = cap.until[: -1 if gives is not None else None]
        return False

    cap.call(Const(real.__wrapped__), *given, done, failed)


def _object(x: Value) -> object:
    """What a cached function has given: a constant, or an object from outside.

    Errors: NotConstant for what is made anew when the function runs.
    """
    if isinstance(x, Mutable) and x.source is not None and x.real is not None:
        return x.real
    if isinstance(x, Const | TupleValue):
        return constant(x)
    raise NotConstant


@klass(functools._lru_cache_wrapper)
def make_cached(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.call(Const(polyfills_caches.cached), args, kwargs, cont)


# -------------------------------------------------------------------------------- singledispatch
polyfill(functools.singledispatch, polyfills_caches.dispatching)


@function(polyfills_caches.nearest)
def nearest(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, known = (constant(cap.unwrap(a)) for a in args)
    found = functools._find_impl(kind, dict(zip(known, known, strict=True)))  # type: ignore[attr-defined]
    cap.deliver(Const(found), cont)
