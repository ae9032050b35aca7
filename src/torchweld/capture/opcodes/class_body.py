"""The body of a class statement: names live in a dict of their own."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable
from typing import Any

from torchweld.capture.opcodes.names import load_deref, read_global
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import Const, DictValue, Value
from torchweld.frame.instr import Instr


@opcode("LOAD_BUILD_CLASS")
def load_build_class(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(Const(builtins.__build_class__))


class NamesValue(Value):
    """What the body of a class statement has defined so far."""

    __slots__ = ("names",)

    def __init__(self, names: dict[str, Value]) -> None:
        super().__init__(None)
        self.names = names

    def cls(self) -> type:
        return dict


def _names(cap: Capture, f: VFrame) -> dict[str, Value]:
    if f.names is None:
        raise refuse("W110", "a name in code that is no function", cap.loc())
    return f.names


@opcode("LOAD_NAME")
def load_name(cap: Capture, f: VFrame, i: Instr) -> None:
    _push(f, _names(cap, f).get(i.arg), lambda: read_global(cap, f, i.arg))


def _push(f: VFrame, found: Value | None, otherwise: Callable[[], Value]) -> None:
    f.stack.append(found if found is not None else otherwise())


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
    f.stack.append(NamesValue(_names(cap, f)))


@opcode("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(cap: Capture, f: VFrame, i: Instr) -> None:
    found = _of_class(cap, f).get(i.arg)
    if found is None:
        load_deref(cap, f, i)
    else:
        f.stack.append(found)


def _of_class(cap: Capture, f: VFrame) -> dict[str, Value]:
    """What a class statement has defined, of its body or of what is written in it."""
    names = f.stack.pop()
    if not isinstance(names, NamesValue):
        raise refuse("W110", "a name of a class that is made already", cap.loc())
    return names.names


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(cap: Capture, f: VFrame, i: Instr) -> None:
    _push(f, _of_class(cap, f).get(i.arg), lambda: read_global(cap, f, i.arg))


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(cap: Capture, f: VFrame, i: Instr) -> None:
    _names(cap, f).setdefault("__annotations__", DictValue(dict))


# ------------------------------------------------------------ type parameters, from Python 3.12 on
def _parameters(name: str) -> Any:
    """A function of the module that few programs need."""
    return getattr(importlib.import_module("torchweld.capture.functions.type_parameters"), name)


@opcode("TYPEVAR")
def typevar(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(_parameters("parameter")(cap, "", f.stack.pop()))


@opcode("PARAMSPEC")
def paramspec(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(_parameters("parameter")(cap, "**", f.stack.pop()))


@opcode("TYPEVARTUPLE")
def typevartuple(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(_parameters("parameter")(cap, "*", f.stack.pop()))


@opcode("TYPEVAR_WITH_BOUND")
def typevar_with_bound(cap: Capture, f: VFrame, i: Instr) -> None:
    name, bound = f.popn(2)
    _parameters("bounded")(cap, name, bound, f.push)


@opcode("TYPEVAR_WITH_CONSTRAINTS")
def typevar_with_constraints(cap: Capture, f: VFrame, i: Instr) -> None:
    name, constraints = f.popn(2)
    _parameters("bounded")(cap, name, constraints, f.push)


@opcode("SUBSCRIPT_GENERIC")
def subscript_generic(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(_parameters("generic")(cap, f.stack.pop()))


@opcode("TYPEALIAS")
def typealias(cap: Capture, f: VFrame, i: Instr) -> None:
    _parameters("alias")(cap, f.stack.pop(), f.push)


@opcode("SET_FUNCTION_TYPE_PARAMS")
def set_function_type_params(cap: Capture, f: VFrame, i: Instr) -> None:
    function, parameters = f.popn(2)
    _parameters("set_parameters")(cap, function, parameters)
    f.stack.append(function)
