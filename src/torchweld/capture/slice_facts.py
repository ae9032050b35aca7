"""What guards say about the objects that were given to one call, asked of those of another call.

Guards are all that a capture relies on about objects from outside. So a call that is given other
objects would be interpreted in the same way if the same guards hold for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

import torch

from torchweld.base.loc import Loc
from torchweld.capture.guard_build import entry_of
from torchweld.capture.session import Capture
from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    Const,
    DictValue,
    InstanceValue,
    Lazy,
    ListValue,
    Mutable,
    PartialValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.values.sequences import GrowingList, UnreadTuple
from torchweld.capture.values.unread import look_alike
from torchweld.capture.wrap import keys_in_order
from torchweld.frame.program import tensor_codes
from torchweld.ir.guard import Guard
from torchweld.ir.source import Attr, InstanceDict, Item, Source, TypeOf

_NOTHING = object()


def real_of(cap: Capture, x: Any) -> Any:
    """The object from outside that a value stands for; `_NOTHING` where that is not known."""
    if isinstance(x, Lazy):
        return x.obj
    if isinstance(x, TensorValue):
        return cap.builder.reals.get(id(x), _NOTHING)
    return x.real if isinstance(x, Mutable) and x.real is not None else _NOTHING


# --------------------------------------------------------------------------------------- paths
class Step(NamedTuple):
    """One source: the position of its base, and what leads from there to it."""

    base: int
    kind: type[Source]
    rest: tuple[Any, ...]
    read: Callable[[Any, tuple[Any, ...]], Any]


def _item(box: Any, rest: tuple[Any, ...]) -> Any:
    key, sequence = rest
    if not sequence:
        return entry_of(box, key)
    return (list if isinstance(box, list) else tuple).__getitem__(box, key)


def _own(owner: Any, rest: tuple[Any, ...]) -> Any:
    return object.__getattribute__(owner, "__dict__")


def _attr(owner: Any, rest: tuple[Any, ...]) -> Any:
    return getattr(owner, rest[0])


def _type(owner: Any, rest: tuple[Any, ...]) -> Any:
    return type(owner)


_READS: dict[type, Callable[[Any, tuple[Any, ...]], Any]] = {
    Item: _item, InstanceDict: _own, Attr: _attr, TypeOf: _type,
}  # fmt: skip


class Unknown(Exception):
    """A source that is not followed."""


class Paths:
    """Sources below some roots, numbered; roots come first."""

    def __init__(self, roots: Iterable[Source]) -> None:
        self.at: dict[Source, int] = {s: i for i, s in enumerate(roots)}
        self.steps: list[Step] = []
        self._outside: set[Source] = set()

    def find(self, source: Source | None) -> int | None:
        """The number of a source; None if it is below no root. Errors: Unknown."""
        at = self.at.get(source)  # type: ignore[arg-type]
        if at is not None or source is None or source in self._outside:
            return at
        base = self.find(getattr(source, "base", None))
        if base is None:
            self._outside.add(source)
            return None
        read = _READS.get(type(source))
        if read is None:
            raise Unknown
        rest = tuple(getattr(source, name) for name in source._fields[1:])
        self.steps.append(Step(base, type(source), rest, read))
        at = self.at[source] = len(self.at)
        return at

    def objects(self, roots: Iterable[Any]) -> list[Any]:
        """What is found at all of them. Errors: what looking there raises."""
        found = list(roots)
        for base, _, rest, read in self.steps:
            found.append(read(found[base], rest))
        return found


# --------------------------------------------------------------------------------------- facts
def _equal(x: Any, expected: Any) -> bool:
    return type(x) is type(expected) and bool(x == expected) and (
        type(x) not in (float, complex) or repr(x) == repr(expected))  # fmt: skip


def _keys(x: Any, expected: Any) -> bool:
    keys = tuple(keys_in_order(x))
    return len(keys) == len(expected) and all(map(_equal, keys, expected))


def _looks(x: Any, expected: Any) -> bool:
    return isinstance(x, torch.Tensor) and tensor_codes(x) == expected


_CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda x, expected: type(x) is expected,
    "is": lambda x, expected: x is expected,
    "is_not": lambda x, expected: x is not expected,
    "equal": _equal,
    "length": lambda x, expected: len(x) == expected,
    "has_key": dict.__contains__,
    "lacks_key": lambda x, expected: not dict.__contains__(x, expected),
    "keys": _keys,
    "tensor": _looks,
    "predicate": lambda x, expected: bool(expected(x)),
}  # fmt: skip


def _like_tensor(a: torch.Tensor, b: Any) -> bool:
    """Whether tensors with equal guards are alike in what no guard speaks of."""
    return (type(a) is type(b) and a.is_leaf == b.is_leaf and a.is_inference() == b.is_inference()
            and a.storage_offset() == b.storage_offset() and not b.is_conj() and not b.is_neg()
            and a.__dict__.keys() == b.__dict__.keys())  # fmt: skip


class Fact(NamedTuple):
    """One guard. at, other: the numbers of its source and of the expected one; -1 for what is no
    source below the roots."""

    at: int
    check: Callable[[Any, Any], bool] | None
    other: int
    guard: Guard


class Facts:
    """The guards about the objects at some places of a slice's arguments."""

    def __init__(self, paths: Paths, facts: list[Fact], objects: list[tuple[int, Value]],
                 reals: list[Any], others: set[int]) -> None:  # fmt: skip
        self.paths = paths
        self.facts = facts
        self.objects = objects
        self.reals = reals
        self.others = others
        self.tensors = [i for i, x in enumerate(reals) if isinstance(x, torch.Tensor)]

    @classmethod
    def found(cls, cap: Capture, of: Any, places: tuple[int, ...]) -> Facts | None:
        """None: the call may depend on its objects in a way that guards do not show."""
        values = of.like.values
        roots = [values[i] for i in places]
        paths = Paths(v.source for v in roots)
        reals = [real_of(cap, v) for v in roots]
        if any(r is _NOTHING for r in reals) or len(paths.at) < len(roots):
            return None
        try:
            facts = list(_facts(paths, islice(cap.guards.values(), of.after.guards)))
            objects = [
                (at, v) for v in islice(cap.objects.values(), of.after.objects)
                if not isinstance(v, TensorValue) and (at := paths.find(v.source)) is not None
            ]  # fmt: skip
            given = [paths.find(v.source) for v in values if v.source is not None]
            below = paths.objects(reals)
        except (Unknown, LookupError, AttributeError, TypeError):
            return None
        n = len(roots)
        bases = [paths.find(getattr(v.source, "base", None)) for v in roots]
        if any(at is not None and at >= n for at in given) or any(b is not None for b in bases):
            return None  # arguments that belong to one another
        asked = cap.asked[of.before.asked : of.after.asked]
        if any(paths.at.get(s, n) < n for s in asked):
            return None
        start = [v for v in values if v.source is not None and paths.find(v.source) is None]
        start += cap.touched[of.before.touched : of.after.touched]
        others = _others(start, paths)
        return None if others is None else cls(paths, facts, objects, below, others)

    def hold(self, cap: Capture, roots: list[Any]) -> Moved | None:
        """The objects of another call, if all is true of them."""
        first = [real_of(cap, v) for v in roots]
        if any(r is _NOTHING for r in first):
            return None
        try:
            reals = self.paths.objects(first)
            for at, check, other, guard in self.facts:
                x = reals[at]
                if check is not None:
                    if not check(x, guard.expected):
                        return None
                elif at < 0 or other < 0:  # the other object is none of the call's own
                    if reals[max(at, other)] is not self.reals[max(at, other)]:
                        return None
                elif (x is reals[other]) is not (guard.kind == "same"):
                    return None
            if not all(_like_tensor(self.reals[i], reals[i]) for i in self.tensors):
                return None
            if self._changed(cap, set(map(id, reals))):
                return None
        except Exception:
            return None
        return Moved(cap, self, reals, [v.source for v in roots])

    def _changed(self, cap: Capture, reals: set[int]) -> bool:
        """Whether the frame has changed an object that either call looks at."""
        return any(
            id(cell) in self.others or id(cell.real) in reals
            or self.paths.find(cell.source) is not None
            for cell in cap.changed if is_outside(cell)
        )  # fmt: skip


def is_outside(cell: Mutable) -> bool:
    return cell.source is not None or cell.real is not None


def _facts(paths: Paths, guards: Iterable[Guard]) -> Iterable[Fact]:
    """Errors: Unknown for a guard whose truth for other objects cannot be told."""
    for guard in guards:
        at = paths.find(guard.source)
        expected = guard.expected
        if not isinstance(expected, Source):
            if at is not None:
                yield Fact(at, _CHECKS[guard.kind], -1, guard)
            continue
        other = paths.find(expected)
        if at is None and other is None:
            continue
        if (at is None or other is None) and guard.kind != "same":
            raise Unknown
        yield Fact(-1 if at is None else at, None, -1 if other is None else other, guard)


def _others(start: list[Any], paths: Paths) -> set[int] | None:
    """The ids of what the call looked at besides, and of all that this refers to.

    None if that refers to one of the objects below the roots: the call may find them there.
    """
    seen: set[int] = set()
    todo: list[Any] = [v for v in start if v.source is not None and paths.find(v.source) is None]
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, Lazy):
            continue
        seen.add(id(x))
        if x.source is not None and paths.find(x.source) is not None:
            return None
        todo += [v for v in _parts(x) if v is not None]
    return seen


def _parts(x: Any) -> Iterable[Any]:
    """The values that a value refers to, as far as they were read."""
    read = _PARTS.get(type(x))
    return read(x) if read is not None else ()


_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    InstanceValue: lambda x: (*x.attrs.values(), x.payload),
    DictValue: lambda x: (*x.items.values(), *x.keys.values(), x.factory),
    ListValue: lambda x: x.items,
    TupleValue: lambda x: x.items,
    GrowingList: lambda x: x.tail,
    UnreadTuple: lambda x: () if x.open is not None else x.items,
    CellValue: lambda x: (x.contents,),
    BoundValue: lambda x: (x.func, x.self_),
    PartialValue: lambda x: (x.func, *x.args, *x.kwargs.values()),
}  # fmt: skip


# --------------------------------------------------------------------------------------- moving
class Moved:
    """The facts' sources and objects in another call.

    sources: of each object, the first that the capture has found it at; asked: those by which this
    call finds it.
    """

    def __init__(self, cap: Capture, facts: Facts, reals: list[Any], roots: list[Source]) -> None:
        self.cap = cap
        self.facts = facts
        self.reals = reals
        self.sources = list(roots)
        self.asked = list(roots)
        self.own = {id(x): s for x, s in zip(reals, roots, strict=False)}
        self._reach(len(reals) - 1)

    def _reach(self, last: int) -> None:
        """Follow the paths up to this one."""
        steps, n = self.facts.paths.steps, len(self.facts.paths.at)
        n -= len(steps)
        for base, kind, rest, read in steps[len(self.sources) - n : last - n + 1]:
            source = kind.make(self.sources[base], *rest)
            if len(self.reals) == len(self.sources):
                self.reals.append(read(self.reals[base], rest))
            self.asked.append(source)
            self.sources.append(self._first(len(self.sources), source))

    def _first(self, at: int, source: Source) -> Source:
        """Where the object that is found at a source was found first."""
        real = id(self.reals[at])
        known = self.cap.objects.get(real)
        if known is not None and known.source is not None:
            return known.source
        if at < len(self.facts.reals) and id(self.facts.reals[at]) not in self.cap.objects:
            return source  # objects of this kind are not known by identity
        return self.own.setdefault(real, source)

    def keep(self, lines: dict[Loc, Loc]) -> None:
        """Guard the facts, and know the objects, as if they had been read.

        lines: the user's lines that made the calls.
        """
        cap, sources, asked = self.cap, self.sources, self.asked
        for at, _, other, guard in self.facts.facts:
            source = sources[at] if at >= 0 else guard.source
            expected = sources[other] if other >= 0 else guard.expected
            why = lines.get(guard.why, guard.why)
            if at >= 0 and source is not asked[at]:
                cap.add_guard("same", asked[at], source, why)
            if source is not expected:
                cap.add_guard(guard.kind, source, expected, why)
        for at, value in self.facts.objects:
            if id(self.reals[at]) not in cap.objects:
                self._know(self.reals[at], sources[at], value)
            look_alike(cap.objects.get(id(self.reals[at])), value)

    def _know(self, real: Any, source: Source, like: Value) -> None:
        cap = self.cap
        if type(like) is InstanceValue and like.payload is None:
            made: Value = InstanceValue(like.klass, source, real)
        elif type(like) is DictValue and like.kind in (dict, OrderedDict):
            made = DictValue(like.kind, source, real)
        else:
            cap.wrap(real, source)
            return
        cap.objects[id(real)] = made
        cap.kept.append(real)

    def value(self, x: Any) -> Any:
        """The value or slot in the place of one that came from outside."""
        at = self.facts.paths.find(x.source)
        if at is None:
            return x
        self._reach(at)
        if isinstance(x, Lazy):
            return Lazy(self.reals[at], self.sources[at])
        if isinstance(x, Const):
            return Const(x.obj, self.sources[at])
        return self.cap.wrap(self.reals[at], self.sources[at])


__all__ = ["Facts", "Moved", "real_of"]
