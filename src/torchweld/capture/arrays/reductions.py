"""NumPy's reductions as torch's.

Sums differ from NumPy's by the order of additions, as they differ between two kernels of torch;
extremes, places and truth do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchweld.capture.arrays.dtypes import kind_of
from torchweld.capture.arrays.record import (
    Body,
    Kwargs,
    cast,
    dtype_arg,
    dtype_of,
    first,
    made,
    no,
    number,
    only,
    record,
    settled,
)
from torchweld.capture.session import Capture
from torchweld.capture.values.base import ArrayValue, TensorValue, Value


def _axes(cap: Capture, given: Kwargs) -> dict[str, Any]:
    """torch's dim and keepdim."""
    axis = number(cap, given, "axis")
    keep = bool(number(cap, given, "keepdims", False))
    if axis is None:
        return {"keepdim": True, "dim": None} if keep else {}
    axes = tuple(map(int, axis)) if isinstance(axis, tuple) else (int(axis),)
    return {"dim": axes, "keepdim": keep} if axes else {"dim": None, "keepdim": keep}


def _reduced(cap: Capture, fn: Any, x: TensorValue, given: Kwargs, **more: Any) -> ArrayValue:
    axes = _axes(cap, given)
    if fn is torch.prod and "dim" in axes:
        if not isinstance(axes["dim"], tuple) or len(axes["dim"]) != 1:
            raise no(cap, "a product over several axes")
        axes["dim"] = axes["dim"][0]
    if axes.get("dim", 0) is None:
        axes["dim"] = tuple(range(x.fake.ndim))
    if x.fake.ndim == 0:
        axes = {}
    if not axes and fn in _NEED_DIM:
        axes = {"dim": tuple(range(x.fake.ndim))}
    found = made(cap, record(cap, fn, x, **axes, **more))
    if found.tensor.fake.ndim > 1 and not x.fake.is_contiguous():
        raise no(cap, "a reduction whose layout NumPy may choose otherwise")
    return found


_NEED_DIM = (torch.amax, torch.amin)


def _sum_dtype(cap: Capture, x: ArrayValue, given: Kwargs) -> np.dtype[Any]:
    """What NumPy adds up in: small integers in 64 bits."""
    asked = dtype_arg(cap, given.get("dtype"))
    if asked is not None:
        return asked
    found: np.dtype[Any] = np.zeros(0, dtype_of(x)).sum().dtype
    return found


def _summing(fn: Any, kinds: str, real: bool = False) -> Body:
    """real: integers are averaged as f64."""

    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "axis", "dtype", "keepdims", "a")
        x = first(cap, given)
        dtype = _sum_dtype(cap, x, given)
        if real and kind_of(dtype_of(x)) in "biu" and given.get("dtype") is None:
            dtype = np.dtype(np.float64)
        if kind_of(dtype_of(x)) not in kinds or kind_of(dtype) not in kinds:
            raise no(cap, f"a reduction of {dtype_of(x)}")
        return _reduced(cap, fn, cast(cap, x, dtype), given)

    return body


def _deviation(fn: Any) -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "axis", "keepdims", "ddof", "a")
        x = first(cap, given)
        kind = kind_of(dtype_of(x))
        if kind not in "biuf":
            raise no(cap, f"a deviation of {dtype_of(x)}")
        tensor = x.tensor if kind == "f" else cast(cap, x, np.dtype(np.float64))
        return _reduced(cap, fn, tensor, given, correction=number(cap, given, "ddof", 0))

    return body


def _extreme(fn: Any) -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "axis", "keepdims", "a")
        x = first(cap, given)
        if kind_of(dtype_of(x)) == "c" or not x.tensor.fake.numel():
            raise no(cap, f"the extreme of {dtype_of(x)}")
        return _reduced(cap, fn, x.tensor, given)

    return body


def _place_of_extreme(fn: Any) -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "axis", "keepdims", "a")
        x = first(cap, given)
        if kind_of(dtype_of(x)) not in "iuf" or not x.tensor.fake.numel():
            raise no(cap, f"the place of an extreme of {dtype_of(x)}")
        axis = number(cap, given, "axis")
        keep = bool(number(cap, given, "keepdims", False))
        if axis is None and keep:
            raise no(cap, "keepdims without an axis")
        more = {} if axis is None else {"dim": int(axis), "keepdim": keep}
        return made(cap, record(cap, fn, x, **more))

    return body


def _truth(fn: Any) -> Body:
    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "axis", "keepdims", "a")
        x = first(cap, given)
        return _reduced(cap, fn, cast(cap, x, np.dtype(bool)), given)

    return body


def _running(fn: Any) -> Body:
    """cumsum and cumprod."""

    def body(cap: Capture, given: Kwargs) -> Value:
        only(cap, given, "axis", "dtype", "a")
        x = first(cap, given)
        settled(cap, x)
        dtype, axis = _sum_dtype(cap, x, given), number(cap, given, "axis")
        if kind_of(dtype) not in "if" or kind_of(dtype_of(x)) not in "bif":
            raise no(cap, f"a running sum of {dtype_of(x)}")
        tensor = cast(cap, x, dtype)
        if axis is None:
            tensor, axis = record(cap, torch.ravel, tensor), 0
        return made(cap, record(cap, fn, tensor, int(axis)))

    return body


REDUCTIONS: tuple[tuple[Any, Body], ...] = (
    (np.sum, _summing(torch.sum, "bifc")), (np.prod, _summing(torch.prod, "bif")),
    (np.mean, _summing(torch.mean, "biufc", real=True)),
    (np.std, _deviation(torch.std)), (np.var, _deviation(torch.var)),
    (np.max, _extreme(torch.amax)), (np.min, _extreme(torch.amin)),
    (np.amax, _extreme(torch.amax)), (np.amin, _extreme(torch.amin)),
    (np.argmax, _place_of_extreme(torch.argmax)), (np.argmin, _place_of_extreme(torch.argmin)),
    (np.any, _truth(torch.any)), (np.all, _truth(torch.all)),
    (np.cumsum, _running(torch.cumsum)), (np.cumprod, _running(torch.cumprod)),
)  # fmt: skip
