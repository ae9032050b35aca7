"""Frames that are broken: the stretch up to the break is compiled, the break runs eagerly, and the
rest of the frame is a function of its own, which is compiled like any other.

Where a frame goes on depends on where it was broken only, so the rest after a break in a loop is
found again in every round. When the break was in a function that the compiled frame calls, the rest
begins with the call of that function's rest, so that both become one graph.

A generator ends a graph where it hands something out, and its rest waits for what is sent to it as
a frame waits for the result of a call (generators.py drives it).

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
from torchweld.data_sizes import expect
from torchweld.frame.decode import decode
from torchweld.frame.hook import run_hooked
from torchweld.frame.points import Piece, Point, cell_names, looked_at
from torchweld.frame.program import Dispatcher, Entry, set_pending
from torchweld.frame.resume import rejoin_code, resume_code
from torchweld.frame.steps import step_piece, wait_piece
from torchweld.frame.waiting import function, give, raise_thrown
from torchweld.ir.region import Region, Resume, Suspended
from torchweld.sites import REGION, Site

Miss = Callable[..., Entry | None]
Values = tuple[Any, ...]
States = tuple[Values, ...]

# what a step of these instructions runs cannot be Python code that is worth a graph
_UNHOOKED = frozenset(("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"))


class Next:
    """What a rest gives back that has not ended: the break or yield, and the state."""

    __slots__ = ("at", "states")

    def __init__(self, at: Break | Yield, states: Values) -> None:
        self.at = at
        self.states = states


class Pending:
    """What a broken frame gives back that is no rest: its entry lets go what it was called with,
    which the frame may have deleted, and then drives it to its end."""

    __slots__ = ("at", "states")

    def __init__(self, at: Break, states: States) -> None:
        self.at = at
        self.states = states


def drive(pending: Pending) -> Any:
    """Run a broken frame to its end, from a break on: its result."""
    at, states = pending.at, pending.states
    pending.states = ()
    out, values = None, ()
    try:
        while True:
            rest, values = at.go_on(states)
            states = ()
            out = rest(*values)
            if type(out) is not Next:
                return out
            assert isinstance(out.at, Break)
            at, states = out.at, out.states
    except BaseException:
        states = values = ()  # which may hold the exception, whose traceback holds this frame
        out = None
        raise


set_pending(Pending, drive)


class Break:
    """A place where a graph ends, and the rests that follow it.

    The innermost frame runs the instruction that it is at; the others wait for a call.
    """

    __slots__ = ("_chain", "_empty", "_frames", "_miss", "_rests", "_resume", "_seen", "_site",
                 "_step", "_steps")  # fmt: skip

    def __init__(self, resume: Resume, site: Site, miss: Miss, empty: int,
                 seen: frozenset[object]) -> None:  # fmt: skip
        self._resume, self._frames = resume, resume.frames
        self._miss, self._empty, self._seen = miss, empty, seen
        self._site = weakref.ref(site)
        self._rests: dict[tuple[int, int], Callable[[], Any]] = {}
        self._chain = [_pieces(f, wait_piece) for f in self._frames[:-1]]
        last = self._frames[-1]
        self._steps, fn = _pieces(last, step_piece)
        plain = decode(last.code).instrs[last.index].op in _UNHOOKED
        self._step: Callable[..., Any] = fn if plain else functools.partial(hooked, self._site, fn)

    def go_on(self, states: States) -> tuple[Callable[..., Any], Values]:
        """Run the instruction: the rest of the outermost frame, and what it is called with."""
        level = len(states) - 1
        failed: list[BaseException] = []
        try:
            which, values = self._step(*states[level])
        except BaseException as error:
            if not level:
                states = ()  # see drive
                raise
            failed.append(error)
        while failed:  # it passes through the frames that wait, up to a handler
            level -= 1
            try:
                which, values = self._chain[level][1](*states[level], raise_thrown, (failed,))
            except BaseException as error:
                if not level:
                    states = ()
                    raise
                failed.append(error)
        rest = self._rest(which, states[: level + 1], values)
        callees = rest.callees if level else ()
        for state, callee in zip(reversed(states[:level]), callees, strict=True):
            values = (*state, callee, values)
        return rest, values

    def _rest(self, which: int, states: States, values: Values) -> Any:
        """The rest of the frames that are left.

        states: theirs in front of the instruction. values: of the innermost behind it.
        """
        level = len(states) - 1
        found = self._rests.get((level, which), _nothing)()
        if found is not None:
            return found
        made = self._make(level, which)
        inner = made.miss.keywords["site"]
        if inner is not None:
            expect(inner, made.fn.__code__.co_varnames, self._resume, states, values)
        return made

    def _make(self, level: int, which: int) -> Any:
        last = level == len(self._frames) - 1
        piece = self._steps if last else self._chain[level][0]
        point, frames, site = piece.points[which], self._frames[: level + 1], self._site()
        # code objects are equal by value, so the key has their identities
        key = (*((id(f.code), id(f.globals), point_of(f)) for f in frames[:-1]),
               (id(frames[-1].code), id(frames[-1].globals), point, "rest"))  # fmt: skip
        made = site.points.get(key) if site is not None else None
        if made is None:
            fns = functools.partial(_functions, frames, point)
            made = dispatcher(fns, frames, site, self._miss, self._empty,
                              self._seen | {origin_of(self._frames)}, key)  # fmt: skip
            if site is not None:
                made = site.points.setdefault(key, made)
        if site is None:  # everything was forgotten while the frame ran
            self._rests[level, which] = lambda: made
        else:
            self._rests[level, which] = weakref.ref(made)
        return made


def _functions(frames: Sequence[Suspended], point: Point) -> list[types.FunctionType]:
    """The rests of frames, of which the innermost goes on at `point`."""
    fns = [function(rejoin_code(decode(f.code), point_of(f)), f.globals) for f in frames[:-1]]
    return [*fns, function(resume_code(decode(frames[-1].code), point), frames[-1].globals)]


def dispatcher(make: Callable[[], list[types.FunctionType]], frames: tuple[Suspended, ...],
               site: Site | None, miss: Miss, empty: int,
               seen: frozenset[object], place: object) -> Any:  # fmt: skip
    """The dispatcher of a rest. make: the rests of its frames, outermost first, which all of a kin
    share: they are among the arguments. callees: those of inner frames, innermost first."""
    kin = site.kin if site is not None else None
    fns, frames = (make(), frames) if kin is None else kin.rest(place, make, frames)
    inner = None if site is None else Site(
        site.options, inner=site.inner, owner=weakref.ref(site), empty=empty, seen=seen,
        kin=site.kin, place=place)  # fmt: skip
    ask = miss if site is not None else _eagerly
    made: Any = Dispatcher(fns[0], functools.partial(ask, site=inner))
    made.callees = tuple(reversed(fns[1:]))
    made.frames = frames  # what the key is about lives as long
    return made


class Yield:
    """A place where a generator is suspended, and the rest that follows it.

    how: see `ir.region.Resume.hands`.
    """

    __slots__ = ("_empty", "_frame", "_miss", "_rest", "_seen", "_site", "_throw", "how")

    def __init__(self, frame: Suspended, how: str, site: Site, miss: Miss, empty: int,
                 seen: frozenset[object]) -> None:  # fmt: skip
        self._frame, self._miss, self._empty, self._seen = frame, miss, empty, seen
        self.how, self._site = how, weakref.ref(site)
        self._rest: Callable[[], Any] = _nothing
        self._throw = function(rejoin_code(decode(frame.code), point_of(frame)), frame.globals)

    def sent(self, state: Values, value: Any) -> Any:
        """What the rest gives back when it gets what it waits for."""
        rest = self._rest()
        if rest is None:
            rest = self._make()
        if self.how == "yield":
            return rest(*state, give, (value,))
        at = len(state) - len(cell_names(decode(self._frame.code))) - 1  # what it delegated to
        return rest(*state[:at], value, *state[at + 1 :])

    def thrown(self, state: Values, failed: list[BaseException]) -> Any:
        """The generator as it is when an exception is raised in it, not started."""
        return self._throw(*state, raise_thrown, (failed,))

    def _make(self) -> Any:
        site, frame = self._site(), self._frame
        key = (id(frame.code), id(frame.globals), point_of(frame), self.how)
        made = site.points.get(key) if site is not None else None
        if made is None:
            made = dispatcher(lambda: [self._function()], (frame,), site, self._miss, self._empty,
                              self._seen | {origin_of((frame,))}, key)  # fmt: skip
            if site is not None:
                made = site.points.setdefault(key, made)
        self._rest = (lambda: made) if site is None else weakref.ref(made)
        return made

    def _function(self) -> types.FunctionType:
        frame, code = self._frame, decode(self._frame.code)
        if self.how == "yield":
            return self._throw
        target = code.instrs[frame.index - 1].target  # of the SEND, to where it ends
        assert target is not None
        kept = frame.unbound & looked_at(code, target)
        return function(resume_code(code, Point(target, kept, frame.holes)), frame.globals)


def origin_of(frames: Sequence[Suspended]) -> tuple[object, ...]:
    """Equal for breaks at the same instructions of the same functions."""
    return tuple((id(f.code), f.index) for f in frames)


def point_of(frame: Suspended) -> Point:
    return Point(frame.index, frame.unbound, frame.holes)


def _pieces(frame: Suspended, make: Callable[..., Piece]) -> tuple[Piece, types.FunctionType]:
    piece = make(decode(frame.code), point_of(frame))
    return piece, function(piece.code, frame.globals)


def _nothing() -> None:
    return None


def _eagerly(made: Dispatcher, args: Values, *, site: object) -> None:
    """No entry, so that the function itself runs."""


def hooked(site: weakref.ref[Site], fn: Callable[..., Any], *values: Any) -> Any:
    """Run a step; what it calls is compiled."""
    before = getattr(REGION, "site", None)
    REGION.site = site() or before
    try:
        return run_hooked(fn, *values)
    finally:
        values = ()  # see drive
        REGION.site = before


def names_of(region: Region, site: Site, miss: Miss) -> dict[str, Any]:
    """What a broken region's residual program needs to go on: name -> object."""
    if region.resume is None:
        return {}
    owner = site.owner() if site.owner is not None else None
    empty = 0 if region.operators else site.empty + 1
    frames, hands = region.resume.frames, region.resume.hands
    if hands:
        return {PIECE: Yield(frames[0], hands, owner or site, miss, empty, site.seen), GO_ON: Next}
    at = Break(region.resume, owner or site, miss, empty, site.seen)
    return {PIECE: at, GO_ON: Pending if site.owner is None else Next}
