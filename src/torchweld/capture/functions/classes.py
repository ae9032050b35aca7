"""Class statements, and what is done to classes and functions while they are made.

The body is interpreted like any other code; then the class is made for real (private.py).
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from torchweld.capture.attrs import MISSING, mro_lookup
from torchweld.capture.calls import push_frame
from torchweld.capture.private import keep, real_cell, real_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import CLASSES, FUNCTIONS, METHODS, CallHandler, function
from torchweld.capture.values.base import (
    CellValue,
    Const,
    FunctionValue,
    PartialValue,
    Value,
)
from torchweld.frame.decode import decode

Args = list[Value]
Kwargs = dict[str, Value]

_TRUSTED = frozenset((*sys.stdlib_module_names, "torch", "typing_extensions")) - {"__main__"}
# methods that run while a class is made: those of the user's may do anything
_RUN_BY_TYPE = ("__init_subclass__", "__mro_entries__")
_RUN_BY_ENUM = ("__new__", "__init__", "_generate_next_value_", "_missing_")


@function(builtins.__build_class__)
def build_class(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The class statement: run the body, then make the class."""
    body, name, *bases = args
    if not isinstance(body, FunctionValue) or not isinstance(name, Const):
        raise refuse("W107", "a class statement whose body is no function", cap.loc())
    given = tuple(real_of(cap, b) for b in bases)
    named = {k: real_of(cap, v) for k, v in kwargs.items()}
    for base in given:
        _need_trusted(cap, type(base), _RUN_BY_TYPE)
    resolved = types.resolve_bases(given)
    meta, namespace, named = _real(cap, types.prepare_class, str(name.obj), resolved, named)
    for base in (*meta.__mro__, *type(meta).__mro__):
        _need_trusted_class(cap, base)
    for base in resolved:
        _need_trusted(cap, base, _RUN_BY_TYPE)

    def made(_: Value) -> None:
        if resolved is not given:
            namespace["__orig_bases__"] = given
        cap.deliver(_make(cap, meta, str(name.obj), resolved, namespace, names, named), cont)

    code = decode(body.code)
    assert isinstance(body.globals, Const)
    assert isinstance(body.globals.obj, dict)
    cells = dict(zip(code.freevars, body.closure, strict=True))
    push_frame(cap, code, body.globals.obj, {}, cells, made, None, body)
    names: dict[str, Value] = {}
    cap.top.names = names


def _make(cap: Capture, meta: Any, name: str, bases: tuple[Any, ...], namespace: Any,
          names: dict[str, Value], named: dict[str, Any]) -> Value:  # fmt: skip
    own_cell = names.get("__classcell__")
    if issubclass(meta, enum.EnumMeta):
        _check_enum(cap, bases, names)
    for key, value in names.items():
        real = real_cell(cap, value) if isinstance(value, CellValue) else real_of(cap, value)
        _need_trusted(cap, type(real), ("__set_name__",))
        namespace[key] = real
    kind = keep(cap, _real(cap, meta, name, bases, namespace, **named))
    if isinstance(own_cell, CellValue):
        own_cell.contents = Const(kind)
    return Const(kind)


def _check_enum(cap: Capture, bases: Iterable[type], names: dict[str, Value]) -> None:
    """The machinery of enums looks at the values, and calls some methods."""
    for base in bases:
        _need_trusted(cap, base, _RUN_BY_ENUM)
    for name, value in names.items():
        if name in _RUN_BY_ENUM:
            raise refuse("W107", f"an enum with its own {name}, made in the frame", cap.loc())
        real = value if isinstance(value, CellValue) else real_of(cap, value)
        if id(real) in cap.private.stand_ins and not name.startswith("__"):
            raise refuse("W107", "an enum of values that are not constant", cap.loc())


def _real(cap: Capture, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """fn(*args) for real, on what only the frame knows; eager raises what it raises."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        why = f"{getattr(fn, '__name__', fn)} in a class statement: {type(error).__name__}: {error}"
        raise refuse("W107", why, cap.loc()) from None


def _need_trusted(cap: Capture, kind: type, names: Iterable[str]) -> None:
    """Refuse a class some of whose methods are the user's own."""
    for name in names:
        raw = mro_lookup(kind, name)
        if raw is not MISSING:
            owner = next(base for base in kind.__mro__ if name in base.__dict__)
            _need_trusted_class(cap, owner)


def _need_trusted_class(cap: Capture, kind: type) -> None:
    if kind.__module__.split(".")[0] not in _TRUSTED:
        raise refuse("W107", f"a class statement that runs code of {kind.__name__}", cap.loc())


# --------------------------------------------------------- what is done to classes and functions
def _run_for_real(fn: Any) -> CallHandler:
    """A handler that makes a real object of the frame's own out of the arguments."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        real_args = [real_of(cap, a) for a in args]
        made = _real(cap, fn, *real_args, **{k: real_of(cap, v) for k, v in kwargs.items()})
        cap.deliver(Const(keep(cap, made)), cont)

    return handler


for _kind in (property, staticmethod, classmethod, functools.cached_property, enum.auto):
    CLASSES.add(_kind, _run_for_real(_kind))
for _name in ("getter", "setter", "deleter"):
    METHODS.add((property, _name), _run_for_real(getattr(property, _name)))
FUNCTIONS.add(dataclasses.field, _run_for_real(dataclasses.field))


@function(collections.namedtuple)
def namedtuple(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    module = {"module": Const(cap.top.globals.get("__name__")), **kwargs}
    _run_for_real(collections.namedtuple)(cap, args, module, cont)


def _decorator(fn: Any) -> None:
    """A class decorator that changes the class: done for real to the frame's own classes."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if not args:
            cap.deliver(PartialValue(Const(fn), [], kwargs, functools.partial), cont)
            return
        kind = args[0]
        if not (isinstance(kind, Const) and isinstance(kind.obj, type)
                and cap.private.has(kind.obj)):  # fmt: skip
            raise refuse("W106", f"{fn.__name__} changes a class from outside", cap.loc())
        _run_for_real(fn)(cap, args, kwargs, cont)

    FUNCTIONS.add(fn, handler)


_decorators: tuple[Any, ...] = (
    dataclasses.dataclass, functools.total_ordering, enum.unique, typing.final,
    typing.runtime_checkable,
)  # fmt: skip
for _fn in _decorators:
    _decorator(_fn)
