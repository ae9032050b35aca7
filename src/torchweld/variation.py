"""What changes between two calls: learned from those that no entry fits, so loaded late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import torch

from torchweld.capture.class_state import ClassState
from torchweld.capture.guard_build import load
from torchweld.capture.late import NUMBERS
from torchweld.capture.predicates import SameNumber
from torchweld.capture.session import pinned
from torchweld.frame.program import tensor_codes
from torchweld.ir.guard import Guard
from torchweld.ir.source import Applied, InstanceDict, Item, Source
from torchweld.sites import Made, Site


def learn(site: Site, entries: Sequence[Made], args: tuple[object, ...],
          sizes: bool = True) -> None:  # fmt: skip
    """Numbers and, if wanted, sizes that differ from what an entry is guarded by vary from now
    on."""
    found: dict[Source, object] = {}
    for entry in entries:
        for guard in entry.guards:
            if guard.kind == "tensor" and sizes and site.options.dynamic is not False:
                site.parts.update(changed_parts(guard, args, found))
            if isinstance(guard.expected, ClassState):
                _learn_class(site, guard.expected)
            if guard.kind == "same_value":
                site.counters = site.counters and _holds_same(guard, args)
            if guard.kind == "is" and isinstance(guard.expected, FunctionType):
                _learn_function(site, guard, args, found)
            if guard.kind == "length":
                _learn_length(site, guard, args, found)
            known = guard.expected.obj if isinstance(guard.expected, SameNumber) else guard.expected
            if guard.kind not in ("equal", "predicate") or type(known) not in NUMBERS:
                continue
            now = _now(guard, args, found)
            if type(now) in _EITHER.get(type(known), (type(known),)) and now != known:
                site.late.add(_source(guard))


# a number that is now an int and now a float varies too
_EITHER = {int: (int, float), float: (int, float)}


def _source(guard: Guard) -> Source:
    assert guard.source is not None
    return guard.source


def _now(guard: Guard, args: tuple[object, ...], found: dict[Source, object]) -> Any:
    """What is at the source of a guard; None where that is gone, which is another guard's business.

    found: what was found at sources before.
    """
    try:
        return load(_source(guard), args, found)
    except Exception:
        return None


def _learn_class(site: Site, state: ClassState) -> None:
    for base, name in state.changed():
        site.attributes.add((base, name))
        was, now = state.found[base][name], vars(base)[name]
        if type(was) is type(now) and type(now) in NUMBERS:
            site.late.add(Item.make(InstanceDict.make(pinned(base)), name, False))


def _learn_function(site: Site, guard: Guard, args: tuple[object, ...],
                    found: dict[Source, object]) -> None:  # fmt: skip
    now, known = _now(guard, args, found), guard.expected
    assert isinstance(known, FunctionType)
    if now is not known and isinstance(now, FunctionType) and now.__code__ is known.__code__:
        site.anew.add(_source(guard))


def _learn_length(site: Site, guard: Guard, args: tuple[object, ...],
                  found: dict[Source, object]) -> None:  # fmt: skip
    now, source = _now(guard, args, found), _source(guard)
    if not isinstance(now, list | tuple | dict) or len(now) == guard.expected:
        return
    if isinstance(source, Applied) and source.fn is tuple and _fills_up(source.base, args, site):
        return
    site.late.add(Applied.make(source, len))
    if not isinstance(now, dict):
        site.lengths.add(source)


def _fills_up(source: Source, args: tuple[object, ...], site: Site) -> bool:
    """Whether a deque is soon as long as it may be, and stays so."""
    try:
        found = load(source, args)
    except Exception:
        return False
    return isinstance(found, deque) and found.maxlen is not None and (
        found.maxlen < site.options.recompile_limit)  # fmt: skip


def _holds_same(guard: Guard, args: tuple[object, ...]) -> bool:
    """Whether two counters still hold the same number, or are not there."""
    assert guard.source is not None and isinstance(guard.expected, Source)
    try:
        a, b = (load(s, args) for s in (guard.source, guard.expected))
    except Exception:
        return True
    return not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or bool(a == b)


def changed_parts(guard: Guard, args: tuple[object, ...],
                  found: dict[Source, object]) -> Iterator[tuple[Source, str, int]]:  # fmt: skip
    """The sizes and strides in which a tensor differs from its guard, if nothing else differs.

    found: what was found at sources before.
    """
    assert isinstance(guard.expected, tuple)
    now = _now(guard, args, found)
    if not isinstance(now, torch.Tensor):
        return
    old, new = guard.expected, tensor_codes(now)
    if old[:5] != new[:5] or len(old[6]) != len(new[6]):
        return
    for kind, was, is_ in (("size", old[6], new[6]), ("stride", old[7], new[7])):
        for d, (a, b) in enumerate(zip(was, is_, strict=False)):
            if a is not None and a != b:
                yield _source(guard), kind, d
