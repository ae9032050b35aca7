"""Generators, coroutines and asynchronous generators: what drives a compiled one.

The stretch from one place where it is suspended to the next is captured like a function; what it
hands out, and what is sent to it, passes through a generator of this module. An exception that is
thrown into it goes to the rest of the real one, which runs eagerly from there on; so does the rest
after a stretch that cannot be captured. What that calls is compiled.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from torchweld.frame.decode import decode
from torchweld.frame.points import Point, cell_names, is_rest, looked_at
from torchweld.frame.resume import resume_code
from torchweld.frame.waiting import function
from torchweld.ir.region import Suspended
from torchweld.rests import Miss, Next, Values, Yield, dispatcher, hooked
from torchweld.sites import Site

# what a real generator tells of itself
_CODES = {types.GeneratorType: "gi_code", types.CoroutineType: "cr_code",
          types.AsyncGeneratorType: "ag_code"}  # fmt: skip
# why a generator stands still: besides what `Resume.hands` says, it is a real one or has ended
_REAL, _ENDED = "real", "ended"
_Moved = tuple[str, Any]
# An exception that is thrown in, which is taken out before it is raised: no frame that it passes
# through may hold it, since its traceback holds the frame.
_Thrown = list[BaseException]


def starter(fn: types.FunctionType, site: Site, miss: Miss) -> Callable[..., Any]:
    """Makes a generator out of flat arguments behind a first one that is ignored.

    Errors: Unassemblable.
    """
    code = decode(fn.__code__)
    begins = next(i for i, x in enumerate(code.instrs) if x.op == "RETURN_GENERATOR") + 2
    looked = looked_at(code, begins)
    unbound = frozenset(n for n in code.varnames if n in looked and n not in code.params)
    point = Point(begins, unbound - set(code.cellvars))
    frame = Suspended(fn.__code__, begins, point.unbound, point.holes, fn.__globals__)
    key = (id(frame.code), id(frame.globals), point, "start")
    site.points[key] = start = dispatcher(
        lambda: [function(resume_code(code, point), frame.globals)], (frame,), site, miss, 0,
        frozenset(), key)  # fmt: skip
    # an entry does not keep alive what it was compiled of
    found, site_of, origin = weakref.ref(start), weakref.ref(site), weakref.ref(fn)
    cells = fn.__closure__ or ()
    drive = next(d for flag, d in _DRIVERS.items() if fn.__code__.co_flags & flag)

    def begin(outs: object, *flat: Any) -> Any:
        given = dict(zip(code.params, flat, strict=True))
        own = (types.CellType(given[n]) if n in given else types.CellType() for n in code.cellvars)
        values = (*(None if n in code.cellvars else given.get(n) for n in code.varnames),
                  *own, *cells)  # fmt: skip
        made = drive(_Run(found() or start_again, values, site_of))
        named = origin() or start_again
        made.__name__, made.__qualname__ = named.__name__, named.__qualname__
        return made

    start_again = function(resume_code(code, point), frame.globals)
    assert len(cell_names(code)) == len(code.cellvars) + len(cells)
    return begin


class _Run:
    """One call of a generator function: where it is suspended, and with what state."""

    __slots__ = ("at", "site", "start", "state")

    def __init__(self, start: Callable[..., Any], values: Values,
                 site: weakref.ref[Site]) -> None:  # fmt: skip
        self.start: Callable[..., Any] | None = start
        self.state, self.site = values, site
        self.at: Yield | None = None

    def begin(self) -> _Moved:
        start, values = self.start, self.state
        self.start, self.state = None, ()
        assert start is not None
        return self._moved(start(*values))

    def send(self, value: Any) -> _Moved:
        state, self.state = self.state, ()
        assert self.at is not None
        return self._moved(self.at.sent(state, value))

    def throw(self, thrown: _Thrown) -> _Moved:
        state, self.state = self.state, ()
        assert self.at is not None
        _let_go(thrown[0])
        return _REAL, self.at.thrown(state, thrown)

    def _moved(self, out: Any) -> _Moved:
        """Go on to where the generator is suspended next."""
        while type(out) is Next:
            if isinstance(out.at, Yield):
                self.at = out.at
                value, self.state = out.states
                return out.at.how, value
            try:
                rest, values = out.at.go_on(out.states)
                out = rest(*values)
            except BaseException:
                out = values = None  # an exception may be among them: see rests.py
                raise
        code = getattr(out, _CODES.get(type(out), ""), None)
        return (_REAL if code is not None and is_rest(code) else _ENDED), out

    def resumed(self, resume: Callable[[Any], Any], given: list[Any]) -> Any:
        """Resume a real generator with what the list holds; what it calls is compiled."""
        site = self.site()
        if site is None or site.options.fullgraph:
            return resume(given.pop())
        return hooked(self.site, resume, given.pop())


def _generator(run: _Run) -> Generator[Any, Any, Any]:
    how, value = run.begin()
    while how != _ENDED:
        thrown: _Thrown = []
        got = None
        try:
            if how == _REAL:
                return (yield from _real(run, value))
            got = (yield value) if how == "yield" else (yield from value)
        except BaseException as error:
            if how == _REAL:
                raise
            thrown.append(error)
        how, value = run.throw(thrown) if thrown else run.send(got)
    return value


async def _coroutine(run: _Run) -> Any:
    how, value = run.begin()
    while how != _ENDED:
        thrown: _Thrown = []
        got = None
        try:
            if how == _REAL:
                return await _Awaited(_real(run, value))
            got = await _Awaited(value)
        except BaseException as error:
            if how == _REAL:
                raise
            thrown.append(error)
        how, value = run.throw(thrown) if thrown else run.send(got)
    return value


async def _asynchronous(run: _Run) -> AsyncGenerator[Any, Any]:
    how, value = run.begin()
    while how != _ENDED:
        if how == _REAL:
            break
        thrown: _Thrown = []
        got = None
        try:
            got = (yield value) if how == "yield" else (await _Awaited(value))
        except BaseException as error:
            thrown.append(error)
        how, value = run.throw(thrown) if thrown else run.send(got)
    if how == _ENDED:
        return
    given: list[Any] = [None]
    resume = value.asend
    while True:
        try:
            item = await _Awaited(_real(run, resume(given.pop())))
        except StopAsyncIteration:
            return
        try:
            resume, given = value.asend, [(yield item)]
        except BaseException as error:
            resume, given = value.athrow, [_let_go(error)]


_DRIVERS: dict[int, Callable[[_Run], Any]] = {
    inspect.CO_ASYNC_GENERATOR: _asynchronous, inspect.CO_COROUTINE: _coroutine,
    inspect.CO_GENERATOR: _generator,
}  # fmt: skip


def _let_go(error: BaseException) -> BaseException:
    """An exception without the frames of this module."""
    tb = error.__traceback__
    return error.with_traceback(tb.tb_next if tb is not None else None)


class _Awaited:
    """An awaitable that is one certain iterator or coroutine."""

    __slots__ = ("_it",)

    def __init__(self, it: Any) -> None:
        self._it = it

    def __await__(self) -> Generator[Any, Any, Any]:
        it = self._it
        return it.__await__() if isinstance(it, types.CoroutineType) else it


def _real(run: _Run, gen: Any) -> Generator[Any, Any, Any]:
    """`yield from gen`, of which every resumption is a hooked region."""
    given: list[Any] = [None]
    resume = gen.send
    while True:
        try:
            value = run.resumed(resume, given)
        except StopIteration as end:
            return end.value
        try:
            resume, given = gen.send, [(yield value)]
        except GeneratorExit:
            gen.close()
            raise
        except BaseException as error:
            resume, given = gen.throw, [error]
