"""Generators and coroutines of the capture, which are virtual frames: how one goes on, and how a
generator waits while the frame around it is broken (frame/waiting.py has what stands for it then).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, VFrame, raised, refuse
from torchweld.capture.suspend import (
    SUSPENDED,
    check_end,
    delegates_at,
    flat_state,
    point_in,
    stops_of,
)
from torchweld.capture.values.base import (
    UNBOUND,
    CellValue,
    Const,
    GeneratorValue,
    InstanceValue,
    Value,
)
from torchweld.capture.wrap import WRAPPERS, passed_text
from torchweld.frame.assemble import Unassemblable
from torchweld.frame.decode import decode
from torchweld.frame.places import layout
from torchweld.frame.points import cell_names, looked_at, original
from torchweld.frame.waiting import Place, WaitingGenerator, place_of
from torchweld.ir.source import Attr, Item, Source

# the flat state of a generator from outside, and where each part of it is found
State = list[tuple[Any, Source]]


def resume(cap: Capture, gen: GeneratorValue, sent: Value, cont: Cont,
           finished: Callable[[Value], None]) -> None:  # fmt: skip
    """Run a generator to its next yield (`cont`) or its end (`finished` gets its result)."""
    if gen.finished:
        finished(Const(None))
        return
    if gen.running:
        raise raised(ValueError, "generator already executing")
    fresh = gen.frame.code.instrs[gen.frame.ip - 1].op == "RETURN_GENERATOR"
    if fresh and not (isinstance(sent, Const) and sent.obj is None):
        what = "coroutine" if gen.kind is types.CoroutineType else "generator"
        raise raised(TypeError, f"can't send non-None value to a just-started {what}")
    _enter(cap, gen, cont, finished)
    gen.frame.stack.append(sent)


def drives(it: Value) -> None:
    """A generator is run by an instruction that could run it again, and gives what it yields."""
    if isinstance(it, GeneratorValue) and it.running and it.kind is types.GeneratorType:
        it.frame.driven = it


def _enter(cap: Capture, gen: GeneratorValue, cont: Cont,
           finished: Callable[[Value], None]) -> None:  # fmt: skip
    """Make a generator's frame the innermost one, with the exceptions that it was handling."""
    frame = gen.frame
    outer = len(cap.handled)
    cap.handled.extend(frame.exc)
    frame.exc = []
    gen.running = True
    if gen.source is not None:
        cap.mark(gen)

    def left(finished: bool) -> None:
        gen.running, gen.finished = False, finished
        frame.on_yield = frame.on_return = frame.on_raise = None  # which refer to the frame
        frame.driven = None

    def yielded(value: Value) -> None:
        left(False)
        frame.exc = cap.handled[outer:]
        del cap.handled[outer:]
        cont(value)

    def returned(value: Value) -> None:
        left(True)
        del cap.handled[outer:]
        finished(value)

    def failed(exc: Value) -> bool:
        left(True)
        del cap.handled[outer:]
        if gen.kind not in SUSPENDED and issubclass(exc.cls(), StopIteration):
            finished(Const(None))  # it stands for an iterator that is no generator
            return True
        check_end(gen.kind, exc)
        return False

    frame.on_yield, frame.on_return, frame.on_raise = yielded, returned, failed
    cap.frames.append(frame)


def throw(cap: Capture, gen: GeneratorValue, exc: Value, cont: Cont,
          finished: Callable[[Value], None]) -> None:  # fmt: skip
    """Raise an exception where a generator is suspended, in the innermost it delegates to."""
    if gen.finished:
        raise Raised(exc)
    if gen.running:
        raise raised(ValueError, "generator already executing")
    frame = gen.frame
    send_at = delegates_at(frame)
    inner = frame.stack[-1] if send_at is not None else None
    if inner is not None and not isinstance(inner, GeneratorValue):
        if isinstance(inner, InstanceValue):
            raise refuse("W107", "throw into a generator that reads from an object", cap.loc())
        inner = None
    if inner is None:
        _enter(cap, gen, cont, finished)
        raise Raised(exc)
    _enter(cap, gen, cont, finished)

    def ended(result: Value) -> None:
        frame.stack[-1] = result
        frame.ip = frame.code.instrs[send_at].target

    throw(cap, inner, exc, lambda value: _yield_on(cap, frame, value), ended)


def _yield_on(cap: Capture, frame: VFrame, value: Value) -> None:
    """The frame that delegates stays where it is, and hands the value further out."""
    cap.frames.pop()
    assert frame.on_yield is not None
    frame.on_yield(value)


def suspended(gen: GeneratorValue) -> tuple[Place, list[Any]]:
    """Where a generator waits, and its flat state there. Errors: Unassemblable."""
    frame = gen.frame
    fresh = frame.code.instrs[frame.ip - 1].op == "RETURN_GENERATOR"
    code, at = original(frame.code, frame.ip - 1) or (frame.code, frame.ip - 1)
    plain = gen.kind is types.GeneratorType and frame.is_real() and not frame.exc
    if not plain or delegates_at(frame) is not None:
        raise Unassemblable(f"a {gen.kind.__name__} that delegates or handles an exception")
    index = at + 2 if fresh else at  # a fresh one drops what it is sent
    point = point_in(frame, code, index, waits=not fresh)
    place = layout(code).places[at + 1]
    if place is None or place.handled:
        raise Unassemblable("an exception that is handled where the generator waits")
    made = place_of(((code.raw, frame.globals, point),), "resume" if fresh else "yield")
    return made, flat_state(frame, code, index, {})


def _waiting(cap: Capture, obj: WaitingGenerator, source: Source) -> Value:
    """One that an earlier part of the frame has left; its state is read when it is asked."""
    cap.guard("type", source, WaitingGenerator)
    state = Attr.make(source, "state")

    def read() -> VFrame:
        place = obj.place
        if place is None:
            raise refuse("W107", "a generator that eager code has gone on with", cap.loc(),
                         "iterate over a list or another container")  # fmt: skip
        cap.guard("is", Attr.make(source, "place"), place)
        cap.note_birth(gen, stops_of(cap))
        parts: State = [(x, Item.make(state, i, True)) for i, x in enumerate(obj.state)]
        frame = (_frame if place.how == "yield" else _begun)(cap, place, parts)
        cap.in_block = cap.in_block or bool(frame.code.protected)
        return frame

    gen = GeneratorValue(None, source=source, real=obj, read=read)
    return gen


def _begun(cap: Capture, place: Place, state: State) -> VFrame:
    """The virtual frame of a generator that goes on by itself: of its rest, which was called."""
    code, globals_ = decode(place.rests[0].__code__), place.at[0][1]
    frame = VFrame(code, globals_, cap.pin(globals_, "globals"))
    frame.ip = next(i for i, x in enumerate(code.instrs) if x.op == "RETURN_GENERATOR") + 1
    cap.names.update(code.raw.co_names)
    frame.cells = {name: CellValue(None) for name in cell_names(code)}
    for name, found in zip(code.params, state, strict=True):
        frame.locals[name] = _part(cap, *found)
    return frame


def _frame(cap: Capture, place: Place, state: State) -> VFrame:
    """A virtual frame in a YIELD_VALUE, of its flat state and where each part of it is found."""
    (raw, globals_, point), *_ = place.at
    code = decode(raw)
    frame = VFrame(code, globals_, cap.pin(globals_, "globals"))
    frame.ip = point.index + 1
    cap.names.update(code.raw.co_names)
    looked, cells = looked_at(code, point.index), cell_names(code)
    for name, found in zip(code.varnames, state, strict=False):
        if name in looked and name not in cells and name not in point.unbound:
            frame.locals[name] = _part(cap, *found)
    stack = state[len(code.varnames) : len(state) - len(cells)]
    frame.stack = [UNBOUND if i in point.holes else _part(cap, *x) for i, x in enumerate(stack)]
    for name, found in zip(cells, state[len(state) - len(cells) :], strict=True):
        if name in looked:
            cell = cap.wrap(*found)
            assert isinstance(cell, CellValue)
            frame.cells[name] = cell
    return frame


def _part(cap: Capture, obj: Any, source: Source) -> Value:
    """A variable or operand; names are often only passed on, and other ones in each call."""
    return passed_text(cap, obj, source) if type(obj) is str else cap.wrap(obj, source)


WRAPPERS.add(WaitingGenerator, _waiting)
