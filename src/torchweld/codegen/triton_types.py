"""What Triton calls our element types, and how constants are spelled in its language."""

from __future__ import annotations

import math

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_types import float8_code, round_to
from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.loop import Const, Scalar

# in a kernel's signature: "*" in front for a pointer
SIGNATURE = {
    DType.F64: "fp64", DType.F32: "fp32", DType.F16: "fp16", DType.BF16: "bf16", DType.I64: "i64",
    DType.I32: "i32", DType.I16: "i16", DType.I8: "i8", DType.U8: "u8", DType.BOOL: "i1",
    **dict.fromkeys(FLOAT8, "u8"),
}  # fmt: skip

# in registers: f16 and bf16 compute in f32, 8-bit floats are their codes
COMPUTED = {
    DType.F64: "tl.float64", DType.F32: "tl.float32", DType.F16: "tl.float32",
    DType.BF16: "tl.float32", DType.I64: "tl.int64", DType.I32: "tl.int32", DType.I16: "tl.int16",
    DType.I8: "tl.int8", DType.U8: "tl.uint8", DType.BOOL: "tl.int1",
    **dict.fromkeys(FLOAT8, "tl.uint8"),
}  # fmt: skip

NARROW = frozenset({DType.F16, DType.BF16})

_PLAIN = frozenset({DType.F32, DType.F16, DType.BF16, DType.I32})
_LEAST_NORMAL = 2.0**-126


def signature_type(dtype: DType) -> str:
    """Errors: InternalError for dtypes without arithmetic."""
    if dtype not in SIGNATURE:
        raise InternalError(f"generated code has no element type for {dtype!r}")
    return SIGNATURE[dtype]


def literal(c: Const) -> str:
    """The constant as Python writes it; its type is that of what it is combined with."""
    if c.dtype.is_float8:
        return str(float8_code(c))
    if c.dtype.is_float:
        value = c.value
        assert isinstance(value, float)
        return float_text(round_to(value, c.dtype), c.dtype)
    if c.dtype is DType.BOOL:
        return "True" if c.value else "False"
    return str(wrapped(int(c.value), c.dtype))


def wrapped(n: int, dtype: DType) -> int:
    """`n` in two's complement of the dtype's width."""
    bits = 8 * dtype.bytes
    n &= (1 << bits) - 1
    return n - (1 << bits) if dtype is not DType.U8 and n >> (bits - 1) else n


def float_text(x: float, dtype: DType) -> str:
    if math.isnan(x):
        return 'float("nan")'
    if math.isinf(x):
        return '-float("inf")' if x < 0 else 'float("inf")'
    return repr(x) if dtype is DType.F64 else _shortest(x)


def _shortest(x: float) -> str:
    """The shortest decimal that rounds to the single-precision value `x`."""
    for digits in range(1, 10):
        text = f"{x:.{digits}g}"
        if round_to(float(text), DType.F32) == x:
            return text if "e" in text or "." in text else text + ".0"
    return repr(x)


def keeps_type(x: Scalar) -> bool:
    """Whether a number of `x`, a constant, has its type where Triton makes a tensor of it.

    There a float is float32, unless it is too small for a normal one: then it is float64.
    """
    if x.dtype not in _PLAIN:
        return False
    value = x.value if isinstance(x, Const) and x.dtype.is_float else 0.0
    return value == 0 or not abs(value) < _LEAST_NORMAL


def minus_zero(c: Const) -> bool:
    """Whether this is -0.0, which Triton takes for 0.0 when it stands as a number."""
    if not c.dtype.is_float or c.dtype.is_float8 or c.value != 0:
        return False
    return math.copysign(1.0, float(c.value)) < 0


def typed(c: Const) -> str:
    """The constant as a scalar of its own type."""
    if minus_zero(c):
        return f"weld.neg(tl.full([], 0.0, {COMPUTED[c.dtype]}))"
    value = str(int(c.bits)) if c.dtype is DType.BOOL else literal(c)
    return f"tl.full([], {value}, {COMPUTED[c.dtype]})"


def neutral(kind: str, dtype: DType) -> str:
    """What combines to nothing, for "sum", "prod", "max" or "min" in a computed dtype."""
    if kind in ("sum", "prod"):
        one = "1" if kind == "prod" else "0"
        return one + ".0" if dtype.is_float else one
    if dtype.is_float:
        return '-float("inf")' if kind == "max" else 'float("inf")'
    least = -(1 << (8 * dtype.bytes - 1))
    return str(least if kind == "max" else -least - 1)
