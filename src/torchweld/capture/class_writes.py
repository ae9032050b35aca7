"""Class attributes that are assigned: a pending side effect, like attributes of instances.

Each assignment changes the version of the class and of its subclasses, which methods and constants
are guarded by. So what a function is known to assign, or what was seen to change between two calls,
is read and guarded by itself, and of these classes every other attribute that is read.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

from torchweld.capture.class_state import (
    ALL,
    HEAP_TYPE,
    ClassAttr,
    ClassState,
    has_protocol,
    is_data,
    is_users,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import raised, refuse
from torchweld.capture.values.base import BoundValue, Const, FunctionValue, Value
from torchweld.ir.source import InstanceDict, Item, Pinned, Source


class Written(Exception):
    """A class attribute is assigned that was not known to be: the capture begins again."""

    def __init__(self, attr: ClassAttr) -> None:
        super().__init__(f"{attr[0].__qualname__}.{attr[1]}")
        self.attr = attr


def set_class_attr(cap: Capture, kind: type, name: str, value: Value | None,
                   hooked: bool = False) -> bool:  # fmt: skip
    """kind.name = value (None: del kind.name); False if that cannot be put off.

    hooked: whether a method of the metaclass does it. Errors: Written; Raised if it is not there.
    """
    shown = cap.private.has(kind) or id(kind) in cap.shown
    plain = is_users(kind) and not shown and not cap.pure and not hasattr(type(kind), name) and (
        hooked or not _has_hook(type(kind)))  # fmt: skip
    before = next((vars(b)[name] for b in kind.__mro__ if name in vars(b)), None)
    bare = value is None or _is_function(value) or not has_protocol(value.cls())
    if not plain or not bare or not _is_plain(name, before):
        return False
    if (kind, name) not in cap.class_attrs:
        raise Written((kind, name))
    if value is None and known_attr(cap, (kind,), name) is None:
        raise raised(AttributeError, f"type object '{kind.__name__}' has no attribute '{name}'")
    cap.unguarded += 1
    cap.class_writes[kind, name] = value
    return True


def _has_hook(meta: Any) -> bool:
    """Whether a metaclass has a say in what is assigned."""
    return meta.__setattr__ is not type.__setattr__ or meta.__delattr__ is not type.__delattr__


def _is_plain(name: str, raw: object) -> bool:
    """Whether a class attribute is found as data are, or bound to the instance."""
    return is_data(name, None if isinstance(raw, types.FunctionType) else raw)


def _is_function(x: Value) -> bool:
    return isinstance(x, FunctionValue) or (
        isinstance(x, Const) and x.cls() is types.FunctionType)  # fmt: skip


def known_attr(cap: Capture, mro: Sequence[type], name: str, of: Value | None = None) -> Any:
    """The class attribute that a look-up in these classes finds, if it is one that varies, else
    None. of: the instance to which a function is bound."""
    if all(name != n for _, n in cap.class_attrs):
        return None
    for base in mro:
        varies = (base, name) in cap.class_attrs
        if (base, name) in cap.class_writes:
            found = cap.class_writes[base, name]
            if found is None:
                continue
            return _bound(found, of)
        own = InstanceDict.make(cap.pin(base))
        if name in vars(base):
            if not varies:
                return None
            return _bound(cap.wrap(vars(base)[name], Item.make(own, name, False)), of)
        if varies:
            cap.guard("lacks_key", own, name)
    return None


def varies(cap: Capture, source: Source) -> bool:
    """Whether a path is that of a class attribute which is assigned in each call."""
    if not isinstance(source, Item) or not isinstance(source.base, InstanceDict):
        return False
    kind = source.base.base
    return isinstance(kind, Pinned) and (kind.token.obj, source.key) in cap.class_attrs


def _bound(x: Value, of: Value | None) -> Value:
    return BoundValue(x, of) if of is not None and _is_function(x) else x


def show(cap: Capture, kind: type, what: str) -> None:
    """Something about a class is looked at as it is now.

    Errors: GraphBreak if its attributes were assigned in the frame.
    """
    if what == "__dict__":
        cap.shown.add(id(kind))
    if what in ("__dict__", "dir()"):
        cap.names.add(ALL)
    if any(base in kind.__mro__ for base, _ in cap.class_writes):
        raise refuse("W106", f"{what} of a class that the frame has changed", cap.loc())


def settle_class_guards(cap: Capture) -> None:
    """Replace the guards about versions of classes that vary by guards about what they hold."""
    classes = {base for base, _ in cap.class_attrs}
    if not classes:
        return
    for key, guard in list(cap.guards.items()):
        kind: Any = guard.source.token.obj if guard.kind == "class_version" else None  # type: ignore[union-attr]
        if kind is None or not any(c in kind.__mro__ for c in classes):
            continue
        del cap.guards[key]
        state = guard.expected
        assert isinstance(state, ClassState)
        for base in kind.__mro__:
            if not base.__flags__ & HEAP_TYPE:
                continue
            source = cap.pin(base)
            if any(c in base.__mro__ for c in classes):
                _guard_contents(cap, base, source, state)
            else:
                cap.guard_class(base)


def _guard_contents(cap: Capture, kind: type, source: Source, state: ClassState) -> None:
    own = InstanceDict.make(source)
    cap.guard("keys", own, tuple(vars(kind)))
    for name, raw in vars(kind).items():
        if (kind, name) not in cap.class_attrs and state.reads(name):
            cap.guard("is", Item.make(own, name, False), raw)


def class_statements(cap: Capture, bind: Any, expr: Any) -> Iterator[str]:
    """Statements that assign what the frame has assigned. bind, expr: of the residual program."""
    for (kind, name), value in cap.class_writes.items():
        if value is None:
            if name in vars(kind):
                yield f"{bind(type.__delattr__)}({expr(Const(kind))}, {name!r})"
            continue
        if value.source is Item.make(InstanceDict.make(cap.pin(kind)), name, False):
            continue  # it was put back
        yield f"{bind(type.__setattr__)}({expr(Const(kind))}, {name!r}, {expr(value)})"
