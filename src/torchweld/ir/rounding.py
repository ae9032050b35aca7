"""Exact conversion of Python numbers to element types, and their bytes. Slow, and free of numpy.

8-bit floats have one sign bit, an exponent and `mantissa` bits. Their corners differ:

    f8e4m3fn     no infinity; 0x7f is NaN; what is too large (infinity, too) becomes 448
    f8e5m2       as IEEE: 0x7c is infinity, where what is too large ends
    f8e..fnuz    0x80 is the only NaN, and what is too large becomes it; there is no -0

Source: Micikevicius et al. 2022, arXiv:2209.05433 (fn, e5m2); Noune et al. 2022, arXiv:2206.02915.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType

Number = float | int | bool

_INT_BITS = {DType.I64: 64, DType.I32: 32, DType.I16: 16, DType.I8: 8, DType.U8: 8}
_FORMAT = {
    DType.F64: "<d", DType.F32: "<f", DType.F16: "<e", DType.I64: "<q", DType.I32: "<i",
    DType.I16: "<h", DType.I8: "<b", DType.U8: "<B", DType.BOOL: "<?",
}  # fmt: skip


def _through(form: str) -> Callable[[float], float]:
    """Rounding by writing and reading the format; overflow gives infinity, as in hardware."""
    codec = struct.Struct(form)

    def to(x: float) -> float:
        try:
            return float(codec.unpack(codec.pack(x))[0])
        except OverflowError:
            return math.copysign(math.inf, x)

    return to


round_f32 = _through("<f")
_f32_to_f16 = _through("<e")


def bf16_bits(x: float) -> int:
    """The bfloat16 pattern of an f32 value: round to nearest even, NaN stays NaN."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    if x != x:
        return int(bits >> 16 | 0x40)
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _bf16_value(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


@dataclass(frozen=True, slots=True)
class Float8:
    """One format. top: the code of the largest number; over: what a larger one becomes."""

    mantissa: int
    bias: int
    top: int
    over: int
    nan: int

    @property
    def unsigned_zero(self) -> bool:
        """Whether the code of -0 is NaN."""
        return self.nan == 0x80


FLOAT8_FORMATS = {
    DType.F8E4M3FN: Float8(mantissa=3, bias=7, top=0x7E, over=0x7E, nan=0x7F),
    DType.F8E5M2: Float8(mantissa=2, bias=15, top=0x7B, over=0x7C, nan=0x7F),
    DType.F8E4M3FNUZ: Float8(mantissa=3, bias=8, top=0x7F, over=0x80, nan=0x80),
    DType.F8E5M2FNUZ: Float8(mantissa=2, bias=16, top=0x7F, over=0x80, nan=0x80),
}


def float8_bits(x: float, dtype: DType) -> int:
    """The code of the nearest value, of two equally near ones the even."""
    f = FLOAT8_FORMATS[dtype]
    if x != x:
        return f.nan
    code = f.over if math.isinf(x) else _magnitude(abs(x), f)
    if f.unsigned_zero and code in (0, f.nan):
        return code
    return code | 0x80 if math.copysign(1.0, x) < 0 else code


def _magnitude(x: float, f: Float8) -> int:
    exponent = max(math.frexp(x)[1] - 1, 1 - f.bias) if x else 1 - f.bias
    steps = round(math.ldexp(x, f.mantissa - exponent))  # exact before Python rounds half to even
    code = steps + ((exponent + f.bias - 1) << f.mantissa)
    return f.over if code > f.top else code


def float8_value(code: int, dtype: DType) -> float:
    """The value of a code; NaN has neither sign nor payload."""
    f = FLOAT8_FORMATS[dtype]
    magnitude = code & 0x7F
    if code == f.nan or (not f.unsigned_zero and magnitude > f.top):
        infinite = magnitude == f.over and f.over > f.top
        return math.copysign(math.inf, -1.0 if code & 0x80 else 1.0) if infinite else math.nan
    exponent, rest = divmod(magnitude, 1 << f.mantissa)
    steps = rest if exponent == 0 else rest + (1 << f.mantissa)
    value = math.ldexp(steps, max(exponent, 1) - f.bias - f.mantissa)
    return -value if code & 0x80 else value


def _odd_double(n: int) -> float:
    """An integer as a double that still rounds to f32 as the integer itself would."""
    cut = max(abs(n).bit_length() - 53, 0)
    sticky = int(abs(n) & ((1 << cut) - 1) != 0)  # round to odd: no double rounding later
    return math.copysign(float((abs(n) >> cut | sticky) << cut), n)


def to_float(x: Number, dtype: DType) -> float:
    """`x` rounded to a floating-point type; narrow ones round through f32, as eager does.

    There is one NaN: its sign and payload are not part of any meaning.
    """
    if x != x:
        return math.nan
    if dtype is DType.F64:
        return float(x)
    y = round_f32(_odd_double(x) if isinstance(x, int) else x)
    if dtype is DType.F32:
        return y
    if dtype.is_float8:
        return float8_value(float8_bits(y, dtype), dtype)
    return _f32_to_f16(y) if dtype is DType.F16 else _bf16_value(bf16_bits(y))


def wrap_int(n: int, dtype: DType) -> int:
    """`n` in two's complement of the type's width."""
    bits = _INT_BITS[dtype]
    n &= (1 << bits) - 1
    return n - (1 << bits) if dtype is not DType.U8 and n >> (bits - 1) else n


def float_to_int(x: float, dtype: DType) -> int:
    """Truncation; what does not fit becomes what x86 gives: the least integer, then wrapped.

    u8 goes through i64 and the narrower signed types through i32, as in eager.
    """
    width = 64 if dtype in (DType.I64, DType.U8) else 32
    least = -(1 << (width - 1))
    n = least if math.isnan(x) or math.isinf(x) else int(x)
    return wrap_int(n if least <= n < -least else least, dtype)


def convert(x: Number, dtype: DType) -> Number:
    """`x` as an element of `dtype`: rounded, wrapped or truncated as eager's cast does."""
    if dtype.is_float:
        return to_float(x, dtype)
    if dtype is DType.BOOL:
        return bool(x)  # NaN is true
    if not dtype.is_int:
        raise InternalError(f"{dtype.value} has no scalar arithmetic")
    return float_to_int(x, dtype) if isinstance(x, float) else wrap_int(int(x), dtype)


def pack(x: Number, dtype: DType) -> bytes:
    """The bytes of `x`, little-endian; `x` is already an element of `dtype`."""
    if dtype.is_float8:
        return bytes([float8_bits(float(x), dtype)])
    if dtype is DType.BF16:
        return struct.pack("<H", bf16_bits(float(x)))
    return struct.pack(_FORMAT[dtype], x)


def unpack(data: bytes, dtype: DType) -> Number:
    """The inverse of `pack`."""
    if dtype.is_float8:
        return float8_value(data[0], dtype)
    if dtype is DType.BF16:
        return _bf16_value(int(struct.unpack("<H", data)[0]))
    value: Number = struct.unpack(_FORMAT[dtype], data)[0]
    return value
