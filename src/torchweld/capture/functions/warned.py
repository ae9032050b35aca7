"""warnings: filters, and what is warned of while it is recorded, are worked out in the capture.

What is shown is an effect after the graph, under the filters that the frame has set by then. What
is recorded, or raised by a filter, the frame sees: then nothing is done for real.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchweld.capture.functions.effects import message, perform
from torchweld.capture.instances import instance_get
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, raised, refuse
from torchweld.capture.strings import format_value
from torchweld.capture.suspend import stops_of
from torchweld.capture.values.base import (
    NONE,
    TRUE,
    BoundValue,
    Const,
    InstanceValue,
    ListValue,
    NotConstant,
    Value,
    constant,
)

Args = list[Value]
Kwargs = dict[str, Value]
# action, pattern of the text, class, pattern of the module, line
Filter = tuple[str, Any, type, Any, int]


@dataclass(slots=True)
class Warned:
    """What the frame knows of the filters.

    filters: those in force, of which the frame has put the first `own` there, and all if it is -1.
    sink: the list that records; None if what is warned of is shown. shown: what was recorded
    since the filters were changed, by module and place. scopes: the blocks that are open, with
    filters, own and sink before each.
    """

    filters: list[Filter]
    own: int = 0
    sink: ListValue | None = None
    shown: set[object] = field(default_factory=set)
    scopes: list[tuple[InstanceValue, list[Filter], int, ListValue | None]] = field(
        default_factory=list)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where a warning comes from."""

    file: str
    line: int
    module: str
    names: Value


def filters_now() -> tuple[Filter, ...]:
    """The filters in force."""
    return tuple(warnings.filters)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Raises:
    """Answers whether the filters make an exception of a warning."""

    text: str | None
    category: type
    module: str
    line: int

    def __call__(self) -> bool:
        found = _first(filters_now(), self.text, self.category, self.module, self.line)
        return found is not None and filters_now()[found][0] == "error"


def _known(cap: Capture) -> Warned:
    if cap.warned is None:
        cap.warned = Warned(list(filters_now()))
    found: Warned = cap.warned
    return found


def _first(filters: Any, text: str | None, category: type, module: str, line: int) -> int | None:
    """The place of the filter that decides. text: None for one that no pattern can be asked about.

    Errors: NotConstant if such a pattern would decide.
    """
    for i, (_, pattern, kind, where, at) in enumerate(filters):
        if not issubclass(category, kind) or at not in (0, line) or not _fits(where, module):
            continue
        if text is None and pattern is not None:
            raise NotConstant
        if _fits(pattern, text or ""):
            return i
    return None


def _fits(pattern: Any, text: str) -> bool:
    if pattern is None or isinstance(pattern, str):
        return pattern is None or pattern == text
    return bool(pattern.match(text))


# ------------------------------------------------------------------------ what is warned of
def warn(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A warning of the line that eager would name."""
    given = dict(zip(("message", "category", "stacklevel"), args, strict=False)) | kwargs
    level = given.pop("stacklevel", Const(1))
    what, category = given.pop("message"), given.pop("category", NONE)
    if given or type(level) is not Const or not isinstance(level.obj, int):
        raise refuse("W106", "a warning with a source or prefixes", cap.loc())
    at = max(level.obj, 1)
    place = _place(cap, at)
    kind = _category(what, category)
    if not isinstance(kind, type) or not issubclass(kind, Warning):
        raise raised(TypeError, f"category must be a Warning subclass, not '{_name_of(kind)}'")
    known, told = _known(cap), [message(cap, what), category]

    def decide(text: Value) -> None:
        plain = text.obj if type(text) is Const and isinstance(text.obj, str) else None
        action = _action(cap, known, plain, kind, place)
        if action == "error":
            _made(cap, what, kind, _raise)
        elif known.sink is not None:
            assert place is not None
            _record(cap, known, action, (plain, kind, place), what, cont)
        else:
            _show(cap, told, place, at)
            cap.deliver(NONE, cont)

    if _is_recorded_outside(cap):
        raise refuse("W106", "warnings that are recorded", cap.loc())
    if known.sink is not None and place is None:
        raise refuse("W106", "a recorded warning of a line outside of the frame", cap.loc())
    format_value(cap, what, "s", "", decide)


def _category(what: Value, category: Value) -> Any:
    if isinstance(what, InstanceValue) and issubclass(what.klass, Warning):
        return what.klass
    kind = category.obj if isinstance(category, Const) else category
    return UserWarning if kind is None else kind


def _name_of(x: Any) -> str:
    return str(getattr(type(x), "__name__", x))


def _place(cap: Capture, level: int) -> Place | None:
    """The line of the frame that is so far outside, None if it is none of the captured ones."""
    if level > len(cap.frames):
        return None
    frame = cap.frames[-level]
    names = frame.globals
    module = str(names.get("__name__") or "<string>")
    return Place(frame.code.filename, frame.loc().line, module,
                 Const(names, frame.globals_source))  # fmt: skip


def _action(cap: Capture, known: Warned, text: str | None, kind: type,
            place: Place | None) -> str:  # fmt: skip
    """What the filters say. Where filters from outside say it, that is guarded as far as the frame
    sees the difference. Errors: GraphBreak."""
    module, line = (place.module, place.line) if place else ("", -1)
    try:
        if place is None:  # filters that ask where it is cannot be told apart
            _need_anywhere(known.filters, kind)
        at = _first(known.filters, text, kind, module, line)
    except NotConstant:
        why = "a filter of warnings that looks at what is known only later"
        if known.sink is None and not any(f[0] == "error" for f in known.filters):
            return "default"
        raise refuse("W106", why, cap.loc()) from None
    action = str(known.filters[at][0]) if at is not None else "default"
    if known.own != -1 and (at is None or at >= known.own):
        cap.unguarded += 1
        if known.sink is not None:
            cap.guard("state", None, (filters_now, filters_now()))
        elif place is not None:
            cap.guard("state", None, (Raises(text, kind, module, line), action == "error"))
    return action


def _need_anywhere(filters: list[Filter], kind: type) -> None:
    """Errors: NotConstant if a filter asks where a warning of this class comes from."""
    for _, _, category, where, line in filters:
        if issubclass(kind, category) and (where is not None or line):
            raise NotConstant


def _made(cap: Capture, what: Value, kind: type, cont: Cont) -> None:
    """The warning as an exception."""
    if isinstance(what, InstanceValue) and issubclass(what.klass, Warning):
        cont(what)
    else:
        cap.call(Const(kind), [what], {}, cont)


def _raise(error: Value) -> None:
    raise Raised(error)


def _record(cap: Capture, known: Warned, action: str, about: tuple[str | None, type, Place],
            what: Value, cont: Cont | None) -> None:  # fmt: skip
    """Put it in the list, if the filters let it through."""
    text, kind, place = about
    if action in ("once", "module"):
        raise refuse("W106", f"a recorded warning under a filter that says {action!r}", cap.loc())
    key = (text, kind, place.module, place.line)
    if action == "ignore" or (action != "always" and key in known.shown):
        cap.deliver(NONE, cont)
        return
    if action != "always":
        if text is None:
            raise refuse("W106", "a recorded warning whose text is known only later", cap.loc())
        known.shown.add(key)
    sink = known.sink
    assert sink is not None

    def record(error: Value) -> None:
        given = [error, Const(kind), Const(place.file), Const(place.line)]
        cap.call(Const(warnings.WarningMessage), given, {}, put)

    def put(shown: Value) -> None:
        sink.items.append(shown)
        cap.mark(sink)
        cap.deliver(NONE, cont)

    _made(cap, what, kind, record)


def _show(cap: Capture, told: Args, place: Place | None, level: int) -> None:
    if place is None:
        perform(cap, warn_outside, [*told, Const(level - len(cap.frames))], {})
    else:
        perform(cap, warn_inside, [*told, Const(place.file), Const(place.line), place.names], {})


def warn_outside(what: Any, category: Any, level: int) -> None:
    """Warn of a line that far outside of the compiled function."""
    warnings.warn(what, category, stacklevel=level + 2)


def warn_inside(what: Any, category: Any, filename: str, line: int,
                names: dict[str, Any]) -> None:  # fmt: skip
    """Warn of a line; names: the globals of its module."""
    kind = type(what) if isinstance(what, Warning) else category or UserWarning
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__") or "<string>"
    warnings.warn_explicit(what, kind, filename, line, module, registry, names)


# ---------------------------------------------------------------------------------- filters
def change(fn: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """simplefilter, filterwarnings or resetwarnings."""
    known = _known(cap)
    try:
        given = [constant(a) for a in args], {k: constant(v) for k, v in kwargs.items()}
    except NotConstant:
        raise refuse("W106", "a filter of warnings that is not constant", cap.loc()) from None
    try:
        _FILTERS[fn](known, *given[0], **given[1])
    except (TypeError, ValueError, re.error):  # which Python says in its own words
        raise refuse("W106", "what is no filter of warnings", cap.loc()) from None
    known.shown.clear()
    if known.sink is None:
        perform(cap, fn, args, kwargs)
    cap.deliver(NONE, cont)


def _simple(known: Warned, action: str, category: Any = Warning, lineno: int = 0,
            append: bool = False) -> None:  # fmt: skip
    _add(known, (action, None, category, None, lineno), append)


def _full(known: Warned, action: str, message: str = "", category: Any = Warning,
          module: str = "", lineno: int = 0, append: bool = False) -> None:  # fmt: skip
    text = re.compile(message, re.I) if message else None
    where = re.compile(module) if module else None
    _add(known, (action, text, category, where, lineno), append)


def _add(known: Warned, item: Filter, append: bool) -> None:
    """As Python does it: a filter is there once. Errors: ValueError for what is no filter."""
    filters, (action, _, category, _, line) = known.filters, item
    if action not in _ACTIONS or not isinstance(category, type) or not isinstance(line, int):
        raise ValueError
    if append:
        if item not in filters:
            filters.append(item)
            known.own = -1 if known.own in (-1, len(filters) - 1) else known.own
        return
    if item in filters:
        known.own -= filters.index(item) < known.own
        filters.remove(item)
    filters.insert(0, item)
    known.own += known.own != -1


def _reset(known: Warned) -> None:
    known.filters.clear()
    known.own = -1


_ACTIONS = ("error", "ignore", "always", "default", "module", "once")
_FILTERS: dict[Any, Any] = {
    warnings.simplefilter: _simple, warnings.filterwarnings: _full, warnings.resetwarnings: _reset,
}  # fmt: skip


# ----------------------------------------------------------------------------------- blocks
def enter(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Filters are put back where the block ends. A list that records is the frame's own."""
    (scope,) = args
    assert isinstance(scope, InstanceValue)
    records, module = instance_get(cap, scope, "_record"), instance_get(cap, scope, "_module")
    entered, known = instance_get(cap, scope, "_entered"), _known(cap)
    plain = isinstance(records, Const) and isinstance(module, Const) and isinstance(entered, Const)
    if not plain or module.obj is not warnings or entered.obj:  # type: ignore[union-attr]
        raise refuse("W106", "filters of warnings that are set in another way", cap.loc())
    recording = bool(records.obj)  # type: ignore[union-attr]
    if scope.source is not None and (recording or known.sink is not None):
        raise refuse("W106", "warnings that are recorded", cap.loc())
    first = instance_get(cap, scope, "_filter")
    if known.sink is None and not recording:
        perform(cap, warnings.catch_warnings.__enter__, [scope], {})
    else:
        scope.attrs["_entered"] = TRUE
    known.scopes.append((scope, list(known.filters), known.own, known.sink))
    known.shown.clear()
    made = None
    if recording:
        made = known.sink = ListValue([])
        cap.note_birth(made, stops_of(cap))
        cap.entered.append((made, "warnings that are recorded"))
        cap.builder.listening = lambda: _heard(cap)
    if first is not None and not (isinstance(first, Const) and first.obj is None):
        _simple(known, *constant(cap.unwrap(first)))
    cap.deliver(made or NONE, cont)


def leave(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    scope, known = args[0], _known(cap)
    if not known.scopes or known.scopes[-1][0] is not scope:
        if known.sink is not None:
            raise refuse("W106", "warnings that are recorded", cap.loc())
        perform(cap, warnings.catch_warnings.__exit__, [scope], {})
        cap.deliver(NONE, cont)
        return
    sink = known.sink
    _, known.filters, known.own, known.sink = known.scopes.pop()
    known.shown.clear()
    if sink is not known.sink:
        cap.entered.pop()
    if sink is None:
        perform(cap, warnings.catch_warnings.__exit__, [scope], {})
    elif known.sink is None:
        perform(cap, forget_shown, [], {})
        cap.builder.listening = contextlib.nullcontext
    cap.deliver(NONE, cont)


def forget_shown() -> None:
    """What was shown once is shown again, as after each block that sets filters."""
    with warnings.catch_warnings():
        pass


@contextlib.contextmanager
def _heard(cap: Capture) -> Iterator[None]:
    """Around an operator, which must not warn: it would do so after the block.

    Torch is asked to warn as if it had not done so before, so that it still can.
    """
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(always)
    if found:
        raise refuse("W106", "an operator that warns while warnings are recorded", cap.loc())


def _is_recorded_outside(cap: Capture) -> bool:
    """Whether a block that was entered before the capture records what is warned of."""
    return any(_is_recorder(x) for f in cap.frames for x in f.stack)


def _is_recorder(x: Value) -> bool:
    """Whether a value is the end of a block from outside that records warnings."""
    scope = x.self_ if isinstance(x, BoundValue) else None
    return isinstance(scope, InstanceValue) and scope.source is not None and (
        issubclass(scope.klass, warnings.catch_warnings)
        and bool(getattr(scope.real, "_record", False)))  # fmt: skip
