"""str(), repr() and format() of abstract values.

The text of a tensor is known only after the graph has run: it is a LateText, which may be printed
or logged (see functions/effects.py) but not looked into.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.arrays.record import array_of, record
from torchweld.capture.attrs import mro_lookup
from torchweld.capture.instances import load_all_attrs
from torchweld.capture.late import LateNumber, are_late_texts, is_late_text
from torchweld.capture.numbers import is_graph_number
from torchweld.capture.ops import payload, user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import METHODS
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    DictValue,
    InstanceValue,
    LateText,
    ListValue,
    NotConstant,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.sequences import DequeValue
from torchweld.capture.wrap import complete, need_frozen, set_order

_SPECIAL = {"r": "__repr__", "s": "__str__", "a": "__repr__"}


def format_value(cap: Capture, x: Value, conversion: str | None, spec: str,
                 cont: Cont | None = None) -> None:  # fmt: skip
    """f"{x!conversion:spec}"."""
    hook = user_method(cap, x, _SPECIAL.get(conversion or "", "__format__"))
    if hook is not None and not conversion:
        cap.call(Const(hook), [x, Const(spec)], {}, lambda text: cap.deliver(
            _checked(text, "__format__ must return a str, not"), cont))  # fmt: skip
        return
    if isinstance(x, InstanceValue) and not conversion and (payload(x) is x or not spec):
        if spec and not issubclass(x.klass, BaseException):
            raise raised(TypeError, f"unsupported format string passed to {x.klass.__name__}"
                                    ".__format__")  # fmt: skip
        conversion = "s"
    if hook is None and conversion == "s":
        hook = user_method(cap, x, "__str__") or _repr_hook(cap, x)
    if hook is not None:
        says = f"{hook.__name__} returned non-string (type"
        cap.call(Const(hook), [x], {}, lambda text: format_value(
            cap, _checked(text, says, ")"), None, spec, cont))  # fmt: skip
        return
    _plain_text(cap, x, conversion, spec, cont)


def _checked(text: Value, says: str, end: str = "") -> Value:
    """What a method of the user's gave. Errors: Raised if that is no text."""
    if not issubclass(text.cls(), str):
        raise raised(TypeError, f"{says} {text.cls().__name__}{end}")
    return text


def _repr_hook(cap: Capture, x: Value) -> types.FunctionType | None:
    """__repr__ of the user, when str() would end there."""
    plain = mro_lookup(x.cls(), "__str__") is object.__str__
    return user_method(cap, x, "__repr__") if plain else None


def _plain_text(cap: Capture, x: Value, conversion: str | None, spec: str,
                cont: Cont | None) -> None:  # fmt: skip
    if isinstance(x, LateText) and conversion in (None, "s") and not spec:
        cap.deliver(x, cont)
    elif isinstance(x, LateNumber) and x.drawn:
        cap.deliver(LateText([x, Const(conversion), Const(spec)]), cont)
    elif isinstance(x, LateNumber) and not x.fixed:
        cap.deliver(_late_text(cap, x, conversion, spec), cont)
    elif isinstance(x, TensorValue | ArrayValue):
        cap.deliver(LateText([snapshot(cap, x), Const(conversion), Const(spec)]), cont)
    elif is_graph_number(x):
        cap.deliver(LateText([x, Const(conversion), Const(spec)]), cont)
    elif isinstance(x, InstanceValue) and issubclass(x.klass, BaseException):
        name = "__repr__" if conversion in ("r", "a") else "__str__"
        owner = BaseExceptionGroup if issubclass(x.klass, BaseExceptionGroup) else BaseException
        METHODS[(owner, name)](cap, [x], {}, lambda text: format_value(
            cap, text, None, spec, cont))  # fmt: skip
    else:
        if isinstance(x, InstanceValue) and isinstance(x.payload, Const):
            x = x.payload
        try:
            cap.deliver(Const(_constant_text(cap, x, conversion, spec)), cont)
        except NotConstant:
            named = isinstance(x, InstanceValue) and x.klass is types.SimpleNamespace
            known = named or isinstance(x, ListValue | TupleValue | DictValue)
            if spec or conversion == "a" or not known:
                raise refuse("W107", f"text of {x.cls().__name__}", cap.loc()) from None
            _container_text(cap, x, cont)


_CONVERSIONS: dict[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}


def shown(x: object, conversion: str | None, spec: str) -> str:
    """f"{x!conversion:spec}"."""
    return format(_CONVERSIONS[conversion](x) if conversion else x, spec)


def finished(parts: tuple[Any, ...]) -> str:
    """The text of which these are the parts: objects, conversions and format specs in turn."""
    pieces = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return "".join(shown(*piece) for piece in pieces)


def put_together(*texts: str) -> str:
    """The texts in one."""
    return "".join(texts)


def _late_text(cap: Capture, x: LateNumber, conversion: str | None, spec: str) -> Value:
    """The text of a number from outside that changes."""
    if type(x.now) is str and not spec and conversion in (None, "s"):
        return x
    try:
        return cap.late.text(shown, [x, Const(conversion), Const(spec)])
    except Exception as error:
        raise raised(type(error), *error.args) from None


def _constant_text(cap: Capture, x: Value, conversion: str | None, spec: str) -> str:
    """The text of a constant. Errors: NotConstant, Raised."""
    if isinstance(x, Const) and isinstance(x.obj, types.FunctionType):
        raise refuse("W107", "the address of a function as text", cap.loc())
    need_frozen(cap, x)
    if isinstance(x, SetValue) and x.items:
        ordered = [constant(i) for i in set_order(cap, x)]
        if list(x.kind(ordered)) != ordered:
            raise refuse("W107", "text of a set", cap.loc())
        real: object = x.kind(ordered)
    else:
        real = constant(cap.unwrap(x))
    try:
        return shown(real, conversion, spec)
    except Exception as error:
        raise raised(type(error), *error.args) from None


def _container_text(cap: Capture, x: Value, cont: Cont | None) -> None:
    """repr of a list, tuple or dict, item by item, since an item's text is the user's code."""
    opening, closing = "[", "]"
    items: list[Value] = []
    names: list[str] = []
    if isinstance(x, DequeValue):
        items = list(cap.force_items(x.items))
        opening, closing = "deque([", f"], maxlen={x.maxlen})" if x.maxlen is not None else "])"
    elif isinstance(x, ListValue | TupleValue) and x.cls() in (list, tuple):
        items = list(cap.force_items(x.items))
        if isinstance(x, TupleValue):
            opening, closing = "(", ",)" if len(items) == 1 else ")"
    elif isinstance(x, DictValue) and x.kind in (dict, collections.defaultdict):
        complete(cap, x)
        opening, closing = "{", "}"
        if x.kind is not dict:
            opening, closing = f"defaultdict({_factory(cap, x)}, {{", "})"
        for key, slot in list(x.items.items()):
            items += [x.keys[key], cap.force(slot)]
    elif isinstance(x, InstanceValue) and x.klass is types.SimpleNamespace:
        load_all_attrs(cap, x)
        opening, closing = "namespace(", ")"
        found = {k: v for k, v in x.attrs.items() if v is not None}
        names, items = list(found), list(found.values())
    else:
        raise refuse("W107", f"text of {x.cls().__name__}", cap.loc())

    def joined(texts: list[Value]) -> None:
        parts: list[Value] = [Const(opening)]
        for i, text in enumerate(texts):
            if names:
                parts += [Const(f"{', ' if i else ''}{names[i]}="), text]
                continue
            between = ": " if isinstance(x, DictValue) and i % 2 else ", "
            parts += [Const(between), text] if i else [text]
        cap.deliver(join_text(cap, [*parts, Const(closing)]), cont)

    texts_of(cap, items, "r", joined)


def _factory(cap: Capture, x: DictValue) -> str:
    """The text of what makes the values of a defaultdict. Errors: GraphBreak for a function."""
    made = x.factory.obj if isinstance(x.factory, Const) else x
    if not isinstance(made, type | None):
        raise refuse("W107", "the address of a function as text", cap.loc())
    return repr(made)


def texts_of(cap: Capture, items: list[Value], conversion: str,
             cont: Callable[[list[Value]], None]) -> None:  # fmt: skip
    """The texts of several values, made one after another."""
    out: list[Value] = []

    def step(text: Value | None) -> None:
        if text is not None:
            out.append(text)
        if len(out) == len(items):
            cont(out)
        else:
            format_value(cap, items[len(out)], conversion, "", step)

    step(None)


def join_text(cap: Capture, parts: list[Value]) -> Value:
    """Texts put together; the result is late if one of them is."""
    if are_late_texts(parts):
        return cap.late.text(put_together, parts)
    out: list[Value] = []
    for part in parts:
        if isinstance(part, LateText):
            out += part.parts
        elif is_late_text(part) or (isinstance(part, Const) and isinstance(part.obj, str)):
            out += [part, Const(None), Const("")]
        else:
            raise refuse("W107", f"a {part.cls().__name__} as part of a text", cap.loc())
    if any(not isinstance(p, Const) or is_graph_number(p) or isinstance(p, LateNumber)
           for p in out):  # fmt: skip
        return LateText(out)
    return Const("".join(str(p.obj) for p in out[::3] if isinstance(p, Const)))


def snapshot(cap: Capture, x: Value) -> Value:
    """The value as it is now, for something that looks at it after the graph has run."""
    match x:
        case TensorValue():
            if x.fake.requires_grad or x.kind is not torch.Tensor:
                raise refuse("W102", "text of a Tensor that requires grad or is a Parameter",
                             cap.loc())  # fmt: skip
            return cap.builder.call("call_method", "clone", [x], {}, cap.loc())
        case ArrayValue():
            return array_of(cap, record(cap, "clone", x), x.scalar)
        case TupleValue():
            return TupleValue([snapshot(cap, i) for i in cap.force_items(x.items)], x.kind)
        case ListValue() if x.cls() is list:
            return ListValue([snapshot(cap, i) for i in cap.force_items(x.items)])
        case DictValue() if x.kind is dict:
            complete(cap, x)
            out = DictValue(x.kind)
            for key, slot in list(x.items.items()):
                out.items[key] = snapshot(cap, cap.force(slot))
                out.keys[key] = x.keys[key]
            return out
        case Const():
            return x
    raise refuse("W106", f"a {x.cls().__name__} that is looked at after the graph", cap.loc())
