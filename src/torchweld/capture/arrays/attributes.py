"""Attributes and methods of NumPy arrays and numbers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from torchweld.capture.arrays.functions import BODIES, copied, shape_arg
from torchweld.capture.arrays.record import (
    Args,
    Body,
    Kwargs,
    array_of,
    cast,
    dtype_arg,
    dtype_of,
    no,
    number,
    only,
    operand,
    record,
    scalar_of,
    settled,
)
from torchweld.capture.attrs import MISSING, from_python, mro_lookup
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import FUNCTIONS, GETATTR, CallHandler
from torchweld.capture.values.base import ArrayValue, BoundValue, Const, TupleValue, Value


def array_attr(cap: Capture, x: ArrayValue, name: str, cont: Cont | None) -> None:
    """x.name of an array."""
    fake = x.tensor.fake
    if name in _METADATA:
        cap.deliver(from_python(_METADATA[name](x)), cont)
    elif name == "T":
        axes = tuple(reversed(range(fake.ndim)))
        cap.deliver(array_of(cap, record(cap, "permute", x, axes), x.scalar), cont)
    elif name == "__class__":
        cap.deliver(Const(x.cls()), cont)
    else:
        raw = mro_lookup(x.cls(), name)
        if raw is MISSING:
            raise raised(AttributeError, f"'{_full_name(x)}' object has no attribute '{name}'")
        if not callable(raw):
            raise refuse("W107", f"attribute {name} of an array", cap.loc())
        cap.deliver(BoundValue(Const(raw), x), cont)


def _full_name(x: ArrayValue) -> str:
    return f"numpy.{x.cls().__name__}"


_METADATA: dict[str, Any] = {
    "shape": lambda x: tuple(int(n) for n in x.tensor.fake.shape),
    "ndim": lambda x: x.tensor.fake.ndim,
    "size": lambda x: int(x.tensor.fake.numel()),
    "dtype": dtype_of,
    "itemsize": lambda x: dtype_of(x).itemsize,
    "nbytes": lambda x: int(x.tensor.fake.numel()) * dtype_of(x).itemsize,
}


# ----------------------------------------------------------------------- methods
def _astype(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "dtype", "copy")
    x = _self(given)
    dtype = dtype_arg(cap, given.get("dtype"))
    if dtype is None:
        raise no(cap, "astype without a dtype")
    if dtype == dtype_of(x) and not number(cap, given, "copy", True):
        return x
    if dtype == dtype_of(x):
        return copied(cap, x)
    settled(cap, x)
    return array_of(cap, cast(cap, x, dtype), x.scalar)


def _self(given: Kwargs) -> ArrayValue:
    x = given["a"]
    assert isinstance(x, ArrayValue)
    return x


def _copy(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a")
    return copied(cap, _self(given))


def _flatten(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a")
    x = copied(cap, _self(given))
    return array_of(cap, record(cap, "reshape", x, (-1,)))


def _fill(cap: Capture, given: Kwargs) -> Value:
    x, value = _self(given), operand(cap, given["value"])
    if x.scalar:
        raise no(cap, "fill of a NumPy number")
    known = value if isinstance(value, ArrayValue) else scalar_of(cap, value, dtype_of(x))
    if known.tensor.fake.ndim:
        raise no(cap, "fill with an array")
    record(cap, "copy_", x, cast(cap, known, dtype_of(x)))
    return Const(None)


def _sort_in_place(cap: Capture, given: Kwargs) -> Value:
    x = _self(given)
    found = BODIES[np.sort](cap, given)
    record(cap, "copy_", x, found)
    return Const(None)


def _value_read(cap: Capture, given: Kwargs) -> Value:
    raise refuse("W102", "the value of an array", cap.loc())


def method(body: Body, names: tuple[str, ...]) -> CallHandler:
    """Calls of a method whose arguments have these names."""

    def run(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if not isinstance(args[0], ArrayValue) or len(args) > len(names) + 1:
            raise no(cap, "a method of an array")
        given: Kwargs = dict(zip(("a", *names), args, strict=False))
        cap.deliver(body(cap, {**given, **kwargs}), cont)

    return run


def _spread(name: str, body: Body) -> CallHandler:
    """Calls of a method that takes a tuple, or its items one by one."""

    def run(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        rest = args[1:]
        if not isinstance(args[0], ArrayValue):
            raise no(cap, "a method of an array")
        given: Kwargs = {"a": args[0], **kwargs}
        if len(rest) == 1 and (isinstance(rest[0], TupleValue) or name == "shape"):
            given[name] = rest[0]
        elif rest:
            given[name] = TupleValue(list(rest))
        if name == "shape" and rest:
            given[name] = Const(shape_arg(cap, given[name]))
        cap.deliver(body(cap, given), cont)

    return run


_OF_FUNCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "prod", "mean"), ("axis", "dtype", "out", "keepdims")),
    **dict.fromkeys(("std", "var"), ("axis", "dtype", "out", "ddof", "keepdims")),
    **dict.fromkeys(("max", "min", "any", "all"), ("axis", "out", "keepdims")),
    **dict.fromkeys(("argmax", "argmin"), ("axis", "out")),
    **dict.fromkeys(("cumsum", "cumprod"), ("axis", "dtype", "out")),
    "ravel": ("order",), "swapaxes": ("axis1", "axis2"), "squeeze": ("axis",), "dot": ("b",),
    "repeat": ("repeats", "axis"), "clip": ("min", "max", "out"), "round": ("decimals", "out"),
}  # fmt: skip
_OWN: dict[str, tuple[Body, tuple[str, ...]]] = {
    "astype": (_astype, ("dtype", "order")), "copy": (_copy, ("order",)),
    "flatten": (_flatten, ("order",)), "fill": (_fill, ("value",)),
    "sort": (_sort_in_place, ("axis",)),
    **dict.fromkeys(("item", "tolist", "tobytes", "nonzero"), (_value_read, ("args",))),
}  # fmt: skip


def _register(name: str, made: CallHandler) -> None:
    """A method of arrays, and of numbers where they have it."""
    for owner in (np.ndarray, np.generic):
        raw = vars(owner).get(name)
        if raw is not None and inspect.isroutine(raw):
            FUNCTIONS.add(raw, made)


for _name, _names in _OF_FUNCTIONS.items():
    _register(_name, method(BODIES[getattr(np, _name)], _names))
for _name, (_body, _names) in _OWN.items():
    _register(_name, method(_body, _names))
_register("reshape", _spread("shape", BODIES[np.reshape]))
_register("transpose", _spread("axes", BODIES[np.transpose]))
GETATTR.add(ArrayValue, array_attr)
