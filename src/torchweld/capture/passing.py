"""What a frame does that makes one of its own guards fail: its next call needs another entry.

The first step of an optimizer asks whether there is a state and makes one; a counter is read and
raised. Such an entry is seldom used twice. This is a forecast: nothing is wrong if it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchweld.capture.grads import grad_source
from torchweld.capture.session import Capture
from torchweld.capture.user_keys import UserKey
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
    TensorValue,
)
from torchweld.capture.values.sequences import GrowingList
from torchweld.ir.guard import Guard
from torchweld.ir.source import Attr, InstanceDict, Item, Keyed, Local, Source

# what is found at a source when the frame has run; None if nothing is there any more
After = dict[Source, Slot | None]
Boxes = dict[Source, Mutable]


def passing(cap: Capture) -> Guard | None:
    """A guard that holds no more when the frame has run; None if all seem to.

    What the frame does to containers that it is given as arguments is left out: callers make
    another one for each call.
    """
    if cap.sizes.readings:
        return None  # what is made of sizes must not be looked at any more
    after, boxes = _after(cap)
    if not after and not boxes:
        return None
    for guard in cap.guards.values():
        if guard.source is not None and _fails(guard, after, boxes) and not _is_given(guard.source):
            return guard
    return None


def _after(cap: Capture) -> tuple[After, Boxes]:
    after: After = {}
    boxes: Boxes = {}
    for cell in cap.changed:
        if cell.source is None or cell.real is None:
            continue
        if isinstance(cell, CellValue):
            assert cell.place is not None
            after[cell.place] = cell.contents
        elif isinstance(cell, InstanceValue):
            table = InstanceDict.make(cell.source)
            boxes[table] = cell
            for name in cell.written:
                after[Item.make(table, name, False)] = cell.attrs.get(name)
                after[Attr.make(cell.source, name)] = cell.attrs.get(name)
        elif not _has_user_keys(cell):
            boxes[cell.source] = cell
            after.update(_items(cell, cell.source))
    for x, grad in cap.grads.values():
        source = grad_source(x)
        if source is not None:
            after[source] = grad
    for (table_id, name), (_, value) in cap.globals_written.items():
        if table_id in cap.pinned:
            after[Item.make(cap.pinned[table_id], name, False)] = value
    return after, boxes


def _has_user_keys(cell: Mutable) -> bool:
    """Whether looking something up would run code of the user's."""
    return isinstance(cell, DictValue) and any(map(_is_users, (*cell.items, *cell.absent)))


def _is_users(key: object) -> bool:
    return isinstance(key, UserKey) or (isinstance(key, tuple) and any(map(_is_users, key)))


def _items(cell: Mutable, source: Source) -> After:
    """What a container has now under the keys that it had, or has."""
    if isinstance(cell, GrowingList) and cell.open is not None:
        return {}
    if isinstance(cell, ListValue):
        return {Item.make(source, i, True): x for i, x in enumerate(cell.items)}
    if not isinstance(cell, DictValue):
        return {}
    found: After = {}
    for key, slot in cell.items.items():
        if not isinstance(key, IdKey):
            found[Item.make(source, key, False)] = slot
        elif key.value.source is not None:
            found[Keyed.make(source, key.value.source)] = slot
    return found


def _is_given(source: Source) -> bool:
    """Whether a value is an argument, or found in containers that are."""
    while isinstance(source, Item | Keyed):
        source = source.base
    return isinstance(source, Local)


# ------------------------------------------------------------------ guards
def _fails(guard: Guard, after: After, boxes: Boxes) -> bool:
    assert guard.source is not None
    of_box = _OF_BOX.get(guard.kind)
    if of_box is not None:
        box = boxes.get(guard.source)
        return box is not None and of_box(box, guard.expected)
    if guard.kind not in _OF_VALUE or guard.source not in after:
        return False
    slot = after[guard.source]
    if slot is None:
        return True
    if isinstance(slot, Lazy) or slot.source is guard.source:
        return False
    return _OF_VALUE[guard.kind](slot, guard.expected)


def _length(box: Mutable, expected: object) -> bool:
    if isinstance(box, DictValue) and not box.complete:
        return expected == 0 and len(box.items) > 0
    if isinstance(box, GrowingList) and box.open is not None:
        return False
    known = isinstance(box, DictValue | ListValue | SetValue)
    return known and len(box.items) != expected  # type: ignore[attr-defined]


def _has_key(box: Mutable, expected: object) -> bool:
    if isinstance(box, InstanceValue):
        return expected in box.written and box.attrs.get(str(expected)) is None
    assert isinstance(box, DictValue)
    return expected not in box.items and (box.complete or expected in box.absent)


def _lacks_key(box: Mutable, expected: object) -> bool:
    if isinstance(box, InstanceValue):
        return expected in box.written and box.attrs.get(str(expected)) is not None
    return isinstance(box, DictValue) and expected in box.items


def _keys(box: Mutable, expected: Any) -> bool:
    if isinstance(box, InstanceValue):
        return any((box.attrs.get(n) is None) == (n in expected) for n in box.written)
    return isinstance(box, DictValue) and box.complete and tuple(box.items) != expected


def _lacks_tensor(box: Mutable, expected: object) -> bool:
    assert isinstance(box, DictValue)
    return any(isinstance(k, IdKey) and k.value.source is expected for k in box.items)


# whether what is known of a changed container contradicts a guard of it
_OF_BOX: dict[str, Callable[[Mutable, Any], bool]] = {
    "length": _length, "has_key": _has_key, "lacks_key": _lacks_key, "keys": _keys,
    "lacks_tensor": _lacks_tensor,
}  # fmt: skip


def _equal(slot: Any, expected: object) -> bool:
    """Numbers that are computed when the graph runs are others every time."""
    if isinstance(slot, Loose):
        return False
    return type(slot) is not Const or type(slot.obj) is not type(expected) or slot.obj != expected


def _is(slot: Any, expected: object) -> bool:
    if type(slot) is Const:
        return slot.obj is not expected
    real = getattr(slot, "real", None)
    return slot.source is None if real is None else real is not expected


def _tensor(slot: Any, expected: Any) -> bool:
    """Sizes that grow with every call."""
    if not isinstance(slot, TensorValue):
        return True
    sizes: tuple[int | None, ...] = expected[6]
    shape = tuple(slot.fake.shape)
    return len(shape) != len(sizes) or any(
        n is not None and n != m for n, m in zip(sizes, shape, strict=True))  # fmt: skip


# whether a new value contradicts a guard of what was there
_OF_VALUE: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda slot, expected: slot.cls() is not expected, "equal": _equal, "is": _is,
    "is_not": lambda slot, expected: type(slot) is Const and slot.obj is expected,
    "tensor": _tensor,
}  # fmt: skip
