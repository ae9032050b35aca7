"""The value of one scalar operator in its dtype: `loop_ops` meanings, rounded."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from torchweld.ir.dtype import DType
from torchweld.ir.loop_ops import OPS
from torchweld.ir.rounding import Number, convert


def _floor_div(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    if a != a or b != b or math.isinf(a):
        return math.nan
    mod = math.fmod(a, b)
    div = (a - mod) / b - (1 if mod != 0 and (b < 0) != (mod < 0) else 0)
    if div == 0:
        return math.copysign(0.0, a / b)
    if math.isinf(div):
        return div
    floor = math.floor(div)
    return float(floor + 1 if div - floor > 0.5 else floor)


def _ipow(a: int, b: int) -> Number:
    """Wrapped while multiplying, so that a large exponent ends."""
    return pow(a, b, 1 << 64) if b >= 0 else {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


def _sinh(x: float) -> float:
    try:
        return math.sinh(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def _nextafter_f32(a: float, b: float) -> float:
    if a != a or b != b:
        return math.nan
    if a == b:
        return b
    if a == 0:
        return math.copysign(2.0**-149, b)
    (bits,) = struct.unpack("<I", struct.pack("<f", a))
    bits += 1 if (b > a) == (a > 0) else -1
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


# where the plain meaning ends in an exception, takes forever, or depends on the dtype
_REFINED: dict[str, Callable[..., object]] = {
    "floor_div": _floor_div,
    "ipow": _ipow,
    "sinh": _sinh,
}


def op_value(name: str, args: Sequence[Number], dtype: DType) -> Number:
    """`name` applied to `args` (elements of their dtypes), rounded to the result's `dtype`.

    Errors: what CHECKS raise; ZeroDivisionError for integer division by zero.
    """
    if name == "nextafter" and dtype is not DType.F64:
        return convert(_nextafter_f32(float(args[0]), float(args[1])), dtype)
    meaning = _REFINED.get(name) or OPS[name].meaning
    try:
        out = meaning(*args)
    except ValueError:
        out = math.nan
    except OverflowError:
        out = math.inf
    assert isinstance(out, float | int)
    return convert(out, dtype)
