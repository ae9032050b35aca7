"""Comparisons, logic, selection and classification, element by element."""

from __future__ import annotations

from torchweld.ir.dtype import DType
from torchweld.lower.builder import Builder
from torchweld.lower.registry import lowering, pointwise
from torchweld.lower.tensor import Idx, Tensor
from torchweld.lower.value import (
    Operand,
    Val,
    absolute,
    binary,
    constant,
    equal,
    isinf,
    isnan,
    lift,
    truth,
    unary,
    where,
)

INF = float("inf")


def _register_comparison(name: str) -> None:
    def apply(x: Val, y: Operand) -> Val:
        return binary(name, _computed(x), _computed(y) if isinstance(y, Val) else y)

    pointwise(f"aten.{name}.Tensor", f"aten.{name}.Scalar", common=True)(apply)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register_comparison(_name)


def _register_logical(name: str) -> None:
    def apply(x: Val, y: Val) -> Val:
        return binary(name, truth(x), truth(y))

    pointwise(f"aten.logical_{name}.default", keep=(0, 1))(apply)


for _name in ("and", "or", "xor"):
    _register_logical(_name)


@pointwise("aten.logical_not.default", keep=(0,))
def logical_not(x: Val) -> Val:
    return ~truth(x)


@pointwise("aten.where.self", keep=(0,))
def where_(condition: Val, x: Val, y: Val) -> Val:
    return where(truth(condition), x, y)


@pointwise("aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", keep=(0,))
def where_number(condition: Val, x: Operand, y: Operand) -> Val:
    if not isinstance(x, Val) and not isinstance(y, Val):
        x = lift(x, DType.F64)
    return where(truth(condition), x, y)


@pointwise("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", keep=(1,))
def masked_fill(x: Val, mask: Val, value: Operand) -> Val:
    return where(mask, lift(value, x.dtype), x)


@pointwise("aten.isnan.default", keep=(0,))
def isnan_(x: Val) -> Val:
    return isnan(_computed(x)) if x.dtype.is_float else constant(False, DType.BOOL)


@pointwise("aten.isinf.default", keep=(0,))
def isinf_(x: Val) -> Val:
    return isinf(_computed(x)) if x.dtype.is_float else constant(False, DType.BOOL)


@pointwise("aten.isfinite.default", keep=(0,))
def isfinite(x: Val) -> Val:
    if not x.dtype.is_float:
        return constant(True, DType.BOOL)
    return absolute(_computed(x)) < INF


@pointwise("aten.isposinf.default", keep=(0,))
def isposinf(x: Val) -> Val:
    return equal(_computed(x), INF) if x.dtype.is_float else constant(False, DType.BOOL)


@pointwise("aten.isneginf.default", keep=(0,))
def isneginf(x: Val) -> Val:
    return equal(_computed(x), -INF) if x.dtype.is_float else constant(False, DType.BOOL)


@pointwise("aten.signbit.default", keep=(0,))
def signbit(x: Val) -> Val:
    if x.dtype is DType.BOOL or x.dtype is DType.U8:
        return constant(False, DType.BOOL)
    return unary("signbit", _computed(x))


def _computed(x: Val) -> Val:
    return x.to(x.dtype.compute)


@lowering("aten.nan_to_num.default")
def nan_to_num(b: Builder, x: Tensor, nan: float | None = None, posinf: float | None = None,
               neginf: float | None = None) -> Tensor:  # fmt: skip
    """NaN and infinities replaced, by default with 0 and the ends of the dtype."""
    end = _GREATEST.get(x.dtype, 0.0)

    def body(idx: Idx) -> Val:
        v = x.load(idx)
        if not v.dtype.is_float:
            return v
        v = _computed(v)
        v = where(equal(v, INF), end if posinf is None else posinf, v)
        v = where(equal(v, -INF), -end if neginf is None else neginf, v)
        return where(isnan(v), 0.0 if nan is None else nan, v)

    return b.emit(body)


_GREATEST = {
    DType.F64: 1.7976931348623157e308, DType.F32: 3.4028234663852886e38, DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
}  # fmt: skip
