"""Containers and strings."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.capture import polyfills
from torchweld.capture.functions.containers import collect
from torchweld.capture.items import append, dict_set, iterable, list_of
from torchweld.capture.opcodes.call import called
from torchweld.capture.ops import filed_key, lacking, payload
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, raised, refuse
from torchweld.capture.strings import format_value, join_text
from torchweld.capture.tables import METHODS, opcode
from torchweld.capture.values.base import (
    Const,
    DictValue,
    ListValue,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.sequences import GrowingList, UnreadTuple
from torchweld.capture.wrap import complete
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
        _set_add(cap, out, item)
    f.stack.append(out)


def _set_add(cap: Capture, box: SetValue, item: Value) -> None:
    box.add(filed_key(cap, item), item)


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
    f.stack.append(join_text(cap, f.popn(i.arg)))


@opcode("FORMAT_VALUE")
def format_op(cap: Capture, f: VFrame, i: Instr) -> None:
    conversion, has_spec = i.arg
    spec = f.stack.pop() if has_spec else Const("")
    if not isinstance(spec, Const):
        raise refuse("W102", "a format that depends on a Tensor", cap.loc())
    format_value(cap, f.stack.pop(), conversion, str(spec.obj))


@opcode("CONVERT_VALUE")
def convert_op(cap: Capture, f: VFrame, i: Instr) -> None:
    format_value(cap, f.stack.pop(), i.arg, "")


@opcode("LIST_APPEND")
def list_append(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    assert isinstance(box, ListValue)
    append(cap, box, item)


@opcode("SET_ADD")
def set_add(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    assert isinstance(box, SetValue)
    _set_add(cap, box, item)


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
    if not iterable(cap, item):
        raise raised(TypeError, f"Value after * must be an iterable, not {item.cls().__name__}")
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
    if not hasattr(item.cls(), "keys"):
        raise lacking(cap, item, "keys", f"'{item.cls().__name__}' object is not a mapping")
    METHODS[(dict, "update")](cap, [box, item], {}, lambda _: None)


@opcode("DICT_MERGE")
def dict_merge(cap: Capture, f: VFrame, i: Instr) -> None:
    item = f.stack.pop()
    box = f.stack[-i.arg]
    assert isinstance(box, DictValue)
    named = payload(item)
    if isinstance(named, DictValue):
        complete(cap, named)
        for key in named.items:
            if key in box.items:
                raise raised(TypeError, f"{called(f.stack[-i.arg - 2])} got multiple values for "
                                        f"keyword argument '{key}'")  # fmt: skip
    elif not hasattr(item.cls(), "keys"):
        name, kind = called(f.stack[-i.arg - 2]), item.cls().__name__
        raise lacking(cap, item, "keys", f"{name} argument after ** must be a mapping, not {kind}")
    METHODS[(dict, "update")](cap, [box, item], {}, lambda _: None)


@opcode("LIST_TO_TUPLE")
def list_to_tuple(cap: Capture, f: VFrame, i: Instr) -> None:
    box = f.stack.pop()
    assert isinstance(box, ListValue)
    f.stack.append(TupleValue(list(box.items)))


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(cap: Capture, f: VFrame, i: Instr) -> None:
    n = i.arg

    def push(items: list[Value]) -> None:
        if len(items) < n:
            raise raised(ValueError, f"not enough values to unpack (expected {n}, got "
                                     f"{len(items)})")  # fmt: skip
        if len(items) > n:
            raise raised(ValueError, f"too many values to unpack (expected {n})")
        f.stack.extend(reversed(items))

    _unpack(cap, f.stack.pop(), n + 1, push)


@opcode("UNPACK_EX")
def unpack_ex(cap: Capture, f: VFrame, i: Instr) -> None:
    before, after = i.arg

    def push(items: list[Value]) -> None:
        if len(items) < before + after:
            raise raised(ValueError, f"not enough values to unpack (expected at least "
                                     f"{before + after}, got {len(items)})")  # fmt: skip
        end = len(items) - after
        f.stack.extend(reversed(items[end:]))
        f.stack.append(ListValue(list(items[before:end])))
        f.stack.extend(reversed(items[:before]))

    _unpack(cap, f.stack.pop(), None, push)


def _unpack(cap: Capture, x: Value, limit: int | None, push: Callable[[list[Value]], None]) -> None:
    """The items of what is unpacked; no more than `limit` of what has no length."""
    if not iterable(cap, x):
        raise raised(TypeError, f"cannot unpack non-iterable {x.cls().__name__} object")
    box = payload(x)
    if limit is not None and isinstance(box, GrowingList | UnreadTuple):
        box.read(limit - 1)
    if limit is None or isinstance(box, ListValue | TupleValue | DictValue | TensorValue):
        collect(cap, x, push)
    else:
        cap.call(Const(polyfills.first_items), [x, Const(limit)], {}, lambda made: push(
            list_of(cap, made)))  # fmt: skip
