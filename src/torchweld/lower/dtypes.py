"""Element types at the border to torch: promotion rules, and what eager does with 8-bit floats."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from functools import cache

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.graph import VAL
from torchweld.ir.rounding import FLOAT8_FORMATS, float8_value, to_float

_PAIRS = (
    (torch.float32, DType.F32), (torch.bfloat16, DType.BF16), (torch.float16, DType.F16),
    (torch.float64, DType.F64), (torch.int64, DType.I64), (torch.int32, DType.I32),
    (torch.int16, DType.I16), (torch.int8, DType.I8), (torch.uint8, DType.U8),
    (torch.bool, DType.BOOL), (torch.complex64, DType.C64), (torch.complex128, DType.C128),
    (torch.float8_e4m3fn, DType.F8E4M3FN), (torch.float8_e5m2, DType.F8E5M2),
    (torch.float8_e4m3fnuz, DType.F8E4M3FNUZ), (torch.float8_e5m2fnuz, DType.F8E5M2FNUZ),
)  # fmt: skip
_FROM_TORCH = dict(_PAIRS)
_TO_TORCH = {d: t for t, d in _PAIRS}
_INT_BITS = {DType.I64: 64, DType.I32: 32, DType.I16: 16, DType.I8: 8, DType.U8: 8}
_FLOAT8 = frozenset(_TO_TORCH[d] for d in FLOAT8)
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# Eager refuses nearly everything else; ATen then raises what it raises there.
_MOVE = _aten("""
    clone.default contiguous.default _to_copy.default copy.default cat.default where.self
    where.ScalarOther where.ScalarSelf where.Scalar eq.Tensor eq.Scalar ne.Tensor ne.Scalar
    isnan.default full.default full_like.default new_full.default zeros.default zeros_like.default
    new_zeros.default zero.default ones.default ones_like.default new_ones.default
    empty.memory_format empty_like.default new_empty.default empty_strided.default
    new_empty_strided.default empty_permuted.default scalar_tensor.default fill.Scalar fill.Tensor
    constant_pad_nd.default flip.default roll.default repeat.default index.Tensor
    _unsafe_index.Tensor index_select.default embedding.default index_put.default
    slice_scatter.default select_scatter.default
""")
# into another type
_READ = _aten("""
    sum.default sum.dim_IntList mean.default mean.dim prod.default prod.dim_int cumsum.default
    any.default any.dim any.dims all.default all.dim all.dims
""")
# operators that promote their operands from this position on: not with 8-bit floats among them
_PROMOTE = {"aten.where.self": 1, "aten.cat.default": 0, "aten.eq.Tensor": 0, "aten.ne.Tensor": 0}


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
    if dtype.is_float8:
        return _float8(float(value), dtype)
    if dtype.is_float:
        return _round_float(float(value), dtype)
    n = int(value)
    bits = _INT_BITS[dtype]
    n &= (1 << bits) - 1
    return n - (1 << bits) if dtype is not DType.U8 and n >> (bits - 1) else n


def _float8(x: float, dtype: DType) -> float:
    """Errors: LoweringError W203 for a number out of range, which eager refuses."""
    f = FLOAT8_FORMATS[dtype]
    finite = abs(x) <= float8_value(f.top, dtype) or x != x
    if not finite and not (math.isinf(x) and math.isinf(float8_value(f.over, dtype))):
        raise LoweringError("W203", f"{x} as {dtype.value}")
    return to_float(x, dtype)


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


def check_float8(op: str, node: Node) -> None:
    """Errors: LoweringError W203 for an operator on 8-bit floats that is left to ATen."""
    made, read = _has_float8(node.meta.get(VAL)), _has_float8(node.all_input_nodes)
    if (made or read) and op not in _MOVE and (made or op not in _READ):
        raise LoweringError("W203", "8-bit floats are moved and cast, not computed in")
    if read and op in _PROMOTE and _mixed(node.args[_PROMOTE[op] :]):
        raise LoweringError("W203", "8-bit floats beside another type")
    if any(v.dtype in _FNUZ for v in _tensors(node.all_input_nodes)) and _has_int(node):
        raise LoweringError("W203", "as an integer, NaN of this type is what eager's compiler made")


def _has_int(node: Node) -> bool:
    return any(v.dtype in (torch.int64, torch.int32) for v in _tensors(node.meta.get(VAL)))


def _has_float8(vals: object) -> bool:
    return any(v.dtype in _FLOAT8 for v in _tensors(vals))


def _mixed(args: object) -> bool:
    """Whether tensors with dimensions, or else all, differ in type."""
    found = list(_tensors(args))
    return len({v.dtype for v in [v for v in found if v.dim()] or found}) > 1


def _tensors(x: object) -> Iterator[torch.Tensor]:
    if isinstance(x, Node):
        x = x.meta.get(VAL)
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for part in x:
            yield from _tensors(part)


@cache
def saturates() -> bool:
    """Whether this torch casts what is too large for f8e4m3fn to 448 (2.13), or else to NaN.

    Both devices share the code of the conversion.
    """
    with _disable_current_modes():
        large = torch.full((), 1e6, dtype=torch.float32, device="cpu")
        return not large.to(torch.float8_e4m3fn).to(torch.float32).isnan().item()
