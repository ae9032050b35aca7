"""str(), repr() and format() of abstract values."""

from __future__ import annotations

import types

from torchweld.capture.ops import user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
)


def format_value(cap: Capture, x: Value, conversion: str | None, spec: str,
                 cont: Cont | None = None) -> None:  # fmt: skip
    """f"{x!conversion:spec}"."""
    special = {"r": "__repr__", "s": "__str__", "a": "__repr__"}.get(conversion or "", "__format__")
    hook = user_method(cap, x, special)
    if hook is None and special != "__repr__" and isinstance(x, InstanceValue):
        hook = user_method(cap, x, "__str__") or user_method(cap, x, "__repr__")
    if hook is not None:
        args = [x, Const(spec)] if hook.__name__ == "__format__" else [x]
        cap.call(Const(hook), args, {}, cont)
        return
    cap.deliver(Const(_text(cap, x, conversion, spec)), cont)


def _text(cap: Capture, x: Value, conversion: str | None, spec: str) -> str:
    if isinstance(x, TensorValue):
        raise refuse("W102", "a Tensor is formatted as text", cap.loc())
    if isinstance(x, InstanceValue) and issubclass(x.klass, BaseException):
        args = x.attrs.get("args")
        real = constant(args) if isinstance(args, TupleValue | Const) else ()
        text = str(x.klass(*real)) if conversion != "r" else repr(x.klass(*real))
        return format(text, spec)
    if isinstance(x, Const) and isinstance(x.obj, types.FunctionType):
        raise refuse("W107", "the address of a function as text", cap.loc())
    try:
        real = constant(cap.unwrap(x))
    except NotConstant:
        raise refuse("W107", f"text of {x.cls().__name__}", cap.loc()) from None
    convert = {"r": repr, "s": str, "a": ascii}.get(conversion or "")
    try:
        return format(convert(real) if convert else real, spec)
    except Exception as error:
        raise raised(type(error), *error.args) from None
