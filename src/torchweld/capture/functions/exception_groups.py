"""ExceptionGroup and BaseExceptionGroup: construction, split, subgroup, derive, text."""

from __future__ import annotations

from typing import Any

from torchweld.capture import polyfills_groups
from torchweld.capture.ops import payload
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.strings import format_value, join_text
from torchweld.capture.tables import function, method
from torchweld.capture.values.base import (
    NONE,
    Const,
    InstanceValue,
    ListValue,
    TupleValue,
    Value,
    boolean,
)

Args = list[Value]
Kwargs = dict[str, Value]


def new_group(cap: Capture, kind: type, args: Args) -> InstanceValue:
    """kind(message, exceptions). Errors: GraphBreak for what eager would not take."""
    if len(args) != 2 or not isinstance(args[0], Const) or type(args[0].obj) is not str:
        raise refuse("W107", f"arguments of {kind.__name__}", cap.loc())
    given = payload(args[1])
    if not isinstance(given, ListValue | TupleValue) or not given.items:
        raise refuse("W107", f"exceptions of {kind.__name__}", cap.loc())
    items = list(cap.force_items(given.items))
    kinds = [i.cls() for i in items]
    if not all(isinstance(i, InstanceValue) and issubclass(i.klass, BaseException) for i in items):
        raise refuse("W107", f"exceptions of {kind.__name__}", cap.loc())
    only_plain = all(issubclass(k, Exception) for k in kinds)
    if kind is BaseExceptionGroup and only_plain:
        kind = ExceptionGroup
    if issubclass(kind, Exception) and not only_plain:
        raise refuse("W107", f"exceptions of {kind.__name__}", cap.loc())
    made = InstanceValue(kind)
    made.attrs["args"] = TupleValue(list(args))
    made.attrs["message"] = args[0]
    made.attrs["exceptions"] = TupleValue(list(items))
    return made


@method(BaseExceptionGroup, "__new__")
def group_new(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Reached for classes without an __init__ of their own."""
    kind, *given = args
    if kwargs or not isinstance(kind, Const) or not isinstance(kind.obj, type):
        raise refuse("W107", "keyword arguments of an exception group", cap.loc())
    cap.deliver(new_group(cap, kind.obj, given), cont)


def _group(cap: Capture, x: Value) -> InstanceValue:
    if not isinstance(x, InstanceValue) or "exceptions" not in x.attrs:
        raise refuse("W107", f"a {x.cls().__name__} that is not known in its parts", cap.loc())
    return x


def _interpreted(name: str, fn: Any) -> None:
    @method(BaseExceptionGroup, name)
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.call(Const(fn), [_group(cap, args[0]), *args[1:]], kwargs, cont)


_interpreted("split", polyfills_groups.split)
_interpreted("subgroup", polyfills_groups.subgroup)


@method(BaseExceptionGroup, "derive")
def derive(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A plain group, whatever class it is a part of."""
    message = _group(cap, args[0]).attrs["message"]
    assert message is not None
    cap.deliver(new_group(cap, BaseExceptionGroup, [message, *args[1:]]), cont)


@method(BaseExceptionGroup, "__str__")
def group_text(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    group = _group(cap, args[0])
    message, items = group.attrs["message"], group.attrs["exceptions"]
    assert isinstance(message, Const)
    assert isinstance(items, TupleValue)
    n = len(items.items)
    cap.deliver(Const(f"{message.obj} ({n} sub-exception{'s' if n > 1 else ''})"), cont)


@method(BaseExceptionGroup, "__repr__")
def group_repr(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    group = _group(cap, args[0])
    given = group.attrs["args"]
    assert given is not None
    name = Const(group.klass.__name__)
    format_value(cap, given, "r", "", lambda text: cap.deliver(join_text(cap, [name, text]), cont))


@function(polyfills_groups.copy_metadata)
def copy_metadata(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    made, group = args
    assert isinstance(made, InstanceValue)
    assert isinstance(group, InstanceValue)
    made.attrs["__suppress_context__"] = boolean(True)  # as after any assignment to __cause__
    for name in ("__cause__", "__context__", "__notes__"):
        value = group.attrs.get(name)
        if isinstance(value, ListValue):
            value = ListValue(list(value.items))
        if value is not None:
            made.attrs[name] = value
    cap.kept += [made, group]
    cap.parts[id(made)] = cap.parts.get(id(group), group)
    cap.deliver(NONE, cont)


@function(polyfills_groups.same_metadata)
def same_metadata(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    exc, group = args
    root = cap.parts.get(id(group), group)
    cap.deliver(boolean(exc is group or cap.parts.get(id(exc)) is root), cont)
