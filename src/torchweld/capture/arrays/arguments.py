"""The arguments of NumPy functions that are no ufuncs, by name, and as constants."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from torchweld.capture.arrays.record import constant_array, holds_array
from torchweld.capture.arrays.ufuncs import as_array
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import CallHandler
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    ListValue,
    NotConstant,
    TupleValue,
    Value,
    constant,
)

Args = list[Value]
Kwargs = dict[str, Value]
# (capture, name -> argument) -> result
Body = Callable[[Capture, Kwargs], Value]


def no(cap: Capture, why: str) -> Exception:
    return refuse("W103", why, cap.loc())


@functools.lru_cache(maxsize=256)
def _signature(fn: Any) -> inspect.Signature:
    return inspect.signature(fn)


# the arguments of functions in C, which older NumPy does not tell
_IN_C = {np.array: ("object", "dtype"), np.asarray: ("a", "dtype"),
         np.where: ("condition", "x", "y"), np.concatenate: ("arrays", "axis", "out"),
         np.dot: ("a", "b", "out"), np.empty_like: ("prototype", "dtype")}  # fmt: skip


def _named(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Kwargs:
    """The arguments by name."""
    try:
        bound = _signature(fn).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise no(cap, str(error)) from None
    except ValueError:
        names = _IN_C[fn]
        if len(args) > len(names):
            raise no(cap, f"numpy.{fn.__name__} of {len(args)} arguments") from None
        return {**dict(zip(names, args, strict=False)), **kwargs}
    return {k: TupleValue([*v]) if isinstance(v, tuple) else v for k, v in bound.items()}


def handler(fn: Any, body: Body) -> CallHandler:
    """Calls of `fn`: of constants for real, of arrays through `body`, which takes names."""

    def run(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        for x in (*args, *kwargs.values()):
            if isinstance(x, ListValue | TupleValue):
                cap.force_items(x.items)
        if any(holds_array(x) for x in (*args, *kwargs.values())):
            cap.deliver(body(cap, _named(cap, fn, args, kwargs)), cont)
        else:
            cap.deliver(of_constants(cap, fn, args, kwargs), cont)

    return run


def of_constants(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """The result of a function without side effects. Errors: GraphBreak."""
    try:
        real = [constant(cap.unwrap(a)) for a in args]
        named = {k: constant(cap.unwrap(v)) for k, v in kwargs.items()}
    except NotConstant:
        raise no(cap, f"numpy.{fn.__name__} of values that are not constant") from None
    try:
        found = fn(*real, **named)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    if isinstance(found, np.ndarray):
        return constant_array(cap, found)
    if isinstance(found, np.generic | bool | int | float | np.dtype):
        return Const(found)
    raise no(cap, f"numpy.{fn.__name__} gives a {type(found).__name__}")


def only(cap: Capture, given: Kwargs, *names: str) -> None:
    """Refuse arguments other than these, unless they say nothing."""
    for name, x in given.items():
        nothing = isinstance(x, Const) and (x.obj is None or x.obj is np._NoValue)
        if name not in names and not nothing and not _is_default(name, x):
            raise no(cap, f"the argument {name} of a NumPy function")


_DEFAULTS: dict[str, tuple[object, ...]] = {
    "order": ("C", "K"), "subok": (True, False), "copy": (None,), "keepdims": (False,),
    "mode": ("raise",), "like": (None,), "optimize": (False,),
}  # fmt: skip


def _is_default(name: str, x: Value) -> bool:
    return isinstance(x, Const) and x.obj in _DEFAULTS.get(name, ())


def first(cap: Capture, given: Kwargs) -> ArrayValue:
    return as_array(cap, next(iter(given.values())))


def number(cap: Capture, given: Kwargs, name: str, default: Any = None) -> Any:
    """An argument that has to be known now."""
    if name not in given:
        return default
    try:
        found = constant(cap.unwrap(given[name]))
    except NotConstant:
        raise no(cap, f"{name} is not a constant") from None
    return default if found is np._NoValue else found
