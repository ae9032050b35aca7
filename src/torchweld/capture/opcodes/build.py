"""Containers and strings."""

from __future__ import annotations

from torchweld.capture.items import dict_set, list_of
from torchweld.capture.ops import payload
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, raised, refuse
from torchweld.capture.strings import format_value
from torchweld.capture.tables import METHODS, opcode
from torchweld.capture.values.base import (
    Const,
    DictValue,
    GeneratorValue,
    InstanceValue,
    ListValue,
    SetValue,
    TupleValue,
    Value,
    constant,
    hash_key,
)
from torchweld.frame.instr import Instr


@opcode("BUILD_TUPLE")
def build_tuple(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(TupleValue(list(f.popn(i.arg))))


@opcode("BUILD_LIST")
def build_list(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(ListValue(list(f.popn(i.arg))))


@opcode("BUILD_SET")
def build_set(cap: Capture, f: VFrame, i: Instr) -> None:
    out = SetValue()
    for item in f.popn(i.arg):
        _set_add(out, item)
    f.stack.append(out)


def _set_add(box: SetValue, item: Value) -> None:
    try:
        box.items.setdefault(hash_key(item), item)
    except TypeError as error:
        raise raised(TypeError, *error.args) from None


@opcode("BUILD_MAP")
def build_map(cap: Capture, f: VFrame, i: Instr) -> None:
    out = DictValue()
    parts = f.popn(2 * i.arg)
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        dict_set(cap, out, key, value)
    f.stack.append(out)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(cap: Capture, f: VFrame, i: Instr) -> None:
    out = DictValue()
    keys = constant(f.stack.pop())
    for key, value in zip(keys, f.popn(i.arg), strict=True):
        dict_set(cap, out, Const(key), value)
    f.stack.append(out)


@opcode("BUILD_STRING")
def build_string(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(Const("".join(constant(p) for p in f.popn(i.arg))))


@opcode("FORMAT_VALUE")
def format_op(cap: Capture, f: VFrame, i: Instr) -> None:
    conversion, has_spec = i.arg
    spec = constant(f.stack.pop()) if has_spec else ""
    format_value(cap, f.stack.pop(), conversion, spec)


@opcode("CONVERT_VALUE")
def convert_op(cap: Capture, f: VFrame, i: Instr) -> None:
    format_value(cap, f.stack.pop(), i.arg, "")


@opcode("LIST_APPEND")
def list_append(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    assert isinstance(box, ListValue)
    box.items.append(item)


@opcode("SET_ADD")
def set_add(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    assert isinstance(box, SetValue)
    _set_add(box, item)


@opcode("MAP_ADD")
def map_add(cap: Capture, f: VFrame, i: Instr) -> None:
    key, value = f.popn(2)
    box = f.stack[-i.arg]
    assert isinstance(box, DictValue)
    dict_set(cap, box, key, value)


@opcode("LIST_EXTEND")
def list_extend(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    METHODS[(list, "extend")](cap, [box, item], {}, lambda _: None)


@opcode("SET_UPDATE")
def set_update(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    METHODS[(set, "update")](cap, [box, item], {}, lambda _: None)


@opcode("DICT_UPDATE")
def dict_update(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    METHODS[(dict, "update")](cap, [box, item], {}, lambda _: None)


@opcode("DICT_MERGE")
def dict_merge(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    METHODS[(dict, "update")](cap, [box, item], {}, lambda _: None)


@opcode("LIST_TO_TUPLE")
def list_to_tuple(cap: Capture, f: VFrame, i: Instr) -> None:
    box = f.stack.pop()
    assert isinstance(box, ListValue)
    f.stack.append(TupleValue(list(box.items)))


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(cap: Capture, f: VFrame, i: Instr) -> None:
    items = _unpackable(cap, f.stack.pop())
    if len(items) != i.arg:
        what = "not enough" if len(items) < i.arg else "too many"
        raise raised(ValueError, f"{what} values to unpack (expected {i.arg})")
    f.stack.extend(reversed(items))


def _unpackable(cap: Capture, x: Value) -> list[Value]:
    if isinstance(x, GeneratorValue) or (isinstance(x, InstanceValue) and payload(x) is x):
        raise refuse("W107", f"unpacking of {x.cls().__name__}", cap.loc())
    return list_of(cap, x)


@opcode("UNPACK_EX")
def unpack_ex(cap: Capture, f: VFrame, i: Instr) -> None:
    before, after = i.arg
    items = _unpackable(cap, f.stack.pop())
    if len(items) < before + after:
        raise raised(ValueError, f"not enough values to unpack (expected at least {before + after})")
    end = len(items) - after
    f.stack.extend(reversed(items[end:]))
    f.stack.append(ListValue(list(items[before:end])))
    f.stack.extend(reversed(items[:before]))
