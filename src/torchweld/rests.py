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
from torchweld.data_sizes import argument, expect, found_at, held
from torchweld.frame.decode import decode
from torchweld.frame.hook import run_hooked
from torchweld.frame.points import Piece, Point, cell_names, looked_at
from torchweld.frame.program import Dispatcher, Entry, set_pending
from torchweld.frame.resume import rejoin_code, resume_code
from torchweld.frame.steps import step_piece, wait_piece
from torchweld.frame.waiting import (
    At,
    Place,
    function,
    give,
    place_of,
    raise_thrown,
    rests_at,
)
from torchweld.ir.region import Region, Resume, Suspended
from torchweld.ir.source import Item
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
            values = ()  # what the frame lets go from here on is gone then
            if type(out) is not Next:
                return out
            assert isinstance(out.at, Break)
            at, states, out = out.at, out.states, None
    except BaseException:
        states = values = ()  # which may hold the exception, whose traceback holds this frame
        out = None
        raise


set_pending(Pending, drive)


class Break:
    """A place where a graph ends, and the rests that follow it.

    The innermost frame runs the instruction that it is at; the others wait for a call, or run a
    generator: they run it again when it has been told where it goes on.
    """

    __slots__ = ("_chain", "_driven", "_empty", "_frames", "_loops", "_miss", "_places", "_rests",
                 "_resume", "_seen", "_site", "_step", "_steps")  # fmt: skip

    def __init__(self, resume: Resume, site: Site, miss: Miss, empty: int,
                 seen: frozenset[object]) -> None:  # fmt: skip
        self._resume, self._frames, self._driven = resume, resume.frames, resume.driven
        self._miss, self._empty, self._seen = miss, empty, seen
        self._site = weakref.ref(site)
        self._rests: dict[tuple[int, int], Callable[[], Any]] = {}
        self._places: dict[tuple[int, int], tuple[tuple[int, Place], ...]] = {}
        self._loops = frozenset(i - 1 for i in self._driven if _loops(resume.frames[i - 1]))
        self._chain = [_pieces(f, step_piece if i in self._loops else wait_piece)
                       for i, f in enumerate(self._frames[:-1])]  # fmt: skip
        last = self._frames[-1]
        self._steps, fn = _pieces(last, step_piece)
        plain = decode(last.code).instrs[last.index].op in _UNHOOKED
        self._step: Callable[..., Any] = fn if plain else functools.partial(hooked, self._site, fn)

    def go_on(self, states: States) -> tuple[Callable[..., Any], Values]:
        """Run the instruction: the rest of the outermost frame, and what it is called with."""
        driven: dict[int, Any] = {}
        if self._driven:
            driven = dict(zip(self._driven, states[len(self._frames) :], strict=True))
            states = states[: len(self._frames)]
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
                which, values = self._passed(level, states[level], driven.get(level + 1), failed)
            except BaseException as error:
                if not level:
                    states = ()
                    raise
                failed.append(error)
        driven = {d: x for d, x in driven.items() if d <= level}  # the others have ended
        if driven:
            return self._run_again(which, states[: level + 1], values, driven)
        rest = self._rest(level, which)
        inner = rest.miss.keywords["site"]
        if inner is not None:
            root = argument(rest.fn.__code__.co_varnames)
            expect(inner, root, self._resume, 0, states[: level + 1], values)
        return rest, _nested(states[:level], rest.callees if level else (), values)

    def _passed(self, level: int, state: Values, generator: Any,
                failed: list[BaseException]) -> Any:  # fmt: skip
        """What a frame does with an exception that comes out of the next one."""
        run = self._chain[level][1]
        if generator is None:
            return run(*state, raise_thrown, (failed,))
        generator.fail(failed)
        return run(*state) if level in self._loops else run(*state, next, (generator,))

    def _run_again(self, which: int, states: States, values: Values,
                   driven: dict[int, Any]) -> tuple[Any, Values]:  # fmt: skip
        """The rest up to the first generator; each of them is told where it goes on."""
        top, after = len(states), values
        key = top - 1, which
        if key not in self._places:
            self._places[key] = self._places_of(top, which, sorted(driven, reverse=True))
        places = self._places[key]
        for d, place in places:
            driven[d].move(place, _nested(states[d : top - 1], place.rests[:0:-1], values))
            top, loops = d, d - 1 in self._loops
            values = states[d - 1] if loops else (*states[d - 1], next, (driven[d],))
        rest = self._rests.get(key, _nothing)()
        if rest is None:
            at = [*map(_at, self._frames[:top])]
            rest = self._make(key, at, "resume" if loops else "rejoin", places)
            self._expect_again(rest, states, after, driven)
        return rest, _nested(states[: top - 1], rest.callees if top > 1 else (), values)

    def _expect_again(self, rest: Any, states: States, after: Values,
                      driven: dict[int, Any]) -> None:  # fmt: skip
        """What varies of the arguments of a rest, and of what the generators there hold."""
        site = rest.miss.keywords["site"]
        root, first = argument(rest.fn.__code__.co_varnames), 0
        for end in (*driven, len(states)) if site is not None else ():
            own = states[first:end]
            expect(site, root, self._resume, first, own, after if end not in driven else own[-1])
            if end in driven:
                waits, last = own[:-1], own[-1]
                if end - 1 in self._loops:
                    at = next(i for i, x in enumerate(last) if x is driven[end])
                    root = held(found_at(root, waits, at))
                else:
                    root = held(Item.make(found_at(root, waits, len(last) + 1), 0, True))
            first = end

    def _places_of(self, top: int, which: int, driven: list[int]) -> tuple[tuple[int, Place], ...]:
        """Where the generators among the frames below `top` go on, innermost first."""
        at, how = self._points(top - 1, which), "resume"
        found = []
        for d in driven:
            found.append((d, place_of(tuple(at[d:top]), how)))
            top, how = d, "resume" if d - 1 in self._loops else "rejoin"
        return tuple(found)

    def _points(self, level: int, which: int) -> list[At]:
        """Where the frames up to a level are, of which the last one goes on at a point of its
        piece."""
        last = level == len(self._frames) - 1
        piece = self._steps if last else self._chain[level][0]
        at = [*map(_at, self._frames[: level + 1])]
        at[-1] = (*at[-1][:2], piece.points[which])
        return at

    def _rest(self, level: int, which: int) -> Any:
        """The rest of the frames up to a level, which goes on at a point of its piece."""
        found = self._rests.get((level, which), _nothing)()
        if found is not None:
            return found
        return self._make((level, which), self._points(level, which), "resume", ())

    def _make(self, wanted: tuple[int, int], at: list[At], how: str, places: object) -> Any:
        """A rest that is not there yet. places: of generators that it will run."""
        frames, site = self._frames[: len(at)], self._site()
        # code objects are equal by value, so the key has their identities
        key = (*((id(code), id(globals_), point) for code, globals_, point in at), "rest", places)
        made = site.points.get(key) if site is not None else None
        if made is None:
            fns = functools.partial(rests_at, at, how)
            made = dispatcher(fns, frames, site, self._miss, self._empty,
                              self._seen | {origin_of(self._frames)}, key)  # fmt: skip
            if site is not None:
                made = site.points.setdefault(key, made)
        if site is None:  # everything was forgotten while the frame ran
            self._rests[wanted] = lambda: made
        else:
            self._rests[wanted] = weakref.ref(made)
        return made


def _nested(states: States, callees: Sequence[Any], values: Values) -> Values:
    """What the outermost rest is called with. states: of the frames that wait for the next one's
    rest, which is one of the callees, innermost first."""
    for state, callee in zip(reversed(states), callees, strict=True):
        values = (*state, callee, values)
    return values


def _at(frame: Suspended) -> At:
    return frame.code, frame.globals, point_of(frame)


def _loops(frame: Suspended) -> bool:
    return decode(frame.code).instrs[frame.index].op == "FOR_ITER"


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
