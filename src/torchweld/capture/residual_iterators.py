"""How residual programs make iterators of Python's again that polyfills stand for."""

from __future__ import annotations

import itertools
import types
from typing import Any

from torchweld.base.errors import GraphBreak
from torchweld.capture import polyfills
from torchweld.capture.generator_frames import suspended
from torchweld.capture.numbers import iterable_text
from torchweld.capture.session import Capture
from torchweld.capture.state import Stuck, VFrame, refuse
from torchweld.capture.values.base import Const, GeneratorValue, TupleValue, Value
from torchweld.frame.assemble import Unassemblable
from torchweld.frame.waiting import WaitingGenerator


def stuck(cap: Capture, x: Value) -> GraphBreak:
    """Why a value cannot be made again; the capture may stop before it is made instead."""
    why, born = f"a {x.cls().__name__} leaves the frame", cap.birth(x)
    return Stuck("W107", why, cap.loc(), born) if born else refuse("W107", why, cap.loc())


def generator(r: Any, x: GeneratorValue) -> str:
    """One that waits, or stands for an iterator of Python's."""
    frame = x.frame
    make = _GENERATORS.get(frame.code.raw)
    if make is None or frame.code.filename != polyfills.__file__:
        text = f"{r.bind_const(WaitingGenerator)}({waiting(r, x)})"
    elif x.finished:
        text = f"{r.bind_const(iter)}(())"
    else:
        text = make(r, frame, started=bool(frame.stack))
    name: str = r.assign(text)
    return name


def waiting(r: Any, x: GeneratorValue) -> str:
    """Where a generator waits and its state, as arguments. Errors: Stuck if it cannot wait."""
    if x.finished or x.running:  # one that runs is told where it stands behind the break
        return "None, ()"
    try:
        place, state = suspended(x)
    except Unassemblable:
        raise stuck(r.cap, x) from None
    values = "".join(f"{'None' if v is None else r.expr(v)}, " for v in state)
    return f"{r.bind_const(place)}, ({values})"


def _enumerate(r: Any, frame: VFrame, started: bool) -> str:
    kind = r.bind_const(enumerate)
    if not started:
        given = iterable_text(r, frame.locals["iterable"])
        return f"{kind}({given}, {r.expr(frame.locals['start'])})"
    count = frame.locals["n"]
    assert isinstance(count, Const)
    return f"{kind}({r.expr(frame.stack[0])}, {r.const(Const(count.obj + 1))})"  # type: ignore[operator]


def _zip(r: Any, frame: VFrame, started: bool) -> str:
    strict = frame.locals["strict"]
    flag = ", strict=True" if isinstance(strict, Const) and strict.obj else ""
    its = frame.locals["iterators" if "iterators" in frame.locals else "iterables"]
    if not started and isinstance(its, TupleValue):
        given = ", ".join(iterable_text(r, r.cap.force(x)) for x in its.items)
        return f"{r.bind_const(zip)}({given}{flag})"
    return f"{r.bind_const(zip)}(*{r.expr(its)}{flag})"


def _count(r: Any, frame: VFrame, started: bool) -> str:
    step = frame.locals["step"]
    at = frame.locals["n" if "n" in frame.locals else "start"]
    name: str = r.assign(f"{r.bind_const(itertools.count)}({r.expr(at)}, {r.expr(step)})")
    if "n" in frame.locals:
        r.lines.append(f"next({name})")
    return name


def _map(r: Any, frame: VFrame, started: bool) -> str:
    its = frame.locals["iterables"]
    assert isinstance(its, TupleValue)
    if started and len(its.items) > 1:
        raise stuck(r.cap, GeneratorValue(frame))
    given = r.expr(frame.stack[0]) if started else f"*{r.expr(its)}"
    return f"{r.bind_const(map)}({r.expr(frame.locals['fn'])}, {given})"


def _filter(r: Any, frame: VFrame, started: bool) -> str:
    given = r.expr(frame.stack[0] if started else frame.locals["iterable"])
    return f"{r.bind_const(filter)}({r.expr(frame.locals['fn'])}, {given})"


_GENERATORS: dict[types.CodeType, Any] = {
    polyfills.enumerate_.__code__: _enumerate, polyfills.zip_.__code__: _zip,
    polyfills.count_.__code__: _count, polyfills.map_.__code__: _map,
    polyfills.filter_.__code__: _filter,
}  # fmt: skip
