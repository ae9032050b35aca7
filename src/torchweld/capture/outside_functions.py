"""Real functions for those that a frame makes, to be called when the graph runs."""

from __future__ import annotations

import functools
import types
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import Stuck, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    FunctionValue,
    Mutable,
    NotConstant,
    PartialValue,
    Slot,
    Value,
    constant,
)


def real_function(cap: Capture, fn: Value) -> Any:
    """A function that does what `fn` does, whenever it is called.

    What it refers to are constants and objects from outside, whose identity is guarded; it must
    refer to the same when the frame ends.
    Errors: GraphBreak for a function that refers to something else.
    """
    match fn:
        case FunctionValue():
            return _made(cap, fn)
        case PartialValue():
            args = [_real(cap, x) for x in fn.args]
            named = {k: _real(cap, x) for k, x in fn.kwargs.items()}
            return functools.partial(_real(cap, fn.func), *args, **named)
    return _real(cap, fn)


def _made(cap: Capture, fn: FunctionValue) -> Any:
    table = _real(cap, fn.globals)
    defaults = tuple(_real(cap, x) for x in fn.defaults)
    cells = tuple(_cell(cap, c) for c in fn.closure)
    made = types.FunctionType(fn.code, table, fn.name, defaults or None, cells)
    made.__kwdefaults__ = {k: _real(cap, x) for k, x in fn.kwdefaults.items()}
    return made


def _cell(cap: Capture, cell: CellValue) -> types.CellType:
    if isinstance(cell.real, types.CellType) and not cell.changed:
        if cell.source is not None:
            cap.guard("is", cell.source, cell.real)
        return cell.real
    stops = stops_of(cap)
    cap.builder.fixed.append((cell, cell.contents, stops[0] if stops else 0))
    return types.CellType(_real(cap, cell.contents))


def check_fixed(cap: Capture, goes_on: bool) -> None:
    """Errors: GraphBreak if a variable of such a function has another value by now, or may get one.

    goes_on: whether the frame has not ended.
    """
    for cell, before, stop in cap.builder.fixed:
        if goes_on or cell.contents is not before:
            why = "a variable changes that a function uses later"
            raise Stuck("W106", why, cap.loc(), stop) if stop else refuse("W106", why, cap.loc())


def _real(cap: Capture, slot: Slot | None) -> Any:
    value = cap.force(slot) if slot is not None else None
    if isinstance(value, FunctionValue | PartialValue):
        return real_function(cap, value)
    if isinstance(value, BoundValue):
        return types.MethodType(_real(cap, value.func), _real(cap, value.self_))
    if isinstance(value, Mutable) and value.real is not None and value.source is not None:
        if not value.changed:
            cap.guard("is", value.source, value.real)
            return value.real
    elif value is not None:
        try:
            return constant(cap.unwrap(value))
        except NotConstant:
            pass
    raise refuse("W107", "a function that refers to what the frame makes", cap.loc())
