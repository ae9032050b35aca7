"""NumPy's element-wise functions as torch's, in the dtypes that NumPy computes in.

NumPy itself says which dtypes those are (`resolve_dtypes`); operands are cast to them, so that
torch has no promotion left to do. Values: arithmetic, comparisons and rounding give equal bits;
the functions of mathematical libraries (exp, sin, ...) differ by the roundings of two libraries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchweld.capture.arrays.dtypes import TORCH, kind_of
from torchweld.capture.arrays.record import (
    cast,
    dtype_arg,
    dtype_of,
    made,
    operand,
    record,
    scalar_of,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import CallHandler
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
)

Args = list[Value]
Kwargs = dict[str, Value]
Write = Callable[..., TensorValue]


@dataclass(frozen=True, slots=True)
class Row:
    """write(cap, *tensors) records it. kinds: of the dtypes that it is computed in (`kind_of`).

    natural: kinds for which the second operand must be a number that is positive, or at least 0;
    of floats one that is neither 0 nor so small that torch may take it for 0.
    """

    write: Write
    kinds: str
    natural: str = ""


def _plain(fn: Any) -> Write:
    return lambda cap, *xs: record(cap, fn, *xs)


def _sign(cap: Capture, x: TensorValue) -> TensorValue:
    """NumPy's sign of NaN is NaN."""
    found = record(cap, torch.sign, x)
    if not x.fake.is_floating_point():
        return found
    return record(cap, torch.where, record(cap, torch.isnan, x), x, found)


def _remainder(cap: Capture, a: TensorValue, b: TensorValue) -> TensorValue:
    """NumPy gives a zero the sign of the divisor."""
    found = record(cap, torch.remainder, a, b)
    if not a.fake.is_floating_point():
        return found
    zero = record(cap, torch.copysign, record(cap, torch.zeros_like, found), b)
    return record(cap, torch.where, record(cap, torch.eq, found, 0), zero, found)


def _same(cap: Capture, x: TensorValue) -> TensorValue:
    return record(cap, "clone", x)


def _scaled(factor: float) -> Write:
    return lambda cap, x: record(cap, torch.mul, x, factor)


_REAL = "fe"
_NUMBERS = "iufec"
UFUNCS: dict[Any, Row] = {
    np.add: Row(_plain(torch.add), "b" + _NUMBERS),
    np.subtract: Row(_plain(torch.sub), _NUMBERS),
    np.multiply: Row(_plain(torch.mul), "b" + _NUMBERS),
    np.divide: Row(_plain(torch.div), _REAL),
    np.floor_divide: Row(_plain(torch.floor_divide), "iuf", "iu"),
    np.remainder: Row(_remainder, "iuf", "iuf"),
    np.fmod: Row(_plain(torch.fmod), "iuf", "iuf"),
    np.power: Row(_plain(torch.pow), "iuf", "iu"),
    np.float_power: Row(_plain(torch.pow), "f"),
    np.negative: Row(_plain(torch.neg), _NUMBERS),
    np.positive: Row(_same, _NUMBERS),
    np.absolute: Row(_plain(torch.abs), "ufei"),
    np.fabs: Row(_plain(torch.abs), _REAL),
    np.square: Row(_plain(torch.square), _NUMBERS),
    np.reciprocal: Row(_plain(torch.reciprocal), "f"),
    np.sign: Row(_sign, "iufe"),
    np.maximum: Row(_plain(torch.maximum), "biufe"),
    np.minimum: Row(_plain(torch.minimum), "biufe"),
    np.fmax: Row(_plain(torch.fmax), "iuf"),
    np.fmin: Row(_plain(torch.fmin), "iuf"),
    np.conjugate: Row(_plain(torch.conj_physical), "c"),
    np.deg2rad: Row(_scaled(np.pi / 180), "f"), np.radians: Row(_scaled(np.pi / 180), "f"),
    np.rad2deg: Row(_scaled(180 / np.pi), "f"), np.degrees: Row(_scaled(180 / np.pi), "f"),
    np.logical_and: Row(_plain(torch.logical_and), "b" + _NUMBERS),
    np.logical_or: Row(_plain(torch.logical_or), "b" + _NUMBERS),
    np.logical_xor: Row(_plain(torch.logical_xor), "b" + _NUMBERS),
    np.logical_not: Row(_plain(torch.logical_not), "b" + _NUMBERS),
    np.bitwise_and: Row(_plain(torch.bitwise_and), "biu"),
    np.bitwise_or: Row(_plain(torch.bitwise_or), "biu"),
    np.bitwise_xor: Row(_plain(torch.bitwise_xor), "biu"),
    np.invert: Row(_plain(torch.bitwise_not), "biu"),
    np.matmul: Row(_plain(torch.matmul), "iuf"),
}  # fmt: skip
for _names, _kinds in (
    ("sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan tanh "
     "arcsinh arccosh arctanh", _REAL),
    ("floor ceil trunc", "iufe"), ("isnan isinf isfinite", "iufec"), ("signbit", _REAL),
    ("equal not_equal", "b" + _NUMBERS), ("less less_equal greater greater_equal", "biufe"),
    ("arctan2 hypot logaddexp logaddexp2 copysign", "f"),
):  # fmt: skip
    for _name in _names.split():
        _fn = {"equal": torch.eq, "not_equal": torch.ne}.get(_name) or getattr(torch, _name)
        UFUNCS[getattr(np, _name)] = Row(_plain(_fn), _kinds)
UFUNCS[np.rint] = Row(_plain(torch.round), _REAL)


def ufunc(fn: Any) -> CallHandler:
    """The handler of calls of a ufunc."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.deliver(apply(cap, fn, args, kwargs), cont)

    return handler


def apply(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """fn(*args, **kwargs) of a ufunc. Errors: GraphBreak for what is not known to be the same."""
    out, dtype = _options(cap, fn, args, kwargs)
    given = [operand(cap, a) for a in args[: fn.nin]]
    if not any(isinstance(x, ArrayValue) for x in given):
        if out is not None:
            raise refuse("W103", f"{fn.__name__} of numbers into an array", cap.loc())
        return _of_numbers(fn, given, dtype)
    row = UFUNCS.get(fn)
    if row is None:
        raise refuse("W103", f"numpy.{fn.__name__}", cap.loc())
    loop = _loop(cap, fn, given, out, dtype)
    if any(kind_of(d) not in row.kinds for d in loop[: fn.nin]):
        raise refuse("W103", f"numpy.{fn.__name__} of {loop[0]}", cap.loc())
    if kind_of(loop[0]) in row.natural:
        _need_natural(cap, fn, given[1], loop[1])
    tensors = _operands(cap, given, loop)
    result = row.write(cap, *tensors)
    if result.fake.dtype is not TORCH[loop[-1]]:
        raise refuse("W103", f"numpy.{fn.__name__} gives {loop[-1]}", cap.loc())
    return made(cap, result) if out is None else _into(cap, out, result)


def _options(cap: Capture, fn: Any, args: Args,
             kwargs: Kwargs) -> tuple[ArrayValue | None, np.dtype[Any] | None]:  # fmt: skip
    """The arguments out and dtype."""
    if kwargs.keys() - {"out", "dtype"} or not fn.nin <= len(args) <= fn.nin + 1 or fn.nout != 1:
        raise refuse("W103", f"numpy.{fn.__name__} of these arguments", cap.loc())
    out: Value | None = args[fn.nin] if len(args) > fn.nin else kwargs.get("out")
    if isinstance(out, TupleValue) and len(out.items) == 1:
        out = cap.force(out.items[0])
    if isinstance(out, Const) and out.obj is None:
        out = None
    if out is not None and (not isinstance(out, ArrayValue) or out.scalar):
        raise refuse("W103", f"numpy.{fn.__name__} into a {out.cls().__name__}", cap.loc())
    return out, dtype_arg(cap, kwargs.get("dtype"))


def _of_numbers(fn: Any, given: list[Any], dtype: np.dtype[Any] | None) -> Value:
    return Const(fn(*(x.obj for x in given), dtype=dtype) if dtype else fn(*(x.obj for x in given)))


def _loop(cap: Capture, fn: Any, given: list[Any], out: ArrayValue | None,
          dtype: np.dtype[Any] | None) -> tuple[np.dtype[Any], ...]:  # fmt: skip
    """The dtypes of operands and result, by NumPy's own rules."""
    kinds = tuple(_dtype_or_class(x) for x in given)
    wanted = dtype_of(out) if out is not None else None
    try:
        if dtype is not None:
            signature = (None,) * fn.nin + (dtype,)
            found = fn.resolve_dtypes((*kinds, wanted), signature=signature)
        else:
            found = fn.resolve_dtypes((*kinds, wanted))
    except TypeError as error:
        raise refuse("W103", f"numpy.{fn.__name__}: {error}", cap.loc()) from None
    return tuple(np.dtype(d) for d in found)


def _dtype_or_class(x: ArrayValue | Const) -> Any:
    if isinstance(x, ArrayValue):
        return dtype_of(x)
    if isinstance(x.obj, np.generic):
        return x.obj.dtype
    return np.dtype(bool) if isinstance(x.obj, bool) else type(x.obj)


def _operands(cap: Capture, given: list[Any], loop: tuple[np.dtype[Any], ...]) -> list[TensorValue]:
    return [
        cast(cap, x if isinstance(x, ArrayValue) else scalar_of(cap, x, d), d)
        for x, d in zip(given, loop, strict=False)
    ]


def _need_natural(cap: Capture, fn: Any, x: ArrayValue | Const, dtype: np.dtype[Any]) -> None:
    """Integers divided by 0, or to a negative power: NumPy warns or raises by value."""
    if dtype.kind == "f":
        if isinstance(x, Const) and abs(dtype.type(x.obj)) >= np.finfo(dtype).tiny:
            return
        raise refuse("W103", f"numpy.{fn.__name__} by what may be 0 or tiny", cap.loc())
    try:
        number = operator.index(constant(x))
    except (NotConstant, TypeError):
        number = -1
    if number < (0 if fn is np.power else 1):
        raise refuse("W103", f"numpy.{fn.__name__} of integers that may be 0 or negative",
                     cap.loc())  # fmt: skip


def _into(cap: Capture, out: ArrayValue, result: TensorValue) -> ArrayValue:
    """Write a result into an array that exists. Operands are read before."""
    if out.tensor.fake.shape != result.fake.shape:
        raise refuse("W103", "a result of another shape than the array for it", cap.loc())
    record(cap, "copy_", out, result)
    return out


def in_place(cap: Capture, fn: Any, a: ArrayValue, b: Value) -> ArrayValue:
    """a <op>= b."""
    loop = _loop(cap, fn, [a, operand(cap, b)], a, None)
    if loop[-1] != dtype_of(a) and not np.can_cast(loop[-1], dtype_of(a), "same_kind"):
        raise refuse("W103", f"{loop[-1]} into {dtype_of(a)}", cap.loc())
    result = apply(cap, fn, [a, b], {})
    assert isinstance(result, ArrayValue)
    return _into(cap, a, cast(cap, result, dtype_of(a)))


__all__ = ["UFUNCS", "apply", "in_place", "ufunc"]
