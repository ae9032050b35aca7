"""What was promised of sizes beforehand, for the arguments of one call: looked up and checked.

Loaded when a function was compiled with `dynamic_shapes`, and no entry fits a call.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchweld.base.errors import PromiseError, UsageError
from torchweld.capture.promises import (
    STAYS,
    Promise,
    Promised,
    names_in,
    range_text,
    renamed,
    solved,
)
from torchweld.ir.conditions import Condition, condition_text
from torchweld.ir.expr import Expr, Int, as_expr, atoms, evaluate
from torchweld.ir.source import Attr, InstanceDict, Item, Local, Source
from torchweld.pipeline import STANDS_FOR, named
from torchweld.shape_specs import Given, inside, promise_of
from torchweld.sites import Site

_SPECIAL = (0, 1)  # sizes that are no symbols


@dataclass(frozen=True, slots=True)
class Argument:
    """A value that the call was given, how it is called, and where captures find it.

    rest: its place among those of `*args`.
    """

    place: str
    value: Any
    sources: tuple[Source, ...]
    rest: int = -1


@dataclass(slots=True, eq=False)
class Said:
    """What is promised of one number. where: (id of a tensor, dimension), or sources of ints."""

    place: str
    now: int
    promise: Promise
    where: Any


def look_up(site: Site, fn: types.FunctionType, args: tuple[object, ...]) -> None:
    """Have a function's site know what is said of the arguments of a call. Errors: PromiseError."""
    site.called = {a.sources[0]: a.place for a in _arguments(fn, _target(fn), args)}
    if site.options.shapes is not None:
        site.promised = promised(site.options.shapes, fn, args)


def promised(given: Given, fn: types.FunctionType, args: tuple[object, ...]) -> Promised:
    """What holds for the arguments of a call. Errors: PromiseError if it does not hold."""
    out = Promised(assumptions=given.assumptions)
    said: list[Said] = []
    target = _target(fn)
    for spec, argument in _pairs(given, target, list(_arguments(fn, target, args))):
        said += _walk(spec, argument)
    special = _check(said, given.assumptions, fn)
    names = [n for x in said for n in atoms(x.promise.expr or as_expr(0))]
    out.shared = {n for n in names if names.count(n) > 1}.union(*map(names_in, given.assumptions))
    for x in said:
        promise = x.promise if atoms(x.promise.expr or as_expr(0)).isdisjoint(special) else STAYS
        if isinstance(x.where[0], Source):
            out.numbers.update(dict.fromkeys(x.where, promise))
        else:
            x_id, dim = x.where
            out.tensors.setdefault(x_id, {}).setdefault(dim, []).append(promise)
    return out


# ---------------------------------------------------------------- arguments
def _target(fn: types.FunctionType) -> Any:
    """The user's function that a call of `fn` calls."""
    stands = getattr(fn, STANDS_FOR, None)
    return stands if stands is not None else getattr(fn, "__wrapped__", fn)


def _arguments(fn: types.FunctionType, target: Any,
               args: tuple[object, ...]) -> Iterator[Argument]:  # fmt: skip
    """The arguments by the names that the user's function has for them; `self` is left out."""
    code = fn.__code__
    plain = code.co_argcount + code.co_kwonlyargcount
    names = _positional(target)
    for i, name in enumerate(code.co_varnames[:plain]):
        if name != "self":
            yield Argument(name, args[i], (Local.make(i, name),))
    at = plain
    if code.co_flags & inspect.CO_VARARGS:
        base = Local.make(at, code.co_varnames[at])
        given: Any = args[at]
        for k, value in enumerate(given):
            i, sources = code.co_argcount + k, (Item.make(base, k, True),)
            if i < len(names):
                yield Argument(names[i], value, sources)
            else:
                n = i - len(names)
                yield Argument(f"{_star(target, False)}[{n}]", value, sources, n)
        at += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        base = Local.make(at, code.co_varnames[at])
        for name, value in args[at].items():  # type: ignore[attr-defined]
            yield Argument(name, value, (Item.make(base, name, False),))


def _parameters(target: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # written in C
        return []


def _positional(target: Any) -> list[str]:
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _parameters(target) if p.kind in plain]


def _star(target: Any, double: bool) -> str:
    """What the parameter for all other arguments, or keywords, is called."""
    kind = inspect.Parameter.VAR_KEYWORD if double else inspect.Parameter.VAR_POSITIONAL
    return next((p.name for p in _parameters(target) if p.kind is kind), "*" * (1 + double))


def _pairs(given: Given, target: Any,
           arguments: list[Argument]) -> Iterator[tuple[Any, Argument]]:  # fmt: skip
    """Each argument with what is said of it; None: nothing."""
    rest = given.rest or tuple(given.named.get(_star(target, False), ()))
    keywords = {**given.keywords, **(given.named.get(_star(target, True)) or {})}
    for i, argument in enumerate(arguments):
        place, k = argument.place, argument.rest
        if k >= 0:
            yield (rest[k] if k < len(rest) else None), argument
        elif place in given.named:
            yield given.named[place], argument
        else:
            ordered = given.ordered[i] if i < len(given.ordered) else None
            yield keywords.get(place, ordered), argument


def _walk(spec: Any, at: Argument) -> Iterator[Said]:
    """The sizes and ints in an argument, with what is promised of them."""
    spec, value = inside(spec), at.value
    if isinstance(value, torch.Tensor):
        yield from _sizes(spec, at)
    elif type(value) is int:
        promise = promise_of(spec, at.place, value)
        if promise.expr is not None:
            yield Said(at.place, value, promise, at.sources)
    elif isinstance(value, Mapping | list | tuple):
        yield from _items(spec, at)
    elif isinstance(spec, Mapping):
        for name, part in spec.items():
            if not hasattr(value, name):
                raise _mismatch(at, f"has no attribute {name!r}")
            sources = [(Attr.make(s, name), Item.make(InstanceDict.make(s), name, False))
                       for s in at.sources]  # fmt: skip
            inner = tuple(s for pair in sources for s in pair)
            yield from _walk(part, Argument(f"{at.place}.{name}", getattr(value, name), inner))
    elif spec is not None:
        raise _mismatch(at, f"is a {type(value).__name__}, of which no sizes can be said")


def _items(spec: Any, at: Argument) -> Iterator[Said]:
    sequence = not isinstance(at.value, Mapping)
    keys: Sequence[Any] = range(len(at.value)) if sequence else list(at.value)
    parts = dict(enumerate(spec)) if isinstance(spec, list | tuple) else spec or {}
    if not isinstance(parts, Mapping):
        raise _mismatch(at, f"is a {type(at.value).__name__}, and {spec!r} is said of it")
    for key in parts:
        if key not in keys:
            raise _mismatch(at, f"has no item {key!r}")
    for key in keys:
        sources = tuple(Item.make(s, key, sequence) for s in at.sources)
        inner = Argument(f"{at.place}[{key!r}]", at.value[key], sources)
        part = parts.get(key)
        if part is not None or isinstance(inner.value, torch.Tensor | Mapping | list | tuple):
            yield from _walk(part, inner)


def _sizes(spec: Any, at: Argument) -> Iterator[Said]:
    x = at.value
    if isinstance(spec, Mapping):
        parts = {d + x.dim() if d < 0 else d: e for d, e in spec.items()}
    elif isinstance(spec, list | tuple):
        if len(spec) != x.dim():
            raise _mismatch(at, f"has {x.dim()} dimensions, and {len(spec)} are said of it")
        parts = dict(enumerate(spec))
    elif spec is None:
        parts = {}
    else:
        raise _mismatch(at, f"is a tensor, and {spec!r} is said of it")
    for d in parts:
        if d not in range(x.dim()):
            raise _mismatch(at, f"has {x.dim()} dimensions, and something is said of {d}")
    for d in range(x.dim()):
        place, now = f"{at.place}.shape[{d}]", int(x.shape[d])
        yield Said(place, now, promise_of(parts.get(d), place, now), (id(x), d))


def _mismatch(at: Argument, why: str) -> UsageError:
    return UsageError("W401", f"dynamic_shapes: {at.place} {why}")


# ---------------------------------------------------------------- whether it holds
def _check(said: list[Said], assumptions: tuple[Condition, ...],
           fn: types.FunctionType) -> set[Expr]:  # fmt: skip
    """The names that have to do with sizes 0 and 1. Errors: PromiseError."""
    values: dict[Expr, int] = {}
    found: dict[Expr, Said] = {}
    special: set[Expr] = set()
    waiting = [s for s in said if s.promise.expr is not None]
    while waiting:
        left = [s for s in waiting if not _settle(s, values, found, fn)]
        if len(left) == len(waiting):
            break
        waiting = left
    for s in said:
        if s.promise.expr is not None and s.now in _SPECIAL and not isinstance(s.where[0], Source):
            special |= atoms(s.promise.expr)
    for c in assumptions:
        if names_in(c) <= values.keys() and not _holds(c, values):
            raise _broken(fn, f"{condition_text(c)} was promised, but "
                              f"{_origins(names_in(c), found)}")  # fmt: skip
    return special


def _settle(s: Said, values: dict[Expr, int], found: dict[Expr, Said],
            fn: types.FunctionType) -> bool:  # fmt: skip
    """Whether a promise could be looked at. Errors: PromiseError if it is not kept."""
    e = s.promise.expr
    assert e is not None
    unknown = atoms(e) - values.keys()
    if not unknown:
        expected = evaluate(e, values)
        if s.now != expected:
            because = "" if isinstance(e, Int) else f", which is {expected}"
            origin = f": {_origins(atoms(e), found)}" if atoms(e) else ""
            raise _broken(fn, f"{s.place} is {s.now}, but was promised to be "
                              f"{e.text()}{because}{origin}")  # fmt: skip
        return True
    how = solved(e, as_expr(s.now), unknown, {n: as_expr(v) for n, v in values.items()})
    if how is None:
        return False
    name, steps, rest = how
    value = rest.value // steps
    if rest.value % steps:
        raise _broken(fn, f"{s.place} is {s.now}, but was promised to be {e.text()}")
    values[name], found[name] = value, s
    if (name.lo is not None and value < name.lo) or (name.hi is not None and value > name.hi):
        shown = "" if e is name else f", which makes {name.text()} {value}"
        raise _broken(fn, f"{s.place} is {s.now}{shown}, but {range_text(name)} was promised")
    return True


def _holds(c: Condition, values: Mapping[Expr, int]) -> bool:
    return bool(renamed(c, {n: as_expr(v) for n, v in values.items()}))


def _origins(names: set[Expr], found: Mapping[Expr, Said]) -> str:
    """Which sizes gave the names their values."""
    return " and ".join(f"{found[n].place} is {found[n].now}"
                        for n in sorted(names, key=Expr.text) if n in found)  # fmt: skip


def _broken(fn: types.FunctionType, why: str) -> PromiseError:
    return PromiseError("W406", why, at=named(fn).at)
