"""Locals, cells, globals and attributes."""

from __future__ import annotations

import builtins

from torchweld.capture.attrs import get_attr
from torchweld.capture.attrs_write import del_attr, set_attr
from torchweld.capture.items import del_item, set_item
from torchweld.capture.namespaces import opened, written
from torchweld.capture.opcodes.stack import note_dropped
from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import (
    UNBOUND,
    CellValue,
    Const,
    DictValue,
    Lazy,
    SuperValue,
    Value,
)
from torchweld.capture.wrap import IMMUTABLE, read_key
from torchweld.frame.instr import Instr
from torchweld.ir.source import Item


@opcode("LOAD_FAST")
def load_fast(cap: Capture, f: VFrame, i: Instr) -> None:
    value = f.locals.get(i.arg)
    if value is None:
        raise _unbound(i.arg)
    if isinstance(value, Lazy):
        value = f.locals[i.arg] = cap.force(value)
    f.stack.append(value)


def _unbound(name: str) -> Raised:
    return raised(UnboundLocalError, f"cannot access local variable '{name}' where it is not "
                                     "associated with a value")  # fmt: skip


def _empty_cell(f: VFrame, name: str) -> Raised:
    if name in f.code.cellvars:
        return _unbound(name)
    return raised(NameError, f"cannot access free variable '{name}' where it is not associated "
                             "with a value in enclosing scope")  # fmt: skip


@opcode("STORE_FAST")
def store_fast(cap: Capture, f: VFrame, i: Instr) -> None:
    value = f.stack.pop()
    if cap.is_rest:
        note_dropped(cap, f.locals.get(i.arg))
    if value is UNBOUND:
        f.locals.pop(i.arg, None)
    else:
        f.locals[i.arg] = value


@opcode("DELETE_FAST")
def delete_fast(cap: Capture, f: VFrame, i: Instr) -> None:
    if cap.is_rest:
        note_dropped(cap, f.locals.get(i.arg))
    if f.locals.pop(i.arg, None) is None:
        raise _unbound(i.arg)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(f.locals.pop(i.arg, UNBOUND))


@opcode("LOAD_DEREF")
def load_deref(cap: Capture, f: VFrame, i: Instr) -> None:
    cell = f.cells[i.arg]
    if cell.contents is None:
        raise _empty_cell(f, i.arg)
    cell.contents = value = cap.force(cell.contents)
    cap.touched.append(cell)
    f.stack.append(value)


@opcode("STORE_DEREF")
def store_deref(cap: Capture, f: VFrame, i: Instr) -> None:
    cell = f.cells[i.arg]
    cell.contents = f.stack.pop()
    cap.mark(cell)


@opcode("DELETE_DEREF")
def delete_deref(cap: Capture, f: VFrame, i: Instr) -> None:
    cell = f.cells[i.arg]
    if cell.contents is None:
        raise _empty_cell(f, i.arg)
    cell.contents = None
    cap.mark(cell)


@opcode("LOAD_CLOSURE")
def load_closure(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(f.cells[i.arg])


@opcode("LOAD_CLOSURE_AND_CLEAR")
def load_closure_and_clear(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(f.cells.pop(i.arg, UNBOUND))


@opcode("STORE_CLOSURE")
def store_closure(cap: Capture, f: VFrame, i: Instr) -> None:
    """The slot itself: an inlined comprehension keeps a plain value there while it does not
    share the variable, and puts the cell back when it is done."""
    value = f.stack.pop()
    if value is UNBOUND:
        f.cells.pop(i.arg, None)
    else:
        f.cells[i.arg] = value  # type: ignore[assignment]


@opcode("MAKE_CELL")
def make_cell(cap: Capture, f: VFrame, i: Instr) -> None:
    f.cells[i.arg] = CellValue(f.cells.get(i.arg) or f.locals.pop(i.arg, None))


@opcode("LOAD_GLOBAL")
def load_global(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(read_global(cap, f, i.arg))


def read_global(cap: Capture, f: VFrame, name: str) -> Value:
    """A global of the frame, else a builtin."""
    box = opened(cap, f.globals)
    value = written(cap, f.globals, name) if box is None else read_key(cap, box, name)
    if value is not None:
        return value
    if box is None and name in f.globals:
        found = f.globals[name]
        if _is_own(f) and isinstance(found, IMMUTABLE):
            return Const(found)
        return cap.wrap(found, Item.make(f.globals_source, name, False))
    table = f.globals.get("__builtins__", builtins)
    names = table if isinstance(table, dict) else vars(table)
    if name not in names:
        raise raised(NameError, f"name '{name}' is not defined")
    if not _is_own(f):
        cap.guard("lacks_key", f.globals_source, name)
        cap.guard("is", Item.make(cap.pin(names, "builtins"), name, False), names[name])
    return Const(names[name])


def _is_own(f: VFrame) -> bool:
    """Globals of this package are taken as constant."""
    return str(f.globals.get("__name__", "")).split(".")[0] == "torchweld"


@opcode("STORE_GLOBAL")
def store_global(cap: Capture, f: VFrame, i: Instr) -> None:
    box = opened(cap, f.globals)
    if box is None:
        cap.globals_written[(id(f.globals), i.arg)] = (f.globals, f.stack.pop())
    else:
        set_item(cap, box, Const(i.arg), f.stack.pop())


@opcode("DELETE_GLOBAL")
def delete_global(cap: Capture, f: VFrame, i: Instr) -> None:
    box = cap.wrap(f.globals, f.globals_source)
    assert isinstance(box, DictValue)
    if read_key(cap, box, i.arg) is None:
        raise raised(NameError, f"name '{i.arg}' is not defined")
    del_item(cap, box, Const(i.arg))


@opcode("LOAD_ATTR")
def load_attr(cap: Capture, f: VFrame, i: Instr) -> None:
    get_attr(cap, f.stack.pop(), i.arg)


@opcode("STORE_ATTR")
def store_attr(cap: Capture, f: VFrame, i: Instr) -> None:
    obj = f.stack.pop()
    set_attr(cap, obj, i.arg, f.stack.pop())


@opcode("DELETE_ATTR")
def delete_attr(cap: Capture, f: VFrame, i: Instr) -> None:
    del_attr(cap, f.stack.pop(), i.arg)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(cap: Capture, f: VFrame, i: Instr) -> None:
    _, klass, self_ = f.popn(3)
    if not (isinstance(klass, Const) and isinstance(klass.obj, type)):
        raise refuse("W107", "super() of a class that is not constant", cap.loc())
    get_attr(cap, SuperValue(klass.obj, self_), i.arg)
