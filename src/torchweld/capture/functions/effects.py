"""print and logging: performed after the graph, in order, with what they were given."""

from __future__ import annotations

import io
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

from torchweld.capture.functions.owned import print_to, run_owned
from torchweld.capture.late import is_late_text
from torchweld.capture.namespaces import of_the_user, written
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.strings import finished, snapshot, texts_of
from torchweld.capture.suspend import stops_of
from torchweld.capture.tables import FUNCTIONS, METHODS, CallHandler, function
from torchweld.capture.values.base import (
    NONE,
    Const,
    DictValue,
    InstanceValue,
    LateText,
    ListValue,
    NotConstant,
    TupleValue,
    Value,
    boolean,
    constant,
)
from torchweld.capture.values.owned import OwnedValue
from torchweld.capture.wrap import IMMUTABLE, is_empty_cell

Args = list[Value]
Kwargs = dict[str, Value]


def perform(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> None:
    """Call `fn` after the graph; texts that show tensors are finished then."""
    if not any(isinstance(a, LateText) for a in args):
        cap.effects.append((Const(fn), args, kwargs))
        return
    named = DictValue(dict)
    for key, value in kwargs.items():
        named.items[key] = value
        named.keys[key] = Const(key)
    given = TupleValue([TupleValue(list(a.parts)) if isinstance(a, LateText) else a for a in args])
    late = TupleValue([boolean(isinstance(a, LateText)) for a in args])
    cap.effects.append((Const(finish_texts), [Const(fn), given, late, named], {}))


def finish_texts(fn: Callable[..., Any], args: tuple[Any, ...], late: tuple[bool, ...],
                 kwargs: dict[str, Any]) -> None:  # fmt: skip
    """Call `fn` with the late arguments put together as texts."""
    fn(*(finished(a) if is_late else a for a, is_late in zip(args, late, strict=True)), **kwargs)


@function(print)
def print_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    file = kwargs.get("file", NONE)
    if isinstance(file, Const) and file.obj is None:
        other = written(cap, vars(sys), "stdout")
        if isinstance(other, Const) and other.obj is None:
            cap.deliver(NONE, cont)  # nothing is printed
            return
        file = file if other is None else other
    real = file.obj if isinstance(file, Const) else getattr(file, "real", file)
    real = file.twin if isinstance(file, OwnedValue) else real
    if not isinstance(real, io.TextIOBase | None):
        raise refuse("W106", f"print to a {file.cls().__name__}", cap.loc())
    try:
        named = {k: constant(v) for k, v in kwargs.items() if k != "file"}
    except NotConstant:
        raise refuse("W106", "print with a separator that is not constant", cap.loc()) from None
    for key in ("sep", "end"):
        if not isinstance(named.get(key), str | None):
            kind = type(named[key]).__name__
            raise raised(TypeError, f"{key} must be None or a string, not {kind}")
    named_values = DictValue(dict)
    for key, item in named.items():
        named_values.items[key], named_values.keys[key] = Const(item), Const(key)

    def write(texts: list[Value]) -> None:
        if isinstance(file, OwnedValue):
            run_owned(cap, print_to, [file, ListValue(list(texts)), named_values], {}, cont)
            return
        perform(cap, print, texts, {**{k: Const(v) for k, v in named.items()}, "file": file})
        cap.deliver(Const(None), cont)

    texts_of(cap, args, "s", write)


def _to_file(fn: Any, wrote: Callable[[Args], Value]) -> CallHandler:
    """What makes calls of a method of text files effects. wrote: what such a call gives."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        file, *given = args
        if isinstance(file, OwnedValue):
            run_owned(cap, fn, args, kwargs, cont)
            return
        plain = all(type(a) is Const and isinstance(a.obj, str) for a in given)
        late = all(isinstance(a, LateText) or is_late_text(a) for a in given) and (
            cont is None and cap.top.code.instrs[cap.top.ip].op == "POP_TOP")  # fmt: skip
        if file.source is None or kwargs or not (plain or late):
            raise refuse("W106", f"{fn.__name__} of such a text or file", cap.loc())
        perform(cap, fn, args, {})
        cap.deliver(wrote(given) if plain else NONE, cont)

    return handler


def _length(given: Args) -> Value:
    return Const(len(constant(given[0])))


_FILES: tuple[Any, ...] = (io.TextIOWrapper, io.StringIO)
for _kind in _FILES:
    METHODS.add((_kind, "write"), _to_file(_kind.write, _length))
for _kind in (io.TextIOWrapper, io.StringIO.__mro__[2]):
    METHODS.add((_kind, "flush"), _to_file(vars(_kind)["flush"], lambda _: NONE))


def message(cap: Capture, x: Value) -> Value:
    """An argument of a log call, as it is now."""
    if isinstance(x, InstanceValue) and issubclass(x.klass, BaseException):
        return x
    return x if isinstance(x, LateText) else snapshot(cap, x)


def deferred(fn: Any, receiver: bool) -> CallHandler:
    """What makes calls of `fn` effects. receiver: its first argument is the logger."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        given = args[: int(receiver)] + [message(cap, a) for a in args[int(receiver) :]]
        perform(cap, fn, given, {k: message(cap, v) for k, v in kwargs.items()})
        cap.deliver(Const(None), cont)

    return handler


def _changed_by(logger: logging.Logger) -> list[Any]:
    """What code of the user's that sees a log record may change: it runs after the frame."""
    seen: list[Any] = [*logger.filters]
    at: logging.Logger | None = logger
    while at is not None:
        seen += [h.emit for h in at.handlers] + [f for h in at.handlers for f in h.filters]
        at = at.parent if at.propagate else None
    found: list[Any] = []
    for fn in (getattr(x, "filter", x) for x in seen):
        code = getattr(fn, "__code__", None)
        if code is None or not of_the_user(code.co_filename):
            continue
        owner = getattr(fn, "__self__", None)
        cells = [c.cell_contents for c in fn.__closure__ or () if not is_empty_cell(c)]
        known = [fn.__globals__[n] for n in code.co_names if n in fn.__globals__]
        found += [owner, *getattr(owner, "__dict__", {}).values(), *cells, *known]
    return [x for x in found if not isinstance(x, _UNCHANGED)]


_UNCHANGED = (*IMMUTABLE, type, types.ModuleType, types.FunctionType, logging.Logger)


def logged(fn: Any, receiver: bool) -> None:
    """Calls of `fn` are effects, unless code of the user's is called by it."""
    later = deferred(fn, receiver)

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        logger = getattr(args[0], "real", None) if receiver and args else logging.root
        changed = _changed_by(logger) if isinstance(logger, logging.Logger) else []
        if any(id(x) in cap.objects for x in changed):
            raise refuse("W106", "a log record, which changes what the frame looks at", cap.loc())
        if changed:
            cap.kept.append(changed)
            for x in changed:
                cap.later[id(x)] = next(iter(stops_of(cap)), 0)
        later(cap, args, kwargs, cont)

    FUNCTIONS.add(fn, handler)


for _name in ("debug", "info", "warning", "error", "critical", "log", "exception"):
    logged(getattr(logging.Logger, _name), receiver=True)
    logged(getattr(logging, _name), receiver=False)


class _EnabledFor:
    """Answers whether a logger still lets a level through, or still does not."""

    __slots__ = ("answer", "level")

    def __init__(self, level: int, answer: bool) -> None:
        self.level = level
        self.answer = answer

    def __call__(self, logger: logging.Logger) -> bool:
        return logger.isEnabledFor(self.level) is self.answer

    def __hash__(self) -> int:
        return hash((self.level, self.answer))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EnabledFor) and (self.level, self.answer) == (
            other.level, other.answer)  # fmt: skip


@function(logging.getLogger)
def get_logger(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Loggers are made once, and never go away."""
    logger = logging.getLogger(*(constant(a) for a in (*args, *kwargs.values())))
    cap.deliver(cap.wrap(logger, cap.pin(logger)), cont)


@function(logging.Logger.isEnabledFor)
def is_enabled_for(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    logger, level = args
    if not (isinstance(logger, InstanceValue) and isinstance(logger.real, logging.Logger)
            and isinstance(level, Const) and isinstance(level.obj, int)):  # fmt: skip
        raise refuse("W107", "isEnabledFor of a logger made in the frame", cap.loc())
    answer = logger.real.isEnabledFor(level.obj)
    cap.guard("predicate", logger.source, _EnabledFor(level.obj, answer))
    cap.deliver(boolean(answer), cont)
