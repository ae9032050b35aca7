"""Operators and subscripts."""

from __future__ import annotations

from torchweld.capture.comparison import compare, contains
from torchweld.capture.identity import same
from torchweld.capture.items import del_item, get_item, set_item
from torchweld.capture.open_numbers import ask, keep_apart
from torchweld.capture.ops import binary, unary
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame
from torchweld.capture.symbolic import is_varying
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import (
    NONE,
    Const,
    DictValue,
    NotConstant,
    SliceValue,
    Value,
    boolean,
    constant,
)
from torchweld.frame.instr import Instr

_KEY = "a key of a dict differs from call to call"


@opcode("BINARY_OP")
def binary_op(cap: Capture, f: VFrame, i: Instr) -> None:
    a, b = f.popn(2)
    made = cap.late.binary(i.arg, a, b) if cap.late.active else None
    if made is None:
        binary(cap, i.arg, a, b)
    else:
        f.stack.append(made)


@opcode("UNARY")
def unary_op(cap: Capture, f: VFrame, i: Instr) -> None:
    x = f.stack.pop()
    made = cap.late.unary(i.arg, x) if cap.late.active else None
    if made is None:
        unary(cap, i.arg, x)
    else:
        f.stack.append(made)


@opcode("COMPARE_OP")
def compare_op(cap: Capture, f: VFrame, i: Instr) -> None:
    a, b = f.popn(2)
    if is_varying(a) or is_varying(b):
        ask(cap, f, a, b)
    compare(cap, i.arg, a, b)


@opcode("IS_OP")
def is_op(cap: Capture, f: VFrame, i: Instr) -> None:
    a, b = f.popn(2)
    f.stack.append(boolean(same(cap, a, b) != bool(i.arg)))


@opcode("CONTAINS_OP")
def contains_op(cap: Capture, f: VFrame, i: Instr) -> None:
    item, container = f.popn(2)
    contains(cap, container, item, lambda t: cap.deliver(boolean(t != bool(i.arg)), None))


@opcode("BINARY_SUBSCR")
def binary_subscr(cap: Capture, f: VFrame, i: Instr) -> None:
    obj, key = f.popn(2)
    if cap.is_rest and is_varying(key) and isinstance(obj, DictValue) and obj.source is not None:
        keep_apart(cap, _KEY)
    get_item(cap, obj, key)


@opcode("STORE_SUBSCR")
def store_subscr(cap: Capture, f: VFrame, i: Instr) -> None:
    value, obj, key = f.popn(3)
    if is_varying(key) and isinstance(obj, DictValue) and obj.source is not None:
        keep_apart(cap, _KEY)
    set_item(cap, obj, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(cap: Capture, f: VFrame, i: Instr) -> None:
    obj, key = f.popn(2)
    del_item(cap, obj, key)


def make_slice(parts: list[Value]) -> Value:
    """slice(...) of two or three values."""
    full = (*parts, *[NONE] * (3 - len(parts)))
    if any(is_varying(p) for p in full):
        return SliceValue(full)  # type: ignore[arg-type]
    try:
        return Const(slice(*(constant(p) for p in full)))
    except NotConstant:
        return SliceValue(full)  # type: ignore[arg-type]


@opcode("BUILD_SLICE")
def build_slice(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(make_slice(f.popn(i.arg)))


@opcode("BINARY_SLICE")
def binary_slice(cap: Capture, f: VFrame, i: Instr) -> None:
    obj, start, stop = f.popn(3)
    get_item(cap, obj, make_slice([start, stop]))


@opcode("STORE_SLICE")
def store_slice(cap: Capture, f: VFrame, i: Instr) -> None:
    value, obj, start, stop = f.popn(4)
    set_item(cap, obj, make_slice([start, stop]), value)
