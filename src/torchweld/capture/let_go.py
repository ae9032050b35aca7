"""What the frame has overwritten or removed: objects from outside that may be gone in eager code,
and are there until the graph has run.

A weak reference that is read behind such a write may be empty. Where the frame itself, or a path
that it has not changed, leads to the object, it is not.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchweld.capture.class_state import MISSING, mro_lookup
from torchweld.capture.grads import grad_source
from torchweld.capture.instances import TARGET, instance_dict
from torchweld.capture.session import Capture
from torchweld.capture.state import Stuck, refuse
from torchweld.capture.values.base import (
    CellValue,
    Const,
    DictValue,
    IdKey,
    InstanceValue,
    Lazy,
    ListValue,
    Loose,
    Mutable,
    SetValue,
    Slot,
    Value,
)
from torchweld.capture.values.sequences import GrowingList
from torchweld.frame.points import sets_up
from torchweld.ir.source import Applied, Attr, InstanceDict, Item, Local, Source, is_passed

# what it was, where that can be found
Gone = tuple[Source, object]
# classes whose objects lead to no other objects, and that no weak reference refers to
_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype,
                    torch.device, torch.Size))  # fmt: skip


class _Unknown:
    """In the place of an object that was not looked at."""


_UNKNOWN = _Unknown()


def may_be_gone(cap: Capture, target: Source | None, of_tensor: bool) -> bool:
    """Whether the frame may have let an object from outside go, which it does not hold itself.

    target: a path to the object. of_tensor: whether it is a tensor. What was overwritten and leads
    to no object at all is guarded to be of that kind.
    """
    harmless = is_atom if of_tensor else leads_nowhere
    gone = list(let_go(cap))
    if all(harmless(obj) for _, obj in gone):
        for source, _ in gone:
            cap.guard("predicate", source, harmless)
        return False
    return target is None or not _is_intact(target, {source for source, _ in gone})


def _is_intact(path: Source, gone: set[Source]) -> bool:
    """Whether nothing on a path was overwritten, and no part of it holds its object weakly."""
    part: Source | None = path
    while part is not None:
        weakly = isinstance(part, Applied) and part.fn.__module__ == _WEAK
        if part in gone or weakly:
            return False
        part = getattr(part, "base", None)
    return True


_WEAK = "torchweld.capture.functions.weak_references"


def is_atom(x: object) -> bool:
    """Whether no weak reference can be to an object, or to what it refers to."""
    return type(x) in _ATOMS


def leads_nowhere(x: object) -> bool:
    """Whether an object leads to no other one than tensors."""
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        assert isinstance(x, torch.Tensor)
        return not vars(x) and x._backward_hooks is None
    return type(x) in _ATOMS


# -------------------------------------------------------------- what runs code when it goes
def check_dropped(cap: Capture, was: Slot | None) -> None:
    """A variable is overwritten or deleted in the rest of a frame. Errors: GraphBreak if that may
    be the end of an object of which somebody wants to know it."""
    if was is None or was.source is None or not is_passed(was.source):
        return
    if sets_up(cap.top.code, cap.top.ip - 1):
        return  # it is put where the frame has it
    if tells(_real(was)):
        raise refuse("W107", _TOLD.format(type(_real(was)).__qualname__), cap.loc())


def check_overwritten(cap: Capture) -> None:
    """Errors: GraphBreak, to end the graph before the write, if an object that the frame has let go
    runs code of the user's then, which would otherwise run behind the graph."""
    for cell, (started, at) in cap.changed.items():
        if cell.source is None or cell.real is None:
            continue
        for _, was in _of_cell(cap, cell, cell.source):
            if tells(was):
                raise Stuck("W107", _TOLD.format(type(was).__qualname__), at, started)


_TOLD = "a {}, whose end runs code, may be dropped"


def tells(x: object) -> bool:
    """Whether the end of an object runs code of the user's, as far as it is known now: a `__del__`
    or a callback of a weak reference."""
    kind = type(x)
    if kind in _ATOMS or kind in (_Unknown, type, types.FunctionType, types.ModuleType):
        return False
    if isinstance(mro_lookup(kind, "__del__"), types.FunctionType):
        return True
    return bool(kind.__weakrefoffset__) and any(
        not _is_librarys(ref.__callback__) for ref in weakref.getweakrefs(x))


def _is_librarys(callback: Any) -> bool:
    """Whether a callback, if there is one, only takes an entry out of a table."""
    if callback is None or isinstance(callback, types.BuiltinFunctionType):
        return True
    file = getattr(getattr(callback, "__code__", None), "co_filename", "")
    return file in _TABLES or file.startswith(_TORCH)


_TABLES = (weakref.__file__, weakref.WeakSet.add.__code__.co_filename, functools.__file__)
_TORCH = str(Path(torch.__file__).parent)


# -------------------------------------------------------------- what was overwritten
def let_go(cap: Capture) -> Iterator[Gone]:
    """What was in objects from outside, and in the arguments, and is no longer there."""
    for cell in cap.changed:
        if cell.source is not None and cell.real is not None:
            yield from _of_cell(cap, cell, cell.source)
    for (table_id, name), (table, value) in cap.globals_written.items():
        if name in table and not _same(cap, value, table[name]):
            base = cap.pinned.get(table_id) or cap.pin(table)
            yield Item.make(base, name, False), table[name]
    for (kind, name), value in cap.class_writes.items():
        if name in vars(kind) and not _same(cap, value, vars(kind)[name]):
            yield Attr.make(cap.pin(kind), name), vars(kind)[name]
    for x, grad in cap.grads.values():
        source = grad_source(x)
        if source is not None and grad.source is not source:
            yield source, _UNKNOWN
    if cap.is_rest:  # who calls a compiled function holds its arguments
        yield from _of_arguments(cap)


def _of_cell(cap: Capture, cell: Mutable, source: Source) -> Iterator[Gone]:
    real: Any = cell.real
    if isinstance(cell, CellValue):
        assert cell.place is not None
        was = _contents(real)
        if was is not MISSING and not _same(cap, cell.contents, was):
            yield cell.place, was
    elif isinstance(cell, InstanceValue):
        table = instance_dict(real) or {}
        for name in cell.written:
            at = Item.make(InstanceDict.make(source), name, False)
            was = table[name] if name in table else _in_slot(real, name)
            if was is not MISSING and not _same(cap, cell.attrs.get(name), was):
                yield at if name in table else Attr.make(source, name), was
    elif isinstance(cell, GrowingList) and cell.open is not None:
        return
    elif isinstance(cell, ListValue):
        yield from _missing(cap, cell.items, ((Item.make(source, i, True), x)
                                              for i, x in enumerate(real)))  # fmt: skip
    elif isinstance(cell, DictValue):
        yield from _of_dict(cap, cell, source)
    elif isinstance(cell, SetValue) and any(_missing(cap, cell.items.values(), (
            (source, x) for x in real))):
        yield source, real


def _in_slot(real: object, name: str) -> object:
    """What an object has outside of its dict. No code of the user's is run for it."""
    place: Any = mro_lookup(type(real), name)
    if isinstance(place, types.MemberDescriptorType | types.GetSetDescriptorType):
        return getattr(real, name, MISSING)
    return MISSING


def _of_dict(cap: Capture, box: DictValue, source: Source) -> Iterator[Gone]:
    """Of keys that are objects it is only told that the dict is another one."""
    real: Any = box.real
    if all(isinstance(k, str | int) for k in (*box.items, *box.absent)):
        for key, was in dict.items(real):
            if (key in box.items or box.complete or key in box.absent) and not _same(
                    cap, box.items.get(key), was):  # fmt: skip
                yield Item.make(source, key, False), was
        return
    before = {_identity(key): was for key, was in dict.items(real)}
    now = {_identity(_keyed(box.keys[k])): slot for k, slot in box.items.items()}
    gone = before.keys() - now.keys() if box.complete else before.keys() & {
        _identity(k.value) if isinstance(k, IdKey) else k for k in box.absent}  # fmt: skip
    if gone or _UNKNOWN in now or any(
            not _same(cap, now[k], before[k]) for k in before.keys() & now.keys()):  # fmt: skip
        yield source, real


def _keyed(key: Value) -> object:
    """A key as it is in a real dict, a weak reference as what it refers to."""
    if isinstance(key, InstanceValue) and issubclass(key.klass, weakref.ref) and key.real is None:
        target = key.attrs[TARGET]
        return _real(target) if target is not None else _UNKNOWN
    return _real(key)


def _identity(key: object) -> object:
    """Equal for the same object, or for what refers to it weakly."""
    if isinstance(key, Value):
        key = _keyed(key)
    if isinstance(key, weakref.ref):
        key = key()
    return key if isinstance(key, str | int | _Unknown) else id(key)


def _of_arguments(cap: Capture) -> Iterator[Gone]:
    if not cap.frames:
        return
    frame = cap.frames[0]
    slots = [*frame.locals.values(), *(c.contents for c in frame.cells.values())]
    held = {slot.source for slot in slots if slot is not None}
    reals = {x.source: real for real, x in _known(cap)}
    for i, name in enumerate(frame.code.params):
        source = Local.make(i, name)
        if source not in held:
            yield source, reals.get(source, _UNKNOWN)


def _known(cap: Capture) -> Iterator[tuple[object, Value]]:
    """Objects from outside whose values are known."""
    for x in cap.touched:
        if x.source is not None:
            yield _real(x), x
    for source, _, real in cap.builder.inputs:
        yield real, Value(source)


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _missing(cap: Capture, slots: Iterable[Slot], found: Iterable[Gone]) -> Iterator[Gone]:
    """What was found in a container that has these slots now."""
    now = list(slots)
    values, reals = set(map(id, now)), {id(_real(slot)) for slot in now}
    for source, was in found:
        if id(was) not in reals and id(cap.objects.get(id(was))) not in values:
            yield source, was


def _same(cap: Capture, slot: Slot | None, was: object) -> bool:
    """Whether a slot has an object from outside."""
    if slot is None:
        return False
    return _real(slot) is was or cap.objects.get(id(was)) is slot


def _real(slot: Slot) -> object:
    if isinstance(slot, Lazy):
        return slot.obj
    if isinstance(slot, Loose):
        return slot.real
    return slot.obj if type(slot) is Const else getattr(slot, "real", _UNKNOWN)
