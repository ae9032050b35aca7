"""Objects from outside that a broken frame hands to its rest: iterators that have begun, functions
and methods made in the frame.

They are new objects in every call, so what they consist of is guarded, not which object they are.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

from torchweld.capture.class_writes import varies
from torchweld.capture.items import plain_iterator, sequence_iterator
from torchweld.capture.numbers import RUNS_APART, itself
from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, raised, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    IteratorValue,
    ListValue,
    Loose,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.wrap import WRAPPERS, by_identity
from torchweld.ir.source import Applied, Attr, Item, Local, Reduced, Source

Step = Callable[[], Value | None]


def given(source: Source | None) -> bool:
    """Whether a path starts at an argument of the call."""
    while source is not None and not isinstance(source, Local):
        source = getattr(source, "base", None)
    return source is not None


# ------------------------------------------------------------------------------------- iterators
def _iterator(cap: Capture, obj: Any, source: Source) -> Value:
    """Its state is read when it is first advanced; the real one is advanced at the end."""
    cap.guard("type", source, type(obj))
    found: list[Step] = []

    def step() -> Value | None:
        if not found:
            found.append(_step_of(cap, obj, source))
            if not cap.outside_stop:
                cap.outside_stop = next(iter(stops_of(cap)), 0)
        it.taken += 1
        cap.mark(it)
        return found[0]()

    it = IteratorValue(step, type(obj), source=source, real=obj)
    return it


def _step_of(cap: Capture, obj: Any, source: Source) -> Step:
    """What an iterator gives from its present state on, without advancing it."""
    if type(obj) is itertools.count:
        return _count(cap, obj, source)
    make = _STEPS.get(type(obj))
    if make is None:
        if type(obj) is map and obj.__reduce__()[1][0] is itself:
            raise refuse("W124", RUNS_APART, cap.loc())
        raise refuse("W107", f"an iterator of type {type(obj).__name__} that has begun", cap.loc(),
                     "iterate over a list or another container")  # fmt: skip
    reduced = Reduced.make(source)
    state = obj.__reduce__()
    cap.guard("length", reduced, len(state))
    return make(cap, state, reduced)


def _over_items(cap: Capture, state: tuple[Any, ...], reduced: Source) -> Step:
    """(iter, (items,)) or (iter, (items,), position)."""
    items = cap.wrap(state[1][0], Item.make(Item.make(reduced, 1, True), 0, True))
    at = 0
    if len(state) > 2 and state[2] is not None:
        at = constant(cap.wrap(state[2], Item.make(reduced, 2, True)))
    if isinstance(items, Const):
        rest = plain_iterator(cap, Const(items.obj[at:]))  # type: ignore[index]
    elif isinstance(items, ListValue | TupleValue):
        rest = sequence_iterator(cap, items, at)
    else:
        rest = None
    if rest is None:
        raise refuse("W107", f"an iterator over a {items.cls().__name__}", cap.loc())
    return rest.step


def _count(cap: Capture, obj: Any, source: Source) -> Step:
    """Its number may be another one in every call."""
    read = Applied.make(source, count_state)
    state = count_state(obj)
    if state is None:
        raise refuse("W107", "a count that is not of ints", cap.loc())
    cap.guard("type", read, tuple)
    first = cap.wrap(state[0], Item.make(read, 0, True))
    step = constant(cap.wrap(state[1], Item.make(read, 1, True)))
    taken = itertools.count()

    def advance() -> Value:
        by = Const(next(taken) * step)
        late = cap.late.call(Const(operator.add), [first, by])
        return Const(constant(first) + by.obj) if late is None else late

    return advance


def count_state(x: itertools.count[int]) -> tuple[int, int] | None:
    """The next number of a count, and its step; None if they are not ints."""
    parts = repr(x)[len("count(") : -1].split(", ")
    try:
        return int(parts[0]), int(parts[1]) if len(parts) > 1 else 1
    except ValueError:
        return None


def _enumerate(cap: Capture, state: tuple[Any, ...], reduced: Source) -> Step:
    """(enumerate, (iterator, count))."""
    args = Item.make(reduced, 1, True)
    inner = _inner(cap, state[1][0], Item.make(args, 0, True))
    count = constant(cap.wrap(state[1][1], Item.make(args, 1, True)))

    def step() -> Value | None:
        nonlocal count
        item = inner()
        if item is None:
            return None
        count += 1
        return TupleValue([Const(count - 1), item])

    return step


def _zip(cap: Capture, state: tuple[Any, ...], reduced: Source) -> Step:
    """(zip, iterators) or, with strict=True, three items."""
    strict = len(state) > 2
    args = Item.make(reduced, 1, True)
    cap.guard("length", args, len(state[1]))
    inner = [_inner(cap, it, Item.make(args, i, True)) for i, it in enumerate(state[1])]

    def step() -> Value | None:
        row: list[Any] = []
        for i, advance in enumerate(inner):
            item = advance()
            if item is None:
                if strict:
                    _check_ends(i, inner)
                return None
            row.append(item)
        return TupleValue(row) if row else None

    return step


def _check_ends(first: int, inner: list[Step]) -> None:
    """A strict zip, one of whose iterators has ended. Errors: Raised(ValueError) if too early."""
    if first:
        raise _uneven(first, "shorter")
    for i, advance in enumerate(inner[1:], 1):
        if advance() is not None:
            raise _uneven(i, "longer")


def _uneven(i: int, how: str) -> Raised:
    return raised(ValueError, f"zip() argument {i + 1} is {how} than "
                              f"argument{' ' if i == 1 else 's 1-'}{i}")  # fmt: skip


def _inner(cap: Capture, obj: Any, source: Source) -> Step:
    """An iterator that another one advances."""
    cap.guard("type", source, type(obj))
    return _step_of(cap, obj, source)


_STEPS: dict[type, Callable[[Capture, tuple[Any, ...], Source], Step]] = {
    enumerate: _enumerate, zip: _zip,
    **dict.fromkeys(
        (type(iter([])), type(iter(())), type(iter(range(0))), type(iter({})), type(iter("")),
         type(iter({}.values())), type(iter({}.items()))), _over_items),
}  # fmt: skip
for _kind in (*_STEPS, itertools.count, map, filter, reversed, type(reversed([])),
              types.GeneratorType, types.CoroutineType):
    WRAPPERS.add(_kind, _iterator)


# ------------------------------------------------------------------------- functions and methods
def _function(cap: Capture, obj: types.FunctionType, source: Source) -> Value:
    """A function that was made in a function is known by its code and cells, if it was given or
    seen to be made anew."""
    local = "<locals>" in obj.__qualname__ and (given(source) or varies(cap, source))
    if not local and source not in cap.sizes.varying.anew:
        return by_identity(cap, obj, source)
    cap.guard("type", source, types.FunctionType)
    return Loose(obj, cap.guard, source)


def _builtin(cap: Capture, obj: types.BuiltinFunctionType, source: Source) -> Value:
    """A method of a built-in type, bound to an object that was given."""
    owner = obj.__self__
    method = getattr(type(owner), obj.__name__, None)
    plain = isinstance(method, types.MethodDescriptorType)
    if not given(source) or isinstance(owner, types.ModuleType | type) or not plain:
        return by_identity(cap, obj, source)
    cap.guard("type", source, type(obj))
    cap.guard("equal", Attr.make(source, "__name__"), obj.__name__)
    return BoundValue(Const(method), cap.wrap(owner, Attr.make(source, "__self__")), source)


WRAPPERS.add(types.FunctionType, _function)
WRAPPERS.add(types.BuiltinFunctionType, _builtin)
