"""Class attributes that are assigned: a pending side effect, like attributes of instances.

Each assignment changes the version of the class and of its subclasses, which methods and constants
are guarded by. So what a function is known to assign, or what was seen to change between two calls,
is read and guarded by itself, and of these classes every other attribute is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchweld.capture.class_state import (
    HEAP_TYPE,
    ClassAttr,
    has_protocol,
    is_data,
    is_users,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import Const, Value
from torchweld.ir.source import InstanceDict, Item, Source


class Written(Exception):
    """A class attribute is assigned that was not known to be: the capture begins again."""

    def __init__(self, attr: ClassAttr) -> None:
        super().__init__(f"{attr[0].__qualname__}.{attr[1]}")
        self.attr = attr


def set_class_attr(cap: Capture, kind: type, name: str, value: Value) -> bool:
    """kind.name = value; False if that cannot be put off. Errors: Written."""
    shown = cap.private.has(kind) or id(kind) in cap.shown
    plain = is_users(kind) and not shown and not cap.pure and (
        type(kind).__setattr__ is type.__setattr__ and not hasattr(type(kind), name))  # fmt: skip
    before = next((vars(b)[name] for b in kind.__mro__ if name in vars(b)), None)
    if not plain or not is_data(name, before) or has_protocol(value.cls()):
        return False
    if (kind, name) not in cap.class_attrs:
        raise Written((kind, name))
    cap.unguarded += 1
    cap.class_writes[kind, name] = value
    return True


def known_attr(cap: Capture, mro: Sequence[type], name: str) -> Value | None:
    """The class attribute that a look-up in these classes finds, if it is one that varies."""
    if all(name != n for _, n in cap.class_attrs):
        return None
    for base in mro:
        varies = (base, name) in cap.class_attrs
        pending = cap.class_writes.get((base, name))
        if pending is not None:
            return pending
        own = InstanceDict.make(cap.pin(base))
        if name in vars(base):
            return cap.wrap(vars(base)[name], Item.make(own, name, False)) if varies else None
        if varies:
            cap.guard("lacks_key", own, name)
    return None


def show(cap: Capture, kind: type, what: str) -> None:
    """Something about a class is looked at as it is now.

    Errors: GraphBreak if its attributes were assigned in the frame.
    """
    if what == "__dict__":
        cap.shown.add(id(kind))
    if any(issubclass(kind, base) for base, _ in cap.class_writes):
        raise refuse("W106", f"{what} of a class that the frame has changed", cap.loc())


def settle_class_guards(cap: Capture) -> None:
    """Replace the guards about versions of classes that vary by guards about what they hold."""
    classes = {base for base, _ in cap.class_attrs}
    if not classes:
        return
    for key, guard in list(cap.guards.items()):
        kind: Any = guard.source.token.obj if guard.kind == "class_version" else None  # type: ignore[union-attr]
        if kind is None or not any(issubclass(kind, c) for c in classes):
            continue
        del cap.guards[key]
        for base in kind.__mro__:
            if not base.__flags__ & HEAP_TYPE:
                continue
            source = cap.pin(base)
            if any(issubclass(base, c) for c in classes):
                _guard_contents(cap, base, source)
            else:
                cap.guard_class(base)


def _guard_contents(cap: Capture, kind: type, source: Source) -> None:
    own = InstanceDict.make(source)
    cap.guard("keys", own, tuple(vars(kind)))
    for name, raw in vars(kind).items():
        if (kind, name) not in cap.class_attrs:
            cap.guard("is", Item.make(own, name, False), raw)


def class_statements(cap: Capture, bind: Any, expr: Any) -> Iterator[str]:
    """Statements that assign what the frame has assigned. bind, expr: of the residual program."""
    for (kind, name), value in cap.class_writes.items():
        yield f"{bind(type.__setattr__)}({expr(Const(kind))}, {name!r}, {expr(value)})"
