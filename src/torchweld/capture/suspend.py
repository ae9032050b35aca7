"""Ending a capture in the middle of a frame: where it can be done, and the state that is left.

A capture can stop before any instruction whose whole call stack consists of frames that are really
there in Python: then what is on the virtual stack is what would be on the real one.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchweld.capture.identity import guard_changed
from torchweld.capture.session import Capture
from torchweld.capture.state import Stuck, VFrame, refuse, stop_inside
from torchweld.capture.symbolic import is_varying
from torchweld.capture.values.base import (
    UNBOUND,
    CellValue,
    Const,
    GeneratorValue,
    TensorValue,
    Value,
)
from torchweld.frame.assemble import Unassemblable
from torchweld.frame.instr import Code
from torchweld.frame.places import layout
from torchweld.frame.points import (
    Point,
    can_step,
    cell_names,
    depth_at,
    looked_at,
    original,
    sets_up,
)
from torchweld.frame.resume import rejoin_code
from torchweld.frame.steps import step_piece, wait_piece
from torchweld.ir.region import Resume, Suspended
from torchweld.ir.size_node import is_number, plain

# names in the residual program, which the pipeline gives their meaning: how to go on, and with what
GO_ON, PIECE = "go_on", "piece"

Expr = Callable[[Value], str]


@dataclass(frozen=True, slots=True)
class Rest:
    """The frames that have not ended, and what gives the expression of their state."""

    resume: Resume
    state: Callable[[Expr], str]


def stops_of(cap: Capture) -> tuple[int, ...]:
    """Instructions before which the capture could stop now, by their numbers; innermost first."""
    found: list[int] = []
    for frame in cap.frames:
        if not frame.can_wait() or frame.ip < 1:
            break
        index = frame.ip - 1
        if sets_up(frame.code, index):
            if original(frame.code, index) is None:
                break
            continue
        code, at = original(frame.code, index) or (frame.code, index)
        place = layout(code).places[at]
        if place is not None and can_step(code, at):
            found.append(frame.started - (at - place.index))
    return tuple(reversed(found))


def suspend(cap: Capture) -> Rest:
    """What is left of the frames at `cap.stop`, or where a generator hands something out.

    Errors: GraphBreak if they cannot go on.
    """
    frames, handed = cap.frames, cap.handed
    for what, why in cap.entered:
        raise Stuck("W106", why, cap.loc(), cap.birth(what))
    if cap.held:
        lock = cap.objects[id(cap.held[0])]
        raise Stuck("W107", "a lock is held", cap.loc(), cap.birth(lock))
    if handed is not None and handed.how == "yield" and delegates_at(frames[-1]) is not None:
        inner = frames[-1].stack[-1]  # which gets what is thrown into this one: a real one must
        raise Stuck("W107", f"a {inner.cls().__name__} is delegated to", cap.loc(),
                    cap.birth(inner))  # fmt: skip
    guard_changed(cap)
    if not frames or not all(f.can_wait() for f in frames):
        raise refuse("W107", "the frame cannot be left here", cap.loc())
    loops = [_loops_over(f, after) for f, after in zip(frames, (*frames[1:], None), strict=True)]
    waits = [(f is not frames[-1] or handed is not None) and not loop
             for f, loop in zip(frames, loops, strict=True)]  # fmt: skip
    driven = [(i, f.driven) for i, f in enumerate(frames) if f.driven is not None]
    try:
        places = [_place_of(f, f.ip - (w or loop), w)
                  for f, w, loop in zip(frames, waits, loops, strict=True)]  # fmt: skip
        handled = _handled(cap, places, waits)
        left = [_left(f, *p, w) for f, p, w in zip(frames, places, waits, strict=True)]
    except Unassemblable as error:
        raise refuse("W107", str(error), cap.loc()) from None

    def state(expr: Expr) -> str:
        texts = []
        for frame, place, exceptions in zip(frames, places, handled, strict=True):
            values = flat_state(frame, *place, exceptions)
            parts = ["None" if v is None else expr(v) for v in values]
            texts.append(f"({''.join(p + ', ' for p in parts)})")
        texts += [expr(gen) for _, gen in driven]
        given = f"{expr(handed.value)}, " if handed is not None else ""
        return f"({given}{''.join(t + ', ' for t in texts)})"

    how = handed.how if handed is not None else ""
    flat = [flat_state(f, *p, h) for f, p, h in zip(frames, places, handled, strict=True)]
    counted = [_counted(p[0], p[1], f) for f, p in zip(flat, places, strict=True)]
    return Rest(Resume(tuple(left), how, cap.by_data, tuple(_varying(flat, counted)),
                       tuple(i for i, _ in driven)), state)  # fmt: skip


def _loops_over(frame: VFrame, inner: VFrame | None) -> bool:
    """Whether a frame runs the generator whose frame is the next one in a `for`."""
    driven = inner is not None and inner.driven is not None
    return driven and frame.code.instrs[frame.ip - 1].op == "FOR_ITER"


def delegates_at(frame: VFrame) -> int | None:
    """The SEND that a frame suspended in `yield from` goes back to."""
    instrs = frame.code.instrs
    after = instrs[frame.ip] if frame.ip < len(instrs) else None
    if instrs[frame.ip - 1].op != "YIELD_VALUE" or after is None or after.op != "JUMP":
        return None
    target = after.target
    return target if target is not None and instrs[target].op == "SEND" else None


def has_open_block(gen: GeneratorValue) -> bool:
    """Whether a suspended generator, or one that it delegates to, has code to run when it is
    closed."""
    frame = gen.frame
    if delegates_at(frame) is not None and not gen.finished:
        inner = frame.stack[-1]
        if isinstance(inner, GeneratorValue) and has_open_block(inner):
            return True
    row = frame.code.handler(frame.ip - 1)
    if gen.finished or row is None:
        return False
    return bool(frame.code.instrs[row.target].op != "STOPITERATION_ERROR")


SUSPENDED: dict[type, str] = {
    types.GeneratorType: "generator", types.CoroutineType: "coroutine",
    types.AsyncGeneratorType: "async generator",
}  # fmt: skip


def kind_of(flags: int) -> type:
    """What a call of a generator function with these flags gives."""
    if flags & inspect.CO_ASYNC_GENERATOR:
        return types.AsyncGeneratorType
    return types.CoroutineType if flags & inspect.CO_COROUTINE else types.GeneratorType


def check_end(kind: type, exc: Value) -> None:
    """Errors: Raised(RuntimeError) for what must not leave a generator of a kind (PEP 479)."""
    ends = (StopIteration, StopAsyncIteration)[: 1 + (kind is types.AsyncGeneratorType)]
    name = next((e.__name__ for e in ends if issubclass(exc.cls(), e)), None)
    if name is not None:
        raise stop_inside(exc, f"{SUSPENDED[kind]} raised {name}")


def to_close(cap: Capture) -> Iterator[GeneratorValue]:
    """Generators of the capture that have code to run when they are closed: at the latest when the
    frame ends, even if nothing refers to them."""
    for made in cap.kept:
        if isinstance(made, GeneratorValue) and not made.running and has_open_block(made):
            yield made


def _place_of(frame: VFrame, at: int, waits: bool) -> tuple[Code, int]:
    """The function of a frame, and the index there of its instruction `at`.

    Errors: Unassemblable.
    """
    found = original(frame.code, at)
    if found is None or (not waits and sets_up(frame.code, at)):
        raise Unassemblable("the rest of a frame is only being set up")
    return found


def _left(frame: VFrame, code: Code, index: int, waits: bool) -> Suspended:
    """One frame at an instruction of its function. Errors: Unassemblable."""
    point = point_in(frame, code, index, waits)
    if waits:
        wait_piece(code, point)
        rejoin_code(code, point)
    else:
        step_piece(code, point)
    return Suspended(code.raw, index, point.unbound, point.holes, frame.globals)


def point_in(frame: VFrame, code: Code, index: int, waits: bool) -> Point:
    """Where a frame is that stands before an instruction of its function, or waits in it.

    Errors: Unassemblable if its state is not what the code says.
    """
    looked = looked_at(code, index)
    cells = cell_names(code)
    unbound = frozenset(
        n for n in code.varnames if n in looked and n not in cells and n not in frame.locals
    )
    holes = frozenset(i for i, v in enumerate(frame.stack) if v is UNBOUND)
    depth = depth_at(code, index + waits) - waits
    if depth != len(frame.stack) or any(not isinstance(frame.cells.get(n), CellValue)
                                        for n in cells if n in looked):  # fmt: skip
        raise Unassemblable(f"the state of {code.qualname} is another one than its code says")
    return Point(index, unbound, holes)


def _handled(cap: Capture, places: list[tuple[Code, int]],
             waiting: list[bool]) -> list[dict[int, Value]]:  # fmt: skip
    """For each frame: slot of the stack -> the exception that is handled since it was pushed.

    Errors: Stuck if such an exception was raised in the capture: its traceback is not there.
    """
    found: list[dict[int, Value]] = []
    left = list(cap.handled)
    for i, (waits, (code, index)) in enumerate(zip(waiting, places, strict=True)):
        place = layout(code).places[index + waits]
        if place is None or len(place.handled) > len(left):
            raise Unassemblable("it is not known which exceptions are handled here")
        if (waits or i < len(places) - 1) and place.handled:  # the step runs outside of them
            raise Unassemblable("a call in an exception handler")
        mine, left = left[: len(place.handled)], left[len(place.handled) :]
        found.append(dict(zip(place.handled, mine, strict=True)))
        for exc in mine:
            if exc.source is None:
                raise Stuck("W107", "an exception raised in the frame is being handled", cap.loc(),
                            cap.birth(exc))  # fmt: skip
    if left:
        raise Unassemblable("it is not known which exceptions are handled here")
    return found


def flat_state(frame: VFrame, code: Code, index: int,
               handled: dict[int, Value]) -> list[Any]:  # fmt: skip
    """The flat state, in the order of `frame.resume`; None for what nobody looks at."""
    looked = looked_at(code, index)
    values: list[Any] = [
        frame.locals.get(n) if n in looked and n not in code.cellvars else None
        for n in code.varnames
    ]
    values += [None if v is UNBOUND else handled.get(i, v) for i, v in enumerate(frame.stack)]
    values += [frame.cells[n] if n in looked else None for n in cell_names(code)]
    return values


def _counted(code: Code, index: int, state: list[Any]) -> set[int]:
    """Positions of the numbers in a flat state that a loop around the instruction sets."""
    ends = [(i.target, j) for j, i in enumerate(code.instrs)
            if i.target is not None and i.target <= index <= j]  # fmt: skip
    stored = {i.arg for first, last in ends for i in code.instrs[first:last]
              if i.op == "STORE_FAST"}  # fmt: skip
    return {k for k, name in enumerate(code.varnames)
            if name in stored and type(state[k]) is Const and type(state[k].obj) in (int, float)}


def _varying(states: list[list[Any]],
             counted: list[set[int]]) -> Iterator[tuple[int, int, str, int]]:  # fmt: skip
    """What varies of these states, as `Resume.varying` says it."""
    for frame, state in enumerate(states):
        for i, value in enumerate(state):
            if is_varying(value) or i in counted[frame]:
                yield frame, i, "number", 0
            if not isinstance(value, TensorValue) or value.fake.layout != torch.strided:
                continue
            for kind, numbers in (("size", value.fake.shape), ("stride", value.fake.stride())):
                yield from ((frame, i, kind, d) for d, n in enumerate(numbers)
                            if is_number(plain(n)))  # fmt: skip
