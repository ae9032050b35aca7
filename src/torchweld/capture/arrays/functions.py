"""NumPy functions that are neither ufuncs nor reductions: shapes, joining, making arrays."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch

from torchweld.capture.arrays.dtypes import TORCH, kind_of
from torchweld.capture.arrays.record import (
    Args,
    Body,
    Kwargs,
    array_of,
    as_array,
    cast,
    dtype_arg,
    dtype_of,
    first,
    handler,
    made,
    no,
    number,
    of_constants,
    only,
    operand,
    record,
    settled,
)
from torchweld.capture.arrays.reductions import REDUCTIONS
from torchweld.capture.arrays.ufuncs import UFUNCS, apply, ufunc
from torchweld.capture.modes import memory
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont
from torchweld.capture.tables import CLASSES, FUNCTIONS, CallHandler, klass
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    ListValue,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
)


# ----------------------------------------------------------------------- shapes
def shape_arg(cap: Capture, x: Value) -> tuple[int, ...]:
    try:
        found = constant(cap.unwrap(x))
    except NotConstant:
        raise no(cap, "a shape that is not constant") from None
    return tuple(int(i) for i in found) if isinstance(found, tuple | list) else (int(found),)


def _reshape(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "shape", "newshape")
    x = first(cap, given)
    settled(cap, x)
    shape = given.get("shape") or given.get("newshape")
    if shape is None:
        raise no(cap, "reshape without a shape")
    return _view(cap, "reshape", x, shape_arg(cap, shape))


def _view(cap: Capture, fn: Any, x: ArrayValue, *args: Any) -> ArrayValue:
    """A view, as another array than `x`."""
    found = record(cap, fn, x, *args)
    return array_of(cap, record(cap, "detach", found) if found is x.tensor else found)


def _ravel(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a")
    x = first(cap, given)
    settled(cap, x)
    return _view(cap, "reshape", x, (-1,))


def _transpose(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "axes")
    x = first(cap, given)
    axes = number(cap, given, "axes") or tuple(reversed(range(x.tensor.fake.ndim)))
    return _view(cap, "permute", x, tuple(int(i) for i in axes))


def _swapaxes(cap: Capture, given: Kwargs) -> Value:
    x = first(cap, given)
    return _view(cap, "transpose", x, number(cap, given, "axis1"), number(cap, given, "axis2"))


def _moveaxis(cap: Capture, given: Kwargs) -> Value:
    x = first(cap, given)
    places = [number(cap, given, n) for n in ("source", "destination")]
    fixed = [tuple(p) if isinstance(p, list | tuple) else int(p) for p in places]
    return _view(cap, "movedim", x, *fixed)


def _squeeze(cap: Capture, given: Kwargs) -> Value:
    x, axis = first(cap, given), number(cap, given, "axis")
    if axis is None:
        return _view(cap, "squeeze", x)
    axes = axis if isinstance(axis, tuple) else (axis,)
    if any(x.tensor.fake.shape[a] != 1 for a in axes):
        raise no(cap, "an axis that is not of size one")
    return _view(cap, "squeeze", x, tuple(int(a) for a in axes))


def _expand_dims(cap: Capture, given: Kwargs) -> Value:
    x, axis = first(cap, given), number(cap, given, "axis")
    if not isinstance(axis, int):
        raise no(cap, "several new axes at once")
    return _view(cap, "unsqueeze", x, axis)


# ----------------------------------------------------------------------- joining
def _parts(cap: Capture, given: Kwargs) -> list[ArrayValue]:
    (parts,) = (given[n] for n in ("arrays", "tup") if n in given)
    if not isinstance(parts, ListValue | TupleValue):
        raise no(cap, "parts that are no list")
    found = [as_array(cap, p) for p in cap.force_items(parts.items)]
    settled(cap, *found)
    return found


def _joined(fn: Any, axis: int | None = 0) -> Body:
    """axis: the default; None if the function takes none."""

    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "arrays", "tup", "axis")
        parts = _parts(cap, given)
        dtype = np.result_type(*(dtype_of(p) for p in parts))
        tensors = [cast(cap, p, dtype) for p in parts]
        if fn is torch.cat and any(t.fake.ndim == 0 for t in tensors):
            raise no(cap, "concatenation of numbers")
        if axis is None:
            return made(cap, record(cap, fn, tensors))
        where = number(cap, given, "axis", axis)
        if where is None:
            raise no(cap, "concatenation without an axis")
        return made(cap, record(cap, fn, tensors, int(where)))

    return body


def _where(cap: Capture, given: Kwargs) -> Value:
    names = list(given)
    if len(names) != 3:
        raise no(cap, "where() that gives places")
    condition, a, b = (operand(cap, given[n]) for n in names)
    known = [x if isinstance(x, ArrayValue) else as_array(cap, x) for x in (condition, a, b)]
    settled(cap, *known)
    kinds: list[Any] = [dtype_of(x) if isinstance(x, ArrayValue) else x.obj for x in (a, b)]
    dtype = np.result_type(*kinds)
    return array_of(cap, record(cap, torch.where, cast(cap, known[0], np.dtype(bool)),
                                *(cast(cap, k, dtype) for k in known[1:])))  # fmt: skip


def _clip(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "a_min", "a_max", "min", "max")
    names = (("a_min", "min", np.maximum), ("a_max", "max", np.minimum))
    limits = [(f, x) for a, b, f in names for x in (given.get(a), given.get(b))
              if x is not None and not (isinstance(x, Const) and x.obj is np._NoValue)
              and not (isinstance(x, Const) and x.obj is None)]
    found: Value = first(cap, given)
    assert isinstance(found, ArrayValue)
    dtype = dtype_of(found)
    for fn, limit in limits:
        found = apply(cap, fn, [found, limit], {})
    if not isinstance(found, ArrayValue) or not limits or dtype_of(found) != dtype:
        raise no(cap, "clip to limits of another dtype")
    return found


def _products(fn: Any) -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "a", "b")
        a, b = as_array(cap, given["a"]), as_array(cap, given["b"])
        dims = (a.tensor.fake.ndim, b.tensor.fake.ndim)
        dtype = np.result_type(dtype_of(a), dtype_of(b))
        if kind_of(dtype) not in "if":
            raise no(cap, f"a product of {dtype}")
        if fn is torch.matmul and (0 in dims or max(dims) > 2):
            raise no(cap, "dot() of numbers, or of more than two axes")
        return made(cap, record(cap, fn, cast(cap, a, dtype), cast(cap, b, dtype)))

    return body


# ----------------------------------------------------------------------- making arrays
def _like(fn: Any, filled: str = "") -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "a", "dtype", "fill_value", "prototype")
        x = first(cap, given)
        settled(cap, x)
        dtype = dtype_arg(cap, given.get("dtype")) or dtype_of(x)
        more = [_fill(cap, given[filled], dtype)] if filled else []
        return array_of(cap, record(cap, fn, x, *more, dtype=TORCH[dtype]))

    return body


def _fill(cap: Capture, x: Value, dtype: np.dtype[Any]) -> Any:
    try:
        return dtype.type(constant(x)).item()
    except (NotConstant, OverflowError, TypeError, ValueError):
        raise no(cap, f"an array of {dtype} filled with another kind of value") from None


def copied(cap: Capture, x: ArrayValue, dtype: np.dtype[Any] | None = None) -> ArrayValue:
    """A C-contiguous array of its own."""
    settled(cap, x)
    if dtype is not None and dtype != dtype_of(x):
        return array_of(cap, cast(cap, x, dtype), x.scalar)
    return array_of(cap, record(cap, "clone", x), x.scalar)


def _array(cap: Capture, given: Kwargs) -> Value:
    """np.array: always a copy; np.asarray: of lists and numbers."""
    only(cap, given, "object", "a", "dtype", "copy")
    x = next(iter(given.values()))
    dtype = dtype_arg(cap, given.get("dtype"))
    if number(cap, given, "copy", True) is not True:
        raise no(cap, "array() that need not copy")
    if isinstance(x, ListValue | TupleValue):
        return as_array(cap, x, dtype)
    known = copied(cap, as_array(cap, x), dtype)
    return array_of(cap, known.tensor)


def _asarray(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "dtype")
    x = next(iter(given.values()))
    dtype = dtype_arg(cap, given.get("dtype"))
    if isinstance(x, ArrayValue) and not x.scalar and dtype in (None, dtype_of(x)):
        return x
    found = as_array(cap, x, dtype)
    return array_of(cap, record(cap, "clone", found) if isinstance(x, ArrayValue) and (
        found.tensor is x.tensor) else found.tensor)  # fmt: skip


def _stretch(fn: Any, name: str) -> Body:
    """roll, tile, repeat: torch's function of the same arguments."""

    def body(cap: Capture, given: Kwargs) -> Value:
        x = next(given[n] for n in ("a", "A") if n in given)
        known, axis = as_array(cap, x), number(cap, given, "axis")
        settled(cap, known)
        count = number(cap, given, name)
        if not isinstance(count, int) and not (isinstance(count, tuple) and fn is torch.tile):
            raise no(cap, f"{name} that is no number")
        if axis is None and fn is torch.repeat_interleave:
            known = array_of(cap, record(cap, torch.ravel, known))
            axis = 0
        if fn is torch.tile:
            return made(cap, record(cap, fn, known, shape_arg(cap, Const(count))))
        return made(cap, record(cap, fn, known, count, *(() if axis is None else (int(axis),))))

    return body


def _triangle(fn: Any) -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        x = as_array(cap, given["m"])
        settled(cap, x)
        if x.tensor.fake.ndim < 2:
            raise no(cap, "the triangle of one axis")
        return made(cap, record(cap, fn, x, number(cap, given, "k", 0)))

    return body




_BODIES: tuple[tuple[Any, Body], ...] = (
    *REDUCTIONS,
    (np.reshape, _reshape), (np.ravel, _ravel), (np.transpose, _transpose),
    (np.swapaxes, _swapaxes), (np.moveaxis, _moveaxis), (np.squeeze, _squeeze),
    (np.expand_dims, _expand_dims), (np.concatenate, _joined(torch.cat)),
    (np.stack, _joined(torch.stack)), (np.vstack, _joined(torch.vstack, None)),
    (np.hstack, _joined(torch.hstack, None)), (np.clip, _clip),
    (np.dot, _products(torch.matmul)), (np.outer, _products(torch.outer)),
    (np.zeros_like, _like(torch.zeros_like)), (np.ones_like, _like(torch.ones_like)),
    (np.empty_like, _like(torch.empty_like)), (np.full_like, _like(torch.full_like, "fill_value")),
    (np.roll, _stretch(torch.roll, "shift")), (np.repeat, _stretch(
        torch.repeat_interleave, "repeats")), (np.tile, _stretch(torch.tile, "reps")),
    (np.tril, _triangle(torch.tril)), (np.triu, _triangle(torch.triu)),
    (np.copy, _array),
)  # fmt: skip
# functions that make arrays of constants, or answer questions about constants
_OF_CONSTANTS = (np.zeros, np.ones, np.full, np.arange, np.linspace, np.eye, np.identity,
                 np.logspace, np.geomspace, np.result_type, np.promote_types, np.can_cast,
                 np.isscalar, np.issubdtype, np.dtype, np.iinfo, np.finfo, np.tri)  # fmt: skip


def _sorted(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "axis")
    x = first(cap, given)
    settled(cap, x)
    axis = number(cap, given, "axis", -1)
    if kind_of(dtype_of(x)) not in "iuf" or axis is None:
        raise no(cap, f"sort of {dtype_of(x)}")
    pair = cap.builder.call("call_function", torch.sort, [x.tensor, Const(int(axis))], {},
                            cap.loc())  # fmt: skip
    assert isinstance(pair, TupleValue)
    values = cap.force(pair.items[0])
    assert isinstance(values, TensorValue)
    return made(cap, values)


def _rounded(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a")
    x = first(cap, given)
    if kind_of(dtype_of(x)) not in "fe":
        raise no(cap, f"round() of {dtype_of(x)}")
    return apply(cap, np.rint, [first(cap, given)], {})


def _einsum(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "operands")
    text, *arrays = cap.force_items(_items(cap, given["operands"]))
    known = [as_array(cap, a) for a in arrays]
    dtype = np.result_type(*(dtype_of(a) for a in known))
    if kind_of(dtype) != "f" or not isinstance(text, Const) or not isinstance(text.obj, str):
        raise no(cap, f"einsum of {dtype}")
    settled(cap, *known)
    found = record(cap, torch.einsum, text, *(cast(cap, k, dtype) for k in known))
    if memory(found) in {memory(k.tensor) for k in known} or (
            found.fake.ndim > 1 and not found.fake.is_contiguous()):  # fmt: skip
        raise no(cap, "einsum whose layout NumPy may choose otherwise")
    return made(cap, found)


def _items(cap: Capture, x: Value) -> list[Any]:
    assert isinstance(x, TupleValue)
    return x.items


def _norm(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "x")
    x = as_array(cap, given["x"])
    if kind_of(dtype_of(x)) != "f":
        raise no(cap, f"the norm of {dtype_of(x)}")
    return made(cap, record(cap, torch.linalg.vector_norm, x))


def _without_nan(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "x")
    x = as_array(cap, given["x"])
    settled(cap, x)
    if kind_of(dtype_of(x)) != "f":
        raise no(cap, f"nan_to_num of {dtype_of(x)}")
    return made(cap, record(cap, torch.nan_to_num, x))


def _differences(cap: Capture, given: Kwargs) -> Value:
    only(cap, given, "a", "n", "axis")
    x = first(cap, given)
    settled(cap, x)
    count, axis = number(cap, given, "n", 1), number(cap, given, "axis", -1)
    if kind_of(dtype_of(x)) not in "if" or count < 1:
        raise no(cap, f"differences of {dtype_of(x)}")
    return made(cap, record(cap, torch.diff, x, int(count), int(axis)))


_BODIES += (
    (np.sort, _sorted), (np.round, _rounded), (np.einsum, _einsum), (np.linalg.norm, _norm),
    (np.nan_to_num, _without_nan), (np.diff, _differences),
)  # fmt: skip


def _constants_only(fn: Any) -> CallHandler:
    return lambda cap, args, kwargs, cont: cap.deliver(of_constants(cap, fn, args, kwargs), cont)


for _fn, _body in (*_BODIES, (np.array, _array), (np.asarray, _asarray), (np.where, _where)):
    FUNCTIONS.add(_fn, handler(_fn, _body))
for _fn in _OF_CONSTANTS:
    FUNCTIONS.add(_fn, _constants_only(_fn))
for _fn in UFUNCS:
    FUNCTIONS.add(_fn, ufunc(_fn))


def _number_class(kind: type[np.generic]) -> CallHandler:
    """np.float32(x): of a constant, or a number in another dtype."""

    def run(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if len(args) == 1 and not kwargs and isinstance(args[0], ArrayValue):
            if not args[0].scalar or kind_of(dtype_of(args[0])) == "c":
                raise no(cap, f"{kind.__name__} of an array")
            cap.deliver(made(cap, cast(cap, args[0], np.dtype(kind))), cont)
        else:
            cap.deliver(of_constants(cap, kind, args, kwargs), cont)

    return run


for _kind in {d.type for d in TORCH}:
    CLASSES.add(_kind, _number_class(_kind))


@klass(np.errstate)
def errstate(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Compiled code does not warn, so silence changes nothing."""
    said = {number(cap, kwargs, name) for name in kwargs}
    if args or not said <= {"ignore", "warn"}:
        raise no(cap, "numpy.errstate that asks for more than a warning")
    cap.call(Const(contextlib.nullcontext), [], {}, cont)
BODIES: dict[Any, Body] = dict(_BODIES)
