"""Methods of str whose arguments may be anything: join, format, %."""

from __future__ import annotations

import re
import string
from typing import Any

import torch

from torchweld.capture.attrs import get_attr
from torchweld.capture.functions.containers import collect
from torchweld.capture.items import get_item, iterable
from torchweld.capture.late import LateNumber
from torchweld.capture.numbers import is_graph_number
from torchweld.capture.ops import payload
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.strings import format_value, join_text
from torchweld.capture.subclasses import base_value
from torchweld.capture.tables import method
from torchweld.capture.values.base import (
    Const,
    LateText,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
    is_constant,
)

Args = list[Value]
Kwargs = dict[str, Value]
_PERCENT = re.compile(
    r"%(?:\((?P<key>[^)]*)\))?(?P<flags>[-+ #0]*)(?P<rest>[\d*.]*)[hlL]?(?P<kind>.)", re.DOTALL
)


def _text(cap: Capture, x: Value) -> str:
    if isinstance(x, Const) and isinstance(x.obj, str):
        return x.obj
    raise refuse("W102", "a method of a text that shows a Tensor", cap.loc())


@method(str, "join")
def str_join(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    between = Const(_text(cap, args[0]))

    def joined(items: list[Value]) -> None:
        for i, item in enumerate(items):
            if not issubclass(item.cls(), str):
                raise raised(TypeError, f"sequence item {i}: expected str instance, "
                                        f"{item.cls().__name__} found")  # fmt: skip
        parts = [p for item in items for p in (between, _plain(item))][1:]
        cap.deliver(join_text(cap, parts), cont)

    if not iterable(cap, args[1]):
        raise raised(TypeError, "can only join an iterable")
    collect(cap, args[1], joined)


@method(str, "__add__")
def str_add(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not issubclass(args[1].cls(), str):
        raise raised(TypeError, f'can only concatenate str (not "{args[1].cls().__name__}") to str')
    cap.deliver(join_text(cap, [_plain(a) for a in args]), cont)


def _plain(x: Value) -> Value:
    """A text without the class that it may have."""
    x = payload(x)
    if isinstance(x, Const) and isinstance(x.obj, str) and type(x.obj) is not str:
        return Const(base_value(x.obj))
    return x


@method(str, "format")
def str_format(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    text = _text(cap, args[0])
    if any(map(_is_open, (*args[1:], *kwargs.values()))):
        _format_parts(cap, text, args[1:], kwargs, cont)
        return
    try:
        named = {k: constant(cap.unwrap(v)) for k, v in kwargs.items()}
        real = [constant(cap.unwrap(a)) for a in args[1:]]
    except NotConstant:
        _format_parts(cap, text, args[1:], kwargs, cont)
        return
    try:
        cap.deliver(Const(text.format(*real, **named)), cont)
    except Exception as error:
        raise raised(type(error), *error.args) from None


def _format_parts(cap: Capture, text: str, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """str.format piece by piece, since an argument's text is the user's code, or late."""
    jobs: list[Any] = []
    numbered = 0
    for literal, field, spec, conversion in string.Formatter().parse(text):
        jobs.append(Const(literal))
        if field is None:
            continue
        first, rest = _split(field)
        if first == "":
            first, numbered = numbered, numbered + 1
        if spec and "{" in spec:
            raise refuse("W107", "a format spec inside a format spec", cap.loc())
        try:
            value = args[first] if isinstance(first, int) else kwargs[first]
        except (IndexError, KeyError):
            raise refuse("W107", "a format without its argument", cap.loc()) from None
        jobs.append((value, rest, conversion, spec or ""))
    _run(cap, jobs, [], cont)


def _split(field: str) -> tuple[Any, list[tuple[bool, Any]]]:
    """"0.a[b]" -> 0, [(attribute, "a"), (item, "b")]."""
    first = re.match(r"[^.\[]*", field)
    assert first is not None
    steps: list[tuple[bool, Any]] = []
    for attr, item in re.findall(r"\.([^.\[]+)|\[([^\]]+)\]", field[first.end() :]):
        steps.append((bool(attr), attr or (int(item) if item.isdigit() else item)))
    name = first.group()
    return int(name) if name.isdigit() else name, steps


def _run(cap: Capture, jobs: list[Any], done: list[Value], cont: Cont | None) -> None:
    """Do the jobs one after another, then join the texts."""
    if not jobs:
        cap.deliver(join_text(cap, done), cont)
        return
    job, rest = jobs[0], jobs[1:]
    if isinstance(job, Value):
        _run(cap, rest, [*done, job], cont)
        return
    value, steps, conversion, spec = job
    if steps:
        is_attr, name = steps[0]

        def onward(found: Value) -> None:
            _run(cap, [(found, steps[1:], conversion, spec), *rest], done, cont)

        if is_attr:
            get_attr(cap, value, name, onward)
        else:
            get_item(cap, value, Const(name), onward)
        return
    format_value(cap, value, conversion, spec, lambda t: _run(cap, rest, [*done, t], cont))


@method(str, "__mod__")
def str_mod(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    text, given = _text(cap, args[0]), cap.unwrap(args[1])
    late = isinstance(args[1], LateText) or _has_graph_number(given)
    if not late and is_constant(given):
        try:
            cap.deliver(Const(text % constant(given)), cont)
        except Exception as error:
            raise raised(type(error), *error.args) from None
        return
    values = list(cap.force_items(args[1].items)) if isinstance(args[1], TupleValue) else [args[1]]
    jobs: list[Any] = []
    at = 0
    for piece in _PERCENT.finditer(text):
        jobs.append(Const(text[at : piece.start()]))
        at = piece.end()
        if piece["kind"] == "%":
            jobs.append(Const("%"))
            continue
        if piece["key"] is not None or "*" in piece["rest"] or not values:
            raise refuse("W107", "% with names or without its argument", cap.loc())
        jobs.append(_percent_job(cap, piece, values.pop(0)))
    if values:
        raise raised(TypeError, "not all arguments converted during string formatting")
    jobs.append(Const(text[at:]))
    _run(cap, jobs, [], cont)


def _has_graph_number(x: Value) -> bool:
    items = x.items if isinstance(x, TupleValue) else [x]
    return any(isinstance(i, Value) and (is_graph_number(i) or _is_open(i)) for i in items)


def _is_open(x: Value) -> bool:
    """Whether a value is a number, or the text of one, that is known when the code runs."""
    return isinstance(x, LateNumber) and not x.fixed


def percent(text: str, x: object) -> str:
    """text % x."""
    return text % (x,)


_NUMBERS = "fFeEgGd"  # which `format` writes like `%`


def _writes_alike(x: torch.Tensor, kind: str) -> bool:
    """Whether a tensor is one number, which is written as one of its class."""
    return x.dim() == 0 and x.is_floating_point() is (kind != "d") and not x.is_complex()


def _percent_job(cap: Capture, piece: re.Match[str], value: Value) -> Any:
    kind, how = piece["kind"], piece["flags"] + piece["rest"]
    if _is_open(value):
        try:
            return cap.late.text(percent, [Const(f"%{how}{kind}"), value])
        except Exception as error:
            raise raised(type(error), *error.args) from None
    if is_graph_number(value) and kind in "fFeEgG" and not piece["flags"].strip("+"):
        return value, [], None, how + kind  # which `format` understands likewise
    if not is_graph_number(value) and is_constant(cap.unwrap(value)):
        try:
            return Const(f"%{how}{kind}" % (constant(value),))
        except Exception as error:
            raise raised(type(error), *error.args) from None
    plain = kind in _NUMBERS and not piece["flags"].strip("+")
    if isinstance(value, TensorValue) and plain and _writes_alike(value.fake, kind):
        return value, [], None, how + kind
    if how or kind not in "sra" or (isinstance(value, TensorValue) and kind == "a"):
        raise refuse("W102", f"%{how}{kind} of a {value.cls().__name__}", cap.loc())
    return value, [], kind, ""

