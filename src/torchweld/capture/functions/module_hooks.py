"""Hooks of modules that the frame registers and removes again.

Such a hook has a number that no other one has, below those that torch gives: which one it would get
depends on how many hooks there were before, and nobody sees it. The counter is set forward at the
end. Where a hook stays, the capture begins again, and all are registered by torch's own code.
"""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import RemovableHandle

from torchweld.capture.calls import construct_plain
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.tables import GETATTR
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    Const,
    InstanceValue,
    ListValue,
    Value,
)


class ModuleHandle(InstanceValue):
    """What removes a hook of a module. tables: the dicts that have it."""

    __slots__ = ("tables",)

    def __init__(self, number: int, tables: list[Value]) -> None:
        super().__init__(RemovableHandle)
        self.attrs["id"] = Const(number)
        self.tables = tables


def _attr(cap: Capture, handle: ModuleHandle, name: str, cont: Cont | None) -> None:
    """Without a look into the class, whose counter changes."""
    known = handle.attrs.get(name)
    if known is not None:
        cap.deliver(known, cont)
    elif name == "remove":
        cap.deliver(BoundValue(Const(RemovableHandle.remove), handle), cont)
    else:
        raise refuse("W107", f"attribute {name} of a hook's handle", cap.loc())


GETATTR.add(ModuleHandle, _attr)


def make(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    """RemovableHandle(hooks_dict, extra_dict=None)."""
    if cap.hooks_stay:
        construct_plain(cap, Const(RemovableHandle), RemovableHandle, args, kwargs, cont, None)
        return
    if cap.pure or cap.builder.bodies:
        raise refuse("W106", "a hook is registered in a function that torch calls", cap.loc())
    tables, extra = list(args), kwargs.get("extra_dict", NONE)
    if isinstance(extra, ListValue):
        tables += cap.force_items(extra.items)
    elif not (isinstance(extra, Const) and extra.obj is None):
        tables.append(extra)
    made = ModuleHandle(-1 - len(cap.handles), tables)
    cap.note_birth(made, stops_of(cap))
    cap.handles.append(made)
    cap.slices = None  # a call with a hook is not like one without it
    cap.effects.append((Const(set_forward), [], {}))
    cap.deliver(made, cont)


def remove(cap: Capture, handle: Value, cont: Cont | None) -> None:
    """handle.remove() of one that the frame has made."""
    assert isinstance(handle, ModuleHandle)
    if handle in cap.handles:
        cap.handles[cap.handles.index(handle)] = None
    number = handle.attrs["id"]
    assert isinstance(number, Const)
    cap.call(Const(taken_out), [ListValue(list(handle.tables)), number], {}, cont)


def taken_out(tables: list[dict[int, Any]], number: int) -> None:
    """Take a hook out of the dicts that have it."""
    for table in tables:
        table.pop(number, None)


def set_forward() -> None:
    """Count a hook, as registering it does."""
    RemovableHandle.next_id += 1
