"""Objects that only the capture has, made again where they leave the frame: classes, parts."""

from __future__ import annotations

import enum
import functools
import operator
import types
from typing import Any

from torchweld.capture.functions.weak_references import held_by
from torchweld.capture.private import Recipe
from torchweld.capture.residual import Residual
from torchweld.capture.state import refuse
from torchweld.capture.values.base import Const, TupleValue, Value
from torchweld.ir.source import (
    Attr,
    CellContents,
    ClosureCell,
    InstanceDict,
    Item,
    Pinned,
    Source,
)

_NOT_AGAIN = "part of a class made in the frame, which cannot be made again, leaves the frame"


def remade(r: Residual, obj: Any) -> str:
    """The name of such an object in the residual program, or of what is found in one."""
    known = r.names.get(id(obj))
    if known is not None:
        return known
    if isinstance(obj, Source):
        found = r.names[id(obj)] = r.assign(_path(r, obj))
        return found
    recipe = r.cap.private.recipes.get(id(obj)) or r.cap.private.stand_ins.get(id(obj))
    if isinstance(recipe, Value):
        return r.expr(recipe)
    if recipe is None:
        recipe = _part(r, obj)
    if recipe is None or id(obj) in r._open:
        raise refuse("W106", _NOT_AGAIN, r.cap.loc())
    r._open.add(id(obj))
    r.remaking += 1
    name = r.names[id(obj)] = r.assign(_call(r, recipe.fn, "", recipe.args, recipe.kwargs))
    r._open.discard(id(obj))
    for fn, args, kwargs in recipe.then:
        r.lines.append(_call(r, fn, name, args, kwargs))
    r.remaking -= 1
    while r.waiting and not r.remaking:
        r.waiting.pop(0)()
    return name


def _path(r: Residual, source: Source | None) -> str:
    """What is found at a path that begins at such an object. Errors: GraphBreak."""
    match source:
        case Pinned():
            return r.bind_const(source.token.obj)
        case Attr():
            return f"{_path(r, source.base)}.{source.name}"
        case Item():
            return f"{_path(r, source.base)}[{r.bind_const(source.key)}]"
        case InstanceDict():
            return f"{r.bind_const(vars)}({_path(r, source.base)})"
        case CellContents():
            return f"{_path(r, source.base)}.cell_contents"
        case ClosureCell():
            return f"{_path(r, source.base)}.__closure__[{source.index}].cell_contents"
    raise refuse("W106", _NOT_AGAIN, r.cap.loc())


def leads_to_open(r: Residual, start: Value) -> bool:
    """Whether a value holds a class that is just being made, or holds what does."""
    waiting: list[Any] = [start] if r.remaking else []
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        waiting += held_by(value)
        if isinstance(value, Const) and r.cap.private.has(value.obj):
            if id(value.obj) in r._open or id(type(value.obj)) in r._open:
                return True
            recipe = r.cap.private.recipes.get(id(value.obj))
            waiting += [recipe] if isinstance(recipe, Value) else []
            waiting += recipe.args if isinstance(recipe, Recipe) else []
    return False


def _part(r: Residual, obj: Any) -> Recipe | None:
    """A member of an enum; what a property, static or class method of the frame's is."""
    if isinstance(obj, enum.Enum):
        return Recipe(member, [Const(type(obj)), Const(obj._value_), Const(obj._name_)], {})
    if isinstance(obj, staticmethod | classmethod):
        return Recipe(type(obj), [Const(obj.__func__)], {})
    if isinstance(obj, types.UnionType):
        return Recipe(union, [Const(a) for a in obj.__args__], {})
    if hasattr(obj, "__args__") and hasattr(obj, "__origin__"):
        plain = isinstance(obj, types.GenericAlias) or r.cap.private.has(obj.__origin__)
        args = TupleValue([Const(a) for a in obj.__args__])
        if plain:
            return Recipe(operator.getitem, [Const(obj.__origin__), args], {})
        return Recipe(obj.copy_with, [args], {})
    return None


def union(*kinds: Any) -> Any:
    """One kind or another."""
    return functools.reduce(operator.or_, kinds)


def member(kind: Any, value: Any, name: str | None) -> Any:
    """The member of an enum with this name, or with this value if it has none."""
    found = kind._member_map_.get(name)
    return kind(value) if found is None else found


def _call(r: Residual, fn: Any, first: str, args: list[Value], kwargs: dict[str, Value]) -> str:
    given = [first] if first else []
    given += [r.expr(a) for a in args]
    given += [f"{k}={r.expr(v)}" for k, v in kwargs.items()]
    return f"{r.bind_const(fn)}({', '.join(given)})"
