"""The body of a class statement: names live in a dict of their own."""

from __future__ import annotations

import builtins

from torchweld.capture.opcodes.names import load_deref, read_global
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import NONE, Const, DictValue, Value
from torchweld.frame.instr import Instr


@opcode("LOAD_BUILD_CLASS")
def load_build_class(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(Const(builtins.__build_class__))


def _names(cap: Capture, f: VFrame) -> dict[str, Value]:
    if f.names is None:
        raise refuse("W110", "a name in code that is no function", cap.loc())
    return f.names


@opcode("LOAD_NAME")
def load_name(cap: Capture, f: VFrame, i: Instr) -> None:
    found = _names(cap, f).get(i.arg)
    f.stack.append(found if found is not None else read_global(cap, f, i.arg))


@opcode("STORE_NAME")
def store_name(cap: Capture, f: VFrame, i: Instr) -> None:
    _names(cap, f)[i.arg] = f.stack.pop()


@opcode("DELETE_NAME")
def delete_name(cap: Capture, f: VFrame, i: Instr) -> None:
    if _names(cap, f).pop(i.arg, None) is None:
        raise raised(NameError, f"name '{i.arg}' is not defined")


@opcode("LOAD_CLASSDEREF")
def load_classderef(cap: Capture, f: VFrame, i: Instr) -> None:
    found = _names(cap, f).get(i.arg)
    if found is None:
        load_deref(cap, f, i)
    else:
        f.stack.append(found)


@opcode("LOAD_LOCALS")
def load_locals(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(NONE)  # only the next two instructions take it, and they know the names


@opcode("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.pop()
    load_classderef(cap, f, i)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.pop()
    load_name(cap, f, i)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(cap: Capture, f: VFrame, i: Instr) -> None:
    _names(cap, f).setdefault("__annotations__", DictValue(dict))
