"""Frames that are broken: the stretch up to the break is compiled, the break runs eagerly, and the
rest of the frame is a function of its own, which is compiled like any other.

Where a frame goes on depends on where it was broken only, so the rest after a break in a loop is
found again in every round. When the break was in a function that the compiled frame calls, the rest
begins with the call of that function's rest, so that both become one graph.

Rests belong to the site of the function that was broken; what refers to them from compiled code
does so weakly, so that all of it dies with the function.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torchweld.capture.suspend import GO_ON, PIECE
from torchweld.frame.decode import decode
from torchweld.frame.hook import run_hooked, set_skip
from torchweld.frame.points import Piece, Point
from torchweld.frame.program import Dispatcher, Entry
from torchweld.frame.resume import rejoin_code, resume_code
from torchweld.frame.steps import step_piece, wait_piece
from torchweld.ir.region import Region, Suspended
from torchweld.sites import REGION, Site

Miss = Callable[..., Entry | None]
Values = tuple[Any, ...]
States = tuple[Values, ...]

# what a step of these instructions runs cannot be Python code that is worth a graph
_UNHOOKED = frozenset(("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"))


class Next:
    """What a rest gives back that was broken again: the break, and the state."""

    __slots__ = ("at", "states")

    def __init__(self, at: Break, states: States) -> None:
        self.at = at
        self.states = states


def drive(at: Break, states: States) -> Any:
    """Run a broken frame to its end, from a break on: its result."""
    while True:
        rest, values = at.go_on(states)
        out = rest(*values)
        if type(out) is not Next:
            return out
        at, states = out.at, out.states


class Break:
    """A place where a graph ends, and the rests that follow it.

    The innermost frame runs the instruction that it is at; the others wait for a call.
    """

    __slots__ = ("_chain", "_empty", "_frames", "_miss", "_rests", "_seen", "_site", "_step",
                 "_steps")  # fmt: skip

    def __init__(self, frames: Sequence[Suspended], site: Site, miss: Miss, empty: int,
                 seen: frozenset[object]) -> None:  # fmt: skip
        self._frames, self._miss, self._empty, self._seen = tuple(frames), miss, empty, seen
        self._site = weakref.ref(site)
        self._rests: dict[tuple[int, int], Callable[[], Any]] = {}
        self._chain = [_pieces(f, wait_piece) for f in frames[:-1]]
        last = frames[-1]
        self._steps, fn = _pieces(last, step_piece)
        plain = decode(last.code).instrs[last.index].op in _UNHOOKED
        self._step: Callable[..., Any] = fn if plain else functools.partial(_hooked, self._site, fn)

    def go_on(self, states: States) -> tuple[Callable[..., Any], Values]:
        """Run the instruction: the rest of the outermost frame, and what it is called with."""
        level = len(states) - 1
        if not level:
            which, values = self._step(*states[0])
            return self._rest(0, which), values
        error: BaseException | None = None
        try:
            which, values = self._step(*states[level])
        except BaseException as raised:
            error = raised
        while error is not None:  # it passes through the frames that wait, up to a handler
            level -= 1
            failed, error = error, None
            try:
                which, values = self._chain[level][1](*states[level], _raise, (failed,))
            except BaseException as raised:
                if not level:
                    raise
                error = raised
        rest = self._rest(level, which)
        callees = rest.callees if level else ()
        for state, callee in zip(reversed(states[:level]), callees, strict=True):
            values = (*state, callee, values)
        return rest, values

    def _rest(self, level: int, which: int) -> Any:
        """The rest whose innermost frame is the one at this level."""
        found = self._rests.get((level, which), _nothing)()
        return self._make(level, which) if found is None else found

    def _make(self, level: int, which: int) -> Any:
        last = level == len(self._frames) - 1
        piece = self._steps if last else self._chain[level][0]
        point, frames, site = piece.points[which], self._frames[: level + 1], self._site()
        # code objects are equal by value, so the key has their identities
        key = (*((id(f.code), id(f.globals), point_of(f)) for f in frames[:-1]),
               (id(frames[-1].code), id(frames[-1].globals), point, "rest"))  # fmt: skip
        made = site.points.get(key) if site is not None else None
        if made is None:
            made = self._compiled(frames, point, site)
            if site is not None:
                made = site.points.setdefault(key, made)
        if site is None:  # everything was forgotten while the frame ran
            self._rests[level, which] = lambda: made
        else:
            self._rests[level, which] = weakref.ref(made)
        return made

    def _compiled(self, frames: tuple[Suspended, ...], point: Point, site: Site | None) -> Any:
        """The dispatcher of a rest. callees: the rests of inner frames, innermost first."""
        fns = [function(rejoin_code(decode(f.code), point_of(f)), f) for f in frames[:-1]]
        fns.append(function(resume_code(decode(frames[-1].code), point), frames[-1]))
        ask = self._miss if site is not None else _eagerly
        inner = None if site is None else Site(
            site.options, inner=site.inner, owner=self._site, empty=self._empty,
            seen=self._seen | {origin_of(self._frames)})  # fmt: skip
        made: Any = Dispatcher(fns[0], functools.partial(ask, site=inner))
        made.callees = tuple(reversed(fns[1:]))
        made.frames = frames  # what the key is about lives as long
        return made


def origin_of(frames: Sequence[Suspended]) -> tuple[object, ...]:
    """Equal for breaks at the same instructions of the same functions."""
    return tuple((id(f.code), f.index) for f in frames)


def point_of(frame: Suspended) -> Point:
    return Point(frame.index, frame.unbound, frame.holes)


def _pieces(frame: Suspended, make: Callable[..., Piece]) -> tuple[Piece, types.FunctionType]:
    piece = make(decode(frame.code), point_of(frame))
    return piece, function(piece.code, frame)


def _nothing() -> None:
    return None


def _eagerly(made: Dispatcher, args: Values, *, site: object) -> None:
    """No entry, so that the function itself runs."""


def _raise(error: BaseException) -> None:
    raise error


def _hooked(site: weakref.ref[Site], fn: types.FunctionType, *values: Any) -> Any:
    """Run a step; what it calls is compiled."""
    before = getattr(REGION, "site", None)
    REGION.site = site() or before
    try:
        return run_hooked(fn, *values)
    finally:
        REGION.site = before


def function(code: types.CodeType, frame: Suspended) -> types.FunctionType:
    """A piece or rest as a function. Its cells are parameters, so it needs none of its own.

    The frame hook leaves it alone: pieces are not to be compiled, and rests have dispatchers.
    """
    set_skip(code)
    closure = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, frame.globals, code.co_name, None, closure)


def names_of(region: Region, site: Site, miss: Miss) -> dict[str, Any]:
    """What a broken region's residual program needs to go on: name -> object."""
    if region.resume is None:
        return {}
    owner = site.owner() if site.owner is not None else None
    empty = 0 if region.operators else site.empty + 1
    at = Break(region.resume.frames, owner or site, miss, empty, site.seen)
    return {PIECE: at, GO_ON: drive if site.owner is None else Next}
