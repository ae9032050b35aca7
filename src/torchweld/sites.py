"""What is known of a function that is compiled, and how it runs eagerly.

Code that runs eagerly runs in a region of a site: the frame hook finds out what it calls.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

from torchweld.base import config
from torchweld.capture import named_sources
from torchweld.capture.class_state import ClassAttr, ClassState
from torchweld.capture.promises import Promised
from torchweld.capture.symbolic import Varying
from torchweld.frame.hook import run_hooked
from torchweld.frame.program import Dispatcher, Entry, Program
from torchweld.ir.graph import GraphSettings, end
from torchweld.ir.guard import Guard
from torchweld.ir.region import Region
from torchweld.ir.source import Source
from torchweld.pipeline import OWN_BACKENDS, Backend, Compiled, weld_backend

# so many numbers of rounds a loop is unrolled for
_UNROLLED = 2
# from so many compilations on, a frame is broken where a number decides that varies
_MANY = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How one function is compiled. apart: an object of its own, if it shares no entries. shapes:
    what was said of the sizes of its arguments (shape_specs.Given)."""

    backend: Backend = weld_backend
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8
    graph: GraphSettings = field(default_factory=GraphSettings)
    apart: object = None
    shapes: Any = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Made:
    """`Entry.info`. region: None if the entry runs the function eagerly. call: what runs its graph.
    compiled: what the default backend made of the graph so far. owns: the graph is known to nobody
    else, and ends with the entry. program: what checks the guards. like: of the entry that it was
    taken over from."""

    guards: tuple[Guard, ...]
    region: Region | None
    compiled: Compiled | None = None
    owns: bool = False
    program: Program | None = None
    call: Callable[..., Any] | None = None
    like: Made | None = None

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.owns and self.region is not None and not at_exit():
            end(self.region.graph)


def fits(program: Program, args: tuple[object, ...]) -> bool:
    """Whether guards hold for these arguments, also where something was assigned in a class that
    the capture has not read."""
    at = -1
    while True:
        before, at = at, program.explain(args)
        guard = getattr(program, "guards", {}).get(at)
        if guard is None or at <= before or not isinstance(guard.expected, ClassState):
            return at < 0
        if not program.renew(at, guard.expected.holds):
            return False


class Kin:
    """What was compiled for functions that differ only in what they are called on, or close over.
    Each takes over what fits from the others.

    keeps: of how many entries for one place what was compiled stays as long as any of the functions
    does; else it dies with its own.
    """

    __slots__ = ("__weakref__", "_keeps", "_made", "_rests")

    def __init__(self, keeps: int = 0) -> None:
        self._made: dict[object, list[Callable[[], Made | None]]] = {}
        self._keeps = keeps
        self._rests: dict[object, tuple[list[types.FunctionType], Any]] = {}

    def rest(self, place: object, make: Callable[[], list[types.FunctionType]],
             frames: Any) -> tuple[list[types.FunctionType], Any]:  # fmt: skip
        """The functions of a rest, and the frames whose identities its place is about."""
        if place not in self._rests:
            self._rests[place] = make(), frames
        return self._rests[place]

    def add(self, place: object, made: Made) -> None:
        """Offer an entry. place: of the function, or of the rest of it, that it is for."""
        kept = self._made.setdefault(place, [])
        kept[:] = [m for m in kept if m() is not None][-self._keeps :]
        kept.append((lambda: made) if self._keeps else weakref.ref(made))

    def made(self, place: object) -> list[Made]:
        """What was made for somebody else and is still there, the oldest first."""
        return [made for ref in self._made.get(place, ()) if (made := ref()) is not None]

    def fitting(self, place: object, args: tuple[object, ...]) -> Made | None:
        """What was made for somebody else and fits these flat arguments; the oldest."""
        for made in self.made(place):
            if made.program is not None and fits(made.program, args):
                return made
        return None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Site:
    """What is known of one function that is compiled, besides its entries.

    late: sources of numbers that changed; fixed: of those that an operator has to know. lengths: of
    lists. parts: of sizes and strides of tensors. attributes: of classes, that are assigned. inner:
    of the functions that it calls when it runs eagerly, by the id of their code; these have a
    `code`, and a `root`: the one that calls them, directly or not. entries: those made, in order.
    warm: it was called before. spent: its limit was reached. changes: how often a capture was in
    vain because something changed meanwhile.
    points: the rest of the function from where it was broken (rests.py); owner: of such a rest, the
    function's site. seen: the breaks on the way to a rest; empty: how many rests in a row before
    it had no operator. copies: whether captures may repeat calls (ADR 0017). by_data, supposes: as
    of `Varying` (ADR 0028). hooks_stay: whether hooks that the frame registers are not removed.
    promised: of the arguments of the call that is compiled. called: names of those of modules.
    counters, anew: as of `Varying`. kin: of the functions that may use its entries; place: its own
    there. given: the function is the last of the flat arguments, since what is compiled is for all
    functions of its code; family: keeps that alive.
    """

    options: Options
    late: set[Source] = field(default_factory=set)
    fixed: set[Source] = field(default_factory=set)
    lengths: set[Source] = field(default_factory=set)
    parts: set[tuple[Source, str, int]] = field(default_factory=set)
    attributes: set[ClassAttr] = field(default_factory=set)
    inner: dict[int, Site] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    code: types.CodeType | None = None
    root: ReferenceType[Site] | None = None
    idle: int = 0
    warm: bool = False
    spent: bool = False
    changes: int = 0
    points: dict[object, Dispatcher] = field(default_factory=dict)
    owner: ReferenceType[Site] | None = None
    seen: frozenset[object] = frozenset()
    empty: int = 0
    copies: bool = True
    by_data: bool = True
    supposes: bool = True
    hooks_stay: bool = False
    promised: Promised | None = None
    called: dict[Source, str] = field(default_factory=dict)
    counters: bool = True
    kin: Kin | None = None
    place: object = None
    given: bool = False
    family: Kin | None = None
    anew: set[Source] = field(default_factory=set)

    def varying(self) -> Varying:
        """What changes from call to call, as far as that is known."""
        listed = named_sources.listed(lambda: self.called)
        dynamic = self.options.dynamic
        learns = dynamic is not False and config.current().dynamic
        by_data = self.by_data and self.options.backend in OWN_BACKENDS
        unrolls = self.options.fullgraph or len(self.entries) < _UNROLLED
        promised = self.promised
        late = self.late if promised is None else self.late | promised.late()
        return Varying(frozenset(late - self.fixed), frozenset(self.parts if learns else ()),
                       dynamic is True, dynamic is not False, learns or bool(promised or listed),
                       frozenset(self.attributes), by_data, self.supposes,
                       frozenset(() if unrolls and not self.owner else self.lengths),
                       unrolls, promised, listed, self.counters, frozenset(self.anew),
                       len(self.entries) >= _MANY)  # fmt: skip

    def clear(self) -> None:
        self.late.clear()
        self.fixed.clear()
        self.lengths.clear()
        self.anew.clear()
        self.parts.clear()
        self.attributes.clear()
        self.inner.clear()
        self.entries.clear()
        self.points.clear()
        self.warm = self.spent = False
        self.changes = 0


REGION = threading.local()
"""`site`: whose code this thread runs eagerly. `failed`: an error to raise when that ends."""


def eager_call(fn: types.FunctionType, site: Site, hooked: bool = True) -> Callable[..., Any]:
    """Runs `fn` on flat arguments behind a first one that is ignored.

    hooked: what it calls is compiled, unless fullgraph says that everything or nothing is.
    """
    code = fn.__code__
    n, k = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    named = code.co_varnames[n:k]
    has_args, has_kwargs = bool(code.co_flags & 0x04), bool(code.co_flags & 0x08)
    plain = site.options.fullgraph or not hooked
    # a function that was compiled owns its entries, and lives while one of them runs
    found: Callable[[], Any] = weakref.ref(fn) if site.code is None else lambda: fn
    site_of = weakref.ref(site)
    is_given = site.given

    def run(outs: object, *flat: Any) -> Any:
        if is_given:
            *flat, real = flat  # type: ignore[assignment]
        else:
            real = found()
        before = getattr(REGION, "site", None)
        REGION.site = site_of()
        try:
            if k == len(flat) == n:
                return real(*flat) if plain else run_hooked(real, *flat)
            start = real if plain else functools.partial(run_hooked, real)
            kwargs = dict(zip(named, flat[n:k], strict=True))
            if has_kwargs:
                kwargs.update(flat[-1])
            return start(*flat[:n], *(flat[k] if has_args else ()), **kwargs)
        finally:
            REGION.site = before
            _raise_failure(before)

    return run


class Again(Exception):
    """A locked stretch cannot run as it was compiled."""


def again(outs: object, *flat: Any) -> Any:
    """What runs the function eagerly where the lock is held that it takes itself."""
    raise Again


def locked(locks: Sequence[Any], program: Program, registers: Sequence[int],
           finish: Callable[..., Any],
           eager: Callable[..., Any]) -> Callable[..., Any]:  # fmt: skip
    """Runs a residual program on flat arguments behind a first one, with locks held; eagerly if
    the guards do not hold any more when they are.

    Only the first lock is waited for: whoever waits for one lock with another one in his hands may
    wait for ever. Where a further one is not free the frame runs eagerly.
    """
    first, *others = locks

    def run(outs: object, *flat: Any) -> Any:
        with first, _taken(others) as all_taken:
            if all_taken and program.check(flat):
                values = program.registers(flat)
                try:
                    return finish(None, *[values[i] for i in registers])
                except Again:
                    pass
        return eager(None, *flat)

    return run


@contextmanager
def _taken(locks: Sequence[Any]) -> Iterator[bool]:
    """Whether all of these locks are free; they are held meanwhile."""
    held = []
    try:
        for lock in locks:
            if lock.acquire(blocking=False):
                held.append(lock)
        yield len(held) == len(locks)
    finally:
        for lock in reversed(held):
            lock.release()


def _raise_failure(outer: Site | None) -> None:
    """At the end of a region: what the frame hook could not raise."""
    failed = getattr(REGION, "failed", None)
    if failed is not None and outer is None:
        REGION.failed = None
        raise failed
