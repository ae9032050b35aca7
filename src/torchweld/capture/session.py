"""Capture: one run of the symbolic interpreter over one frame, and what it has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchweld.base.errors import InternalError
from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.fx_build import GraphBuilder
from torchweld.capture.state import Cont, VFrame
from torchweld.capture.values.base import (
    CellValue,
    DictValue,
    InstanceValue,
    Lazy,
    ListValue,
    Mutable,
    Slot,
    TupleValue,
    Value,
)
from torchweld.ir.guard import Guard
from torchweld.ir.source import Pinned, Source, Token

# instructions that one capture may run before it gives up: far beyond the largest model
MAX_STEPS = 5_000_000


class Capture:
    """Everything that changes while a frame is captured.

    frames: the virtual call stack, innermost last. objects: Value of each outside object by id.
    changed: outside objects that the frame changed, in the order of the first change.
    """

    def __init__(self) -> None:
        self.frames: list[VFrame] = []
        self.builder = GraphBuilder()
        self.guards: dict[tuple[object, ...], Guard] = {}
        self.objects: dict[int, Value] = {}
        self.kept: list[object] = []
        self.pinned: dict[int, Pinned] = {}
        self.changed: dict[Mutable, None] = {}
        self.globals_written: dict[tuple[int, str], tuple[dict[str, object], Value | None]] = {}
        self.handled: list[Value] = []
        self.cells: dict[int, CellValue] = {}
        self.state_restore: list[Callable[[], None]] = []
        self.modes_set: set[Any] = set()
        self.effects: list[tuple[Value, list[Value], dict[str, Value]]] = []
        self.result: Value | None = None
        self.steps = 0
        self.inline_next: set[object] = set()
        self.wrapper: Callable[[Capture, object, Source], Value] | None = None
        self.caller: Callable[..., None] | None = None

    # -------------------------------------------------------------- locations
    @property
    def top(self) -> VFrame:
        return self.frames[-1]

    def loc(self) -> Loc:
        """The user line being executed: the innermost frame outside of torch's own code."""
        for frame in reversed(self.frames):
            at = frame.loc()
            if "/torch/" not in at.file and "/torchweld/" not in at.file:
                return at
        return self.frames[-1].loc() if self.frames else NOWHERE

    def deliver(self, value: Value, cont: Cont | None) -> None:
        """Hand a finished value to `cont`, or push it on the innermost frame."""
        if cont is None:
            self.frames[-1].stack.append(value)
        else:
            cont(value)

    def call(self, fn: Value, args: list[Value], kwargs: dict[str, Value],
             cont: Cont | None = None,
             on_raise: Callable[[Value], bool] | None = None) -> None:  # fmt: skip
        """Call a value: the result goes to `cont` now, or when the frame that this pushes returns.

        on_raise: asked about an exception that leaves that frame. Errors: Raised, GraphBreak.
        """
        if self.caller is None:
            raise InternalError("Capture.caller is not set")
        self.caller(self, fn, args, kwargs, cont, on_raise)

    # ------------------------------------------------------------ the outside
    def wrap(self, obj: object, source: Source) -> Value:
        """The Value of an object from outside, guarded as its family asks."""
        if self.wrapper is None:
            raise InternalError("Capture.wrapper is not set")
        return self.wrapper(self, obj, source)

    def force(self, slot: Slot) -> Value:
        """The Value in a container's slot, read now if it was not read before."""
        return self.wrap(slot.obj, slot.source) if isinstance(slot, Lazy) else slot

    def unwrap(self, value: Value) -> Value:
        """The value with the lazily read items of its containers read (for `constant`)."""
        match value:
            case ListValue() | TupleValue():
                for item in self.force_items(value.items):
                    self.unwrap(item)
            case DictValue():
                for key, slot in value.items.items():
                    value.items[key] = self.unwrap(self.force(slot))
            case InstanceValue() if value.payload is not None:
                return value.payload
        return value

    def force_items(self, items: list[Slot]) -> list[Value]:
        """All slots of a list, read; the list is updated in place."""
        for i, slot in enumerate(items):
            if isinstance(slot, Lazy):
                items[i] = self.wrap(slot.obj, slot.source)
        return items  # type: ignore[return-value]

    def pin(self, obj: object, label: str = "") -> Pinned:
        """The Source of an object that the entry itself keeps alive."""
        found = self.pinned.get(id(obj))
        if found is None:
            name = label or getattr(obj, "__qualname__", None) or type(obj).__name__
            found = self.pinned[id(obj)] = Pinned.make(Token(obj), str(name))
            self.kept.append(obj)
        return found

    def guard(self, kind: str, source: Source | None, expected: object) -> None:
        """Record a fact; the same fact is recorded once."""
        try:
            key = (kind, source, type(expected), expected)
            hash(key)
        except TypeError:
            key = (kind, source, "id", id(expected))
            self.kept.append(expected)
        if key not in self.guards:
            self.guards[key] = Guard(kind, source, expected, self.loc())

    def mark(self, cell: Mutable) -> None:
        """The frame changed this object."""
        cell.changed = True
        self.changed.setdefault(cell, None)
