"""Calls, function definitions and imports."""

from __future__ import annotations

import importlib.util
import sys
import types

from torchweld.capture.attrs import get_attr
from torchweld.capture.functions.containers import collect
from torchweld.capture.items import dict_set, iterable
from torchweld.capture.namespaces import of_the_user
from torchweld.capture.ops import payload
from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.wrap import complete
from torchweld.frame.instr import Instr
from torchweld.ir.source import Item


@opcode("CALL")
def call_op(cap: Capture, f: VFrame, i: Instr) -> None:
    n, names = i.arg
    values = f.popn(n)
    fn = f.stack.pop()
    split = n - len(names)
    cap.call(fn, values[:split], dict(zip(names, values[split:], strict=True)))


@opcode("CALL_EX")
def call_ex(cap: Capture, f: VFrame, i: Instr) -> None:
    named = payload(f.stack.pop()) if i.arg else None
    given = f.stack.pop()
    fn = f.stack.pop()
    kwargs: dict[str, Value] = {}
    if named is not None:
        if not isinstance(named, DictValue):
            raise refuse("W107", f"** of {named.cls().__name__}", cap.loc())
        complete(cap, named)
        for key in named.items:
            if not isinstance(key, str):
                raise raised(TypeError, "keywords must be strings")
            named.items[key] = kwargs[key] = cap.force(named.items[key])
    if not iterable(cap, given):
        raise raised(TypeError, f"{called(fn)} argument after * must be an iterable, not "
                                f"{given.cls().__name__}")  # fmt: skip
    collect(cap, given, lambda args: cap.call(fn, args, kwargs))


def called(fn: Value) -> str:
    """How Python names what is called, in an error about its arguments."""
    if isinstance(fn, BoundValue):
        return called(fn.func)
    real = fn.obj if isinstance(fn, Const) else None
    name, module = getattr(real, "__qualname__", "function"), getattr(real, "__module__", None)
    if isinstance(fn, FunctionValue):
        name, module = fn.qualname, constant(fn.globals).get("__name__")
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@opcode("MAKE_FUNCTION")
def make_function(cap: Capture, f: VFrame, i: Instr) -> None:
    code = f.stack.pop()
    assert isinstance(code, Const)
    assert isinstance(code.obj, types.CodeType)
    closure: tuple[CellValue, ...] = ()
    defaults: list[Value] = []
    kwdefaults: dict[str, Value] = {}
    annotations: Value | None = None
    if "closure" in i.arg:
        cells = f.stack.pop()
        assert isinstance(cells, TupleValue)
        closure = tuple(cap.force_items(cells.items))  # type: ignore[arg-type]
    if "annotations" in i.arg:
        annotations = f.stack.pop()
    if "kwdefaults" in i.arg:
        named = f.stack.pop()
        assert isinstance(named, DictValue)
        kwdefaults = {str(k): cap.force(v) for k, v in named.items.items()}
    if "defaults" in i.arg:
        given = f.stack.pop()
        assert isinstance(given, TupleValue)
        defaults = list(cap.force_items(given.items))
    made = FunctionValue(code.obj, Const(f.globals), closure, defaults, kwdefaults)
    if annotations is not None:
        made.attrs["__annotations__"] = _annotations(cap, annotations)
    f.stack.append(made)


def _annotations(cap: Capture, given: Value) -> Value:
    """The dict behind a tuple of names and annotations."""
    if not isinstance(given, TupleValue):
        return given
    out = DictValue(dict)
    items = cap.force_items(given.items)
    for key, value in zip(items[::2], items[1::2], strict=True):
        dict_set(cap, out, key, value)
    return out


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(cap: Capture, f: VFrame, i: Instr) -> None:
    fn, value = f.stack.pop(), f.stack.pop()
    assert isinstance(fn, FunctionValue)
    if i.arg == "closure" and isinstance(value, TupleValue):
        fn.closure = tuple(cap.force_items(value.items))  # type: ignore[arg-type]
    elif i.arg == "defaults" and isinstance(value, TupleValue):
        fn.defaults = list(cap.force_items(value.items))
    elif i.arg == "kwdefaults" and isinstance(value, DictValue):
        fn.kwdefaults = {str(k): cap.force(v) for k, v in value.items.items()}
    elif i.arg == "annotations":
        fn.attrs["__annotations__"] = _annotations(cap, value)
    f.stack.append(fn)


@opcode("IMPORT_NAME")
def import_name(cap: Capture, f: VFrame, i: Instr) -> None:
    level, names = f.popn(2)
    fromlist = constant(names)
    package = str(f.globals.get("__package__") or f.globals.get("__name__", ""))
    depth = constant(level)
    name = i.arg if not depth else importlib.util.resolve_name("." * depth + i.arg, package)
    if name not in sys.modules:
        raise refuse("W106", f"import of {name}, which was not imported before", cap.loc())
    if not fromlist and not depth:
        name = name.split(".")[0]
    found = sys.modules[name]
    if of_the_user(str(getattr(found, "__file__", None) or "")):
        cap.guard("is", Item.make(cap.pin(sys.modules, "sys.modules"), name, False), found)
    f.stack.append(Const(found))


@opcode("IMPORT_FROM")
def import_from(cap: Capture, f: VFrame, i: Instr) -> None:
    module = f.stack[-1]
    try:
        get_attr(cap, module, i.arg)
    except Raised:
        of = constant(module)
        place = getattr(of, "__file__", None) or "unknown location"
        raise raised(ImportError, f"cannot import name {i.arg!r} from {of.__name__!r} ({place})"
                     ) from None  # fmt: skip


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(Const(AssertionError))
