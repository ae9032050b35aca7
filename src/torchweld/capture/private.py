"""Real objects that stand for objects made in the frame, which nobody but the capture sees.

A class statement makes a real class during capture. What the frame would make anew in every call is
made once, so such an object must never leave the frame, and no guard needs to speak of it: what
leaves is made again by the residual program (remade.py), in the same way.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    InstanceValue,
    ListValue,
    PartialValue,
    SetValue,
    SliceValue,
    Slot,
    StandIn,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.sequences import UnreadTuple

# what Python's code makes of a class: methods of dataclasses, of named tuples
_MADE = (types.FunctionType, property, classmethod, staticmethod)
_DESCRIPTOR = ("__get__", "__set__", "__delete__")
# values that real code may hand around, but not look into
_OPAQUE = (TensorValue, InstanceValue, PartialValue, BoundValue)
_EMPTY: tuple[object, ...] = ((), frozenset())
_IMMUTABLE = (*_OPAQUE, TupleValue)


@dataclass(slots=True)
class Recipe:
    """fn(*args, **kwargs) gives such an object again; `then` is done to it, in order."""

    fn: Callable[..., Any]
    args: list[Value]
    kwargs: dict[str, Value]
    then: list[tuple[Callable[..., Any], list[Value], dict[str, Value]]] = field(
        default_factory=list)  # fmt: skip


def keep(cap: Capture, obj: Any, recipe: Recipe | None = None) -> Any:
    """`obj`, known from now on as the frame's own."""
    cap.private.made[id(obj)] = obj
    if recipe is not None:
        cap.private.recipes[id(obj)] = recipe
    return obj


def note(cap: Capture, obj: Any, fn: Callable[..., Any], args: list[Value],
         kwargs: dict[str, Value]) -> None:  # fmt: skip
    """fn(obj, *args, **kwargs) was done to an object of the frame's own."""
    recipe = cap.private.recipes.get(id(obj))
    if recipe is not None:
        recipe.then.append((fn, args, kwargs))


def part_of(kind: type, name: str) -> Any:
    """What a class has under a name, as it is."""
    return vars(kind)[name]


def keep_parts(cap: Capture, kind: type, before: dict[str, Any]) -> None:
    """What Python's own code has put into a class of the frame's is the frame's own too."""
    for name, raw in vars(kind).items():
        if before.get(name) is not raw and isinstance(raw, _MADE) and id(raw) not in (
                cap.private.made):  # fmt: skip
            keep(cap, raw, Recipe(part_of, [Const(kind), Const(name)], {}))


def real_of(cap: Capture, slot: Slot | None) -> Any:
    """The real object for a value, made once. What cannot be real is an opaque StandIn.

    Errors: GraphBreak W107 for what real code would have to look into.
    """
    value = cap.force(slot) if slot is not None else None
    if isinstance(value, Const):
        return value.obj
    if value is None or (value.source is not None and not isinstance(value, _IMMUTABLE)):
        raise refuse("W107", "a container from outside in a class statement", cap.loc())
    known = cap.private.reals.get(id(value))
    if known is not None:
        return known
    maker = _MAKERS.get(type(value), _stand_in if isinstance(value, _OPAQUE) else None)
    if maker is None:
        raise refuse("W107", f"a {value.cls().__name__} in a class statement", cap.loc())
    made = maker(cap, value)
    if any(made is x for x in _EMPTY):  # Python has only one of each
        return made
    cap.private.reals[id(value)] = keep(cap, made)
    cap.kept.append(value)
    if not isinstance(value, FunctionValue):
        cap.private.stand_ins[id(made)] = value
    else:
        cap.private.recipes[id(made)] = value
    return made


def _stand_in(cap: Capture, value: Value) -> StandIn:
    """Of a descriptor the methods are there, for whoever looks at its class."""
    kind = value.cls()
    if kind.__hash__ is None:
        raise refuse("W107", f"a {kind.__name__} as the attribute of a class", cap.loc())
    found = {n: getattr(kind, n) for n in _DESCRIPTOR if hasattr(kind, n)}
    if not found:
        return StandIn()
    if not isinstance(value, InstanceValue) or not all(
            isinstance(f, types.FunctionType) for f in found.values()):  # fmt: skip
        raise refuse("W107", f"a {kind.__name__} as the attribute of a class", cap.loc())
    made = type("StandIn", (StandIn,), {"__slots__": (), **found})()
    assert isinstance(made, StandIn)
    return made


def _function(cap: Capture, x: FunctionValue) -> types.FunctionType:
    """A function whose cells are the frame's: who captures a call of it finds them again."""
    assert isinstance(x.globals, Const)
    assert isinstance(x.globals.obj, dict)
    defaults = tuple(real_of(cap, d) for d in x.defaults) or None
    closure = tuple(real_cell(cap, c) for c in x.closure)
    made = types.FunctionType(x.code, x.globals.obj, x.name, defaults, closure)
    made.__qualname__ = x.qualname
    if x.kwdefaults:
        made.__kwdefaults__ = {k: real_of(cap, v) for k, v in x.kwdefaults.items()}
    for name, attr in x.attrs.items():
        setattr(made, name, real_of(cap, attr))
    return made


def real_cell(cap: Capture, cell: CellValue) -> types.CellType:
    """The cell that came from outside, or an empty one that stands for the frame's."""
    if isinstance(cell.real, types.CellType):
        return cell.real
    known = cap.private.reals.get(id(cell))
    if known is None:
        known = cap.private.reals[id(cell)] = keep(cap, types.CellType())
        cap.cells[id(known)] = cell
        cap.kept.append(cell)
    assert isinstance(known, types.CellType)
    return known


def _tuple(cap: Capture, x: TupleValue) -> Any:
    items = [real_of(cap, i) for i in x.items]
    if x.kind is tuple:
        return tuple(items)
    return x.kind(*items) if hasattr(x.kind, "_fields") else x.kind(items)


def _list(cap: Capture, x: ListValue) -> Any:
    return [real_of(cap, i) for i in x.items]


def _dict(cap: Capture, x: DictValue) -> Any:
    if x.kind is not dict:
        raise refuse("W107", f"a {x.kind.__name__} in a class statement", cap.loc())
    return {real_of(cap, x.keys[k]): real_of(cap, v) for k, v in x.items.items()}


def _constant(cap: Capture, x: Value) -> Any:
    return constant(x)


_MAKERS: dict[type, Any] = {
    FunctionValue: _function, TupleValue: _tuple, UnreadTuple: _tuple, ListValue: _list,
    DictValue: _dict, SetValue: _constant, SliceValue: _constant,
}  # fmt: skip
