"""What C++ calls our element types, and how it spells constants."""

from __future__ import annotations

import math
import struct

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.loop import Const
from torchweld.ir.rounding import float8_bits

# in memory: the element type of a pointer
STORED = {
    DType.F64: "f64", DType.F32: "f32", DType.F16: "f16", DType.BF16: "bf16", DType.I64: "i64",
    DType.I32: "i32", DType.I16: "i16", DType.I8: "i8", DType.U8: "u8", DType.BOOL: "b8",
    **dict.fromkeys(FLOAT8, "u8"),  # their codes, in registers too
}  # fmt: skip

# in registers: the type that scalars compute in
COMPUTED = STORED | {DType.F16: "f32", DType.BF16: "f32", DType.BOOL: "bool"}

# every value of an 8-bit float is one of theirs
HELD_AS_F32 = frozenset({DType.F32, DType.F16, DType.BF16})

NARROW = {DType.F16: "round_to_f16", DType.BF16: "round_to_bf16"}


def stored(dtype: DType) -> str:
    """The C++ element type of a buffer. Errors: InternalError for dtypes without arithmetic."""
    if dtype not in STORED:
        raise InternalError(f"generated code has no element type for {dtype!r}")
    return STORED[dtype]


def literal(c: Const) -> str:
    """A C++ expression of the constant, exactly, of the type that registers hold."""
    if c.dtype.is_float8:
        return f"{STORED[c.dtype]}({float8_code(c)})"
    if c.dtype.is_float:
        value = c.value
        assert isinstance(value, float)
        return _double(value) if c.dtype is DType.F64 else _single(value, c.dtype)
    if c.dtype is DType.BOOL:
        return "true" if c.value else "false"
    return _integer(int(c.value), c.dtype)


def float8_code(c: Const) -> int:
    """The code of a constant of an 8-bit float, which is rounded through f32."""
    return float8_bits(round_to(float(c.value), DType.F32), c.dtype)


def _integer(n: int, dtype: DType) -> str:
    bits = 8 * dtype.bytes
    n &= (1 << bits) - 1
    if dtype is not DType.U8 and n >> (bits - 1):
        n -= 1 << bits
    if n == -(1 << 63):
        return "INT64_MIN"
    return f"{STORED[dtype]}({n})"


def _double(x: float) -> str:
    if math.isnan(x):
        return '__builtin_nan("")'
    if math.isinf(x):
        return "-__builtin_inf()" if x < 0 else "__builtin_inf()"
    return repr(x)


def _single(x: float, dtype: DType) -> str:
    x = round_to(x, dtype)
    if math.isnan(x):
        return '__builtin_nanf("")'
    if math.isinf(x):
        return "-__builtin_inff()" if x < 0 else "__builtin_inff()"
    return _shortest(x) + "f"


def _shortest(x: float) -> str:
    """The shortest decimal that rounds to the single-precision value `x`."""
    for digits in range(1, 10):
        text = f"{x:.{digits}g}"
        if round_to(float(text), DType.F32) == x:
            if "e" in text or "." in text:
                return text
            return text + ".0"
    return repr(x)


def round_to(x: float, dtype: DType) -> float:
    """`x` rounded to nearest even in a float dtype."""
    if math.isnan(x) or math.isinf(x) or dtype is DType.F64:
        return x
    try:
        if dtype is DType.F16:
            return float(struct.unpack("<e", struct.pack("<e", x))[0])
        single = struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)
    if dtype is DType.BF16:
        single = (single + 0x7FFF + ((single >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", single))[0])
