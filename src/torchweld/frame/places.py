"""Where the instructions of the dialect lie in the raw code, and what CPython's stack holds there.

A function can be entered at any place: the raw stack is the dialect's values, NULLs between them,
and in some slots the exception that was handled before the present one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from torchweld.frame.decode import walk_of
from torchweld.frame.instr import TERMINAL, Code, effect
from torchweld.frame.translate import Nulls, RawCode

# Instructions that say nothing in the dialect and need not run before what follows them: either
# their effect is part of the stack there, or they have none.
_ASIDE = frozenset(
    ("CACHE", "COPY_FREE_VARS", "END_SEND", "MAKE_CELL", "NOP", "PUSH_NULL", "RESUME")
)


@dataclass(frozen=True, slots=True)
class Place:
    """One raw instruction of the dialect, with those before it that belong to it.

    first, last: indices of raw instructions. index, count: of its dialect instructions. depth,
    nulls: the stack before `first`. handled: which of the values there are exceptions that were
    handled before.
    """

    first: int
    last: int
    index: int
    count: int
    depth: int
    nulls: Nulls
    handled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The raw code, and a place for each dialect instruction; None where none can be entered."""

    words: RawCode
    opnames: list[str]
    places: tuple[Place | None, ...]


@lru_cache(maxsize=1024)
def layout(code: Code) -> Layout:
    """The places of a code object."""
    walk = walk_of(code.raw)
    words, states, opnames = walk.words, walk.t.states, walk.t.opnames
    handled = _handled(code)
    groups: dict[int, list[int]] = {}
    for index, instr in enumerate(code.instrs):
        groups.setdefault(instr.offset, []).append(index)
    raw = {offset: at for at, offset in enumerate(words.offsets)}
    said = {raw[offset] for offset in groups if offset in raw}
    places: list[Place | None] = [None] * len(code.instrs)
    for offset, members in groups.items():
        at = raw.get(offset)
        if at is None or code.instrs[members[0]].op == "UNKNOWN":
            continue
        first = at
        while first and first - 1 not in said and opnames[first - 1] not in _ASIDE and (
                states[first - 1] is not None):  # fmt: skip
            first -= 1
        state, slots = states[first], handled[members[0]]
        if state is None or slots is None:
            continue
        place = Place(first, at, members[0], len(members), *state, slots)
        for index in members:
            places[index] = place
    return Layout(words, opnames, tuple(places))


def _handled(code: Code) -> list[tuple[int, ...] | None]:
    """For each instruction which stack slots hold what PUSH_EXC_INFO saved; None: not known."""
    found: list[tuple[int, ...] | None] = [None] * len(code.instrs)
    depths: list[int] = [0] * len(code.instrs)
    found[0] = ()
    work = [0]
    while work:
        index = work.pop()
        slots, depth = found[index], depths[index]
        assert slots is not None
        instr = code.instrs[index]
        # what lies in the way of a handler is there only behind its first instruction, which cannot
        # fail although rows begin with it
        row = code.handler(index) if instr.op != "PUSH_EXC_INFO" else None
        ways: list[tuple[int, int, tuple[int, ...]]] = []
        if row is not None:
            kept = tuple(s for s in slots if s < row.depth)
            ways.append((row.target, row.depth + row.lasti + 1, kept))
        for target, jump in _ways(code, index):
            pops, pushes = effect(instr, jump=jump)
            ways.append((target, depth - pops + pushes, _after(instr.op, instr.arg, depth, slots)))
        for target, now, kept in ways:
            if found[target] is None:
                found[target], depths[target] = kept, now
                work.append(target)
    return found


def _ways(code: Code, index: int) -> Iterator[tuple[int, bool]]:
    """Where the instruction goes on, and whether by its jump."""
    instr = code.instrs[index]
    if instr.op not in TERMINAL and index + 1 < len(code.instrs):
        yield index + 1, False
    if instr.target is not None:
        yield instr.target, True


def _after(op: str, arg: object, depth: int, slots: tuple[int, ...]) -> tuple[int, ...]:
    if op == "PUSH_EXC_INFO":
        return (*slots, depth - 1)
    if op == "SWAP":
        assert isinstance(arg, int)
        swap = {depth - 1: depth - arg, depth - arg: depth - 1}
        return tuple(sorted(swap.get(s, s) for s in slots))
    if op == "COPY":
        assert isinstance(arg, int)
        return (*slots, depth) if depth - arg in slots else slots
    return tuple(s for s in slots if s < depth - 1) if op == "POP_EXCEPT" else slots
