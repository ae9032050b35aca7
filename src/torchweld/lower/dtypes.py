"""Element types at the border to torch, and torch's promotion rules."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import torch

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType

_PAIRS = (
    (torch.float32, DType.F32), (torch.bfloat16, DType.BF16), (torch.float16, DType.F16),
    (torch.float64, DType.F64), (torch.int64, DType.I64), (torch.int32, DType.I32),
    (torch.int16, DType.I16), (torch.int8, DType.I8), (torch.uint8, DType.U8),
    (torch.bool, DType.BOOL), (torch.complex64, DType.C64), (torch.complex128, DType.C128),
)  # fmt: skip
_FROM_TORCH = dict(_PAIRS)
_TO_TORCH = {d: t for t, d in _PAIRS}
_INT_BITS = {DType.I64: 64, DType.I32: 32, DType.I16: 16, DType.I8: 8, DType.U8: 8}


def dtype_of(t: torch.dtype) -> DType:
    """The DType of a torch dtype. Errors: LoweringError W203 for those that buffers cannot have."""
    found = _FROM_TORCH.get(t)
    if found is None:
        raise LoweringError("W203", f"{t} has no loop form")
    return found


def torch_dtype(d: DType) -> torch.dtype:
    return _TO_TORCH[d]


def common_dtype(operands: Iterable[torch.Tensor | int | float | bool]) -> DType:
    """The dtype in which torch compares or combines the operands (wrapped numbers included)."""
    dims: torch.dtype | None = None
    scalars: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for x in operands:
        if isinstance(x, torch.Tensor):
            if x.dim():
                dims = x.dtype if dims is None else torch.promote_types(dims, x.dtype)
            else:
                scalars = x.dtype if scalars is None else torch.promote_types(scalars, x.dtype)
        else:
            t = _number_dtype(x)
            numbers = t if numbers is None else torch.promote_types(numbers, t)
    found = _combine(dims, _combine(scalars, numbers))
    assert found is not None
    return dtype_of(found)


def _number_dtype(x: object) -> torch.dtype:
    if isinstance(x, bool):
        return torch.bool
    return torch.int64 if isinstance(x, int) else torch.get_default_dtype()


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Operands with dimensions win over those without, unless the kind of number grows."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def representable(value: float | int | bool, dtype: DType) -> float | int | bool:
    """`value` converted to `dtype` as ATen converts a Python number."""
    if isinstance(value, complex) or not dtype.computed:
        raise LoweringError("W203", f"{value} as {dtype.value}")
    if dtype is DType.BOOL:
        return bool(value)
    if dtype.is_float:
        return _round_float(float(value), dtype)
    n = int(value)
    bits = _INT_BITS[dtype]
    n &= (1 << bits) - 1
    return n - (1 << bits) if dtype is not DType.U8 and n >> (bits - 1) else n


def _round_float(x: float, dtype: DType) -> float:
    if dtype is DType.F64 or x != x:
        return x
    try:
        if dtype is DType.F16:
            return float(struct.unpack("<e", struct.pack("<e", x))[0])
        single: float = struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")
    if dtype is DType.F32 or single in (float("inf"), float("-inf")):
        return single
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def lowest(dtype: DType) -> float | int | bool:
    """The least value: the start of a maximum."""
    if dtype.is_float:
        return float("-inf")
    if dtype is DType.BOOL:
        return False
    return 0 if dtype is DType.U8 else -(1 << (_INT_BITS[dtype] - 1))


def highest(dtype: DType) -> float | int | bool:
    """The greatest value: the start of a minimum."""
    if dtype.is_float:
        return float("inf")
    if dtype is DType.BOOL:
        return True
    return 255 if dtype is DType.U8 else (1 << (_INT_BITS[dtype] - 1)) - 1
