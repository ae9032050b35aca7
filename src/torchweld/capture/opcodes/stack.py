"""The stack itself, and constants."""

from __future__ import annotations

import importlib

from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import Const, InstanceValue, Lazy, Slot, TupleValue, Value
from torchweld.frame.instr import Instr


@opcode("LOAD_CONST")
def load_const(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(literal(i.arg))


def literal(obj: object) -> Value:
    """A constant of the code object; tuples are opened so that their items are values."""
    if type(obj) is tuple:
        return TupleValue([literal(x) for x in obj])
    if type(obj) is frozenset:
        return Const(obj)
    return Const(obj)


@opcode("POP_TOP")
def pop_top(cap: Capture, f: VFrame, i: Instr) -> None:
    if cap.is_rest:
        note_dropped(cap, f.stack[-1])
    f.stack.pop()


def note_dropped(cap: Capture, was: Slot | None) -> None:
    """A variable of a rest, or a slot of its stack, has this value no more: see let_go.py."""
    if isinstance(was, InstanceValue | Lazy):
        importlib.import_module("torchweld.capture.let_go").check_dropped(cap, was)


@opcode("COPY")
def copy(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(f.stack[-i.arg])


@opcode("SWAP")
def swap(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]
