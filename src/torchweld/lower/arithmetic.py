"""Elementwise arithmetic and mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr
from torchweld.ir.loop import Const
from torchweld.lower.builder import Builder, broadcast
from torchweld.lower.dtypes import representable
from torchweld.lower.reduce import read_as
from torchweld.lower.registry import lowering, pointwise
from torchweld.lower.tensor import Idx, Spec, Tensor
from torchweld.lower.value import (
    Operand,
    Val,
    absolute,
    binary,
    equal,
    exp,
    fma,
    isnan,
    lift,
    log,
    log1p,
    maximum,
    minimum,
    power,
    sqrt,
    trunc,
    unary,
    where,
)

_SAME_NAME = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "erfinv", "lgamma", "sigmoid",
)  # fmt: skip


def _register_unary(name: str) -> None:
    def apply(x: Val) -> Val:
        return unary(name, x)

    pointwise(f"aten.{name}.default")(apply)


for _name in _SAME_NAME:
    _register_unary(_name)


def _register_rounding(name: str) -> None:
    def apply(x: Val) -> Val:
        return unary(name, x) if x.dtype.is_float else x

    pointwise(f"aten.{name}.default")(apply)


for _name in ("floor", "ceil", "trunc", "round"):
    _register_rounding(_name)


@pointwise("aten.special_expit.default")
def expit(x: Val) -> Val:
    return unary("sigmoid", x)


@pointwise("aten.neg.default", "aten._neg_view.default")
def neg(x: Val) -> Val:
    return -x


@pointwise("aten.abs.default")
def abs_(x: Val) -> Val:
    return x if x.dtype in (DType.BOOL, DType.U8) else absolute(x)


@pointwise("aten.sign.default", "aten.sgn.default")
def sign(x: Val) -> Val:
    """-1, 0 or 1; 0 for NaN, as in eager."""
    if not x.dtype.is_float:
        return x if x.dtype is DType.BOOL else unary("sign", x)
    return where(x > 0, lift(1, x.dtype), where(x < 0, lift(-1, x.dtype), 0))


@pointwise("aten.reciprocal.default")
def reciprocal(x: Val) -> Val:
    return 1 / x


@pointwise("aten.square.default")
def square(x: Val) -> Val:
    return x * x


@pointwise("aten.frac.default")
def frac(x: Val) -> Val:
    return x - trunc(x)


@pointwise("aten.positive.default", "aten.clone.default", "aten._to_copy.default",
           "aten.contiguous.default")  # fmt: skip
def copy(x: Val) -> Val:
    return x


@pointwise("aten.add.Tensor", "aten.add.Scalar")
def add(x: Operand, y: Operand, alpha: int | float = 1) -> Val:
    return _plus(*_lifted(x, y), alpha)


@pointwise("aten.sub.Tensor", "aten.sub.Scalar")
def sub(x: Operand, y: Operand, alpha: int | float = 1) -> Val:
    x, y = _lifted(x, y)
    if alpha == 1 or not x.dtype.is_float:
        return x - scaled(y, alpha)
    return _plus(x, y, -alpha)


@pointwise("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(x: Val, y: Operand, alpha: int | float = 1) -> Val:
    return sub(lift(y, x.dtype), x, alpha)


def _lifted(x: Operand, y: Operand) -> tuple[Val, Operand]:
    """Both, the first one as a value: torch takes a number for either tensor."""
    if isinstance(x, Val):
        return x, y
    assert isinstance(y, Val)
    return lift(x, y.dtype), y


def _plus(x: Val, y: Operand, alpha: int | float) -> Val:
    """x + alpha * y."""
    if alpha == 1 or not x.dtype.is_float:
        return x + scaled(y, alpha)
    assert not isinstance(y, Expr)
    return fma(y, alpha, x)


def scaled(y: Operand, alpha: int | float) -> Operand:
    assert not isinstance(y, Expr)  # a size is a value by now
    return y if alpha == 1 else y * alpha


@pointwise("aten.mul.Tensor", "aten.mul.Scalar", wide=True)
def mul(x: Val, y: Operand) -> Val:
    return x * y


@pointwise("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", wide=True)
def div(x: Val, y: Operand) -> Val:
    return x / y


@lowering("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: Builder, x: Tensor | int | float, other: Tensor | int | float,
             rounding_mode: str | None) -> Tensor:  # fmt: skip
    """The quotient, rounded down or toward zero; narrow floats round it to their dtype before.

    As in eager a number that divides is not rounded to a narrow dtype.
    """
    dtype = b.spec.dtype

    def read(t: Tensor | int | float, number_dtype: DType, idx: Idx) -> Val:
        if not isinstance(t, Tensor):
            return lift(representable(t, number_dtype), dtype.compute)
        return read_as(t, dtype)(broadcast(idx, t.shape))

    def body(idx: Idx) -> Val:
        a, d = read(x, dtype, idx), read(other, dtype.compute, idx)
        if rounding_mode is None:
            return a / d
        if rounding_mode == "floor":
            return floor_divide(a, d)
        if a.dtype.is_float:
            return trunc(_quotient(a, d, other, b.spec))
        return binary("trunc_div", a, nonzero(d, a.dtype))

    return b.emit(body)


def _quotient(a: Val, d: Val, given: Tensor | int | float, spec: Spec) -> Val:
    """What is rounded toward zero: rounded to its dtype before, but where one number divides."""
    number = d.s.value if isinstance(d.s, Const) else 0
    if number and spec.device != "cpu":
        return a * (1 / number)  # as eager's kernel for GPUs divides by a number
    one = not isinstance(given, Tensor) or (not given.shape and spec.device == "cpu")
    return a / d if one else (a / d).to(spec.dtype).to(a.dtype)


@pointwise("aten.floor_divide.default", "aten.floor_divide.Scalar", wide=True)
def floor_divide(x: Operand, y: Operand) -> Val:
    """The quotient, rounded down."""
    a, d = _lifted(x, y)
    return binary("floor_div", a, nonzero(d, a.dtype))


@pointwise("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(x: Operand, y: Operand) -> Val:
    return binary("mod", x, nonzero(y, x.dtype) if isinstance(x, Val) else _no_int(y))


@pointwise("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(x: Val, y: Operand) -> Val:
    if x.dtype.is_float:
        return binary("fmod", x, y)
    d = nonzero(y, x.dtype)
    return x - binary("trunc_div", x, d) * d


def nonzero(y: Operand, dtype: DType) -> Val:
    """A divisor. Errors: LoweringError for an integer one that may be 0 (eager raises then) or
    -1 (the quotient may overflow)."""
    d = lift(y, dtype)
    if not dtype.is_float and not (isinstance(d.s, Const) and d.s.value not in (0, -1)):
        raise LoweringError("W202", "integer division by a value that may be zero")
    return d


def _no_int(y: Operand) -> Operand:
    return nonzero(y, y.dtype) if isinstance(y, Val) else y


@pointwise("aten.pow.Tensor_Tensor")
def pow_(x: Val, y: Val) -> Val:
    return power(x, y) if x.dtype.is_float else _ipow(x, y)


@pointwise("aten.pow.Scalar")
def pow_of_number(x: int | float, y: Val) -> Val:
    if x == 1:
        return lift(1, y.dtype)
    return power(x, y) if y.dtype.is_float else _ipow(lift(x, y.dtype), y)


@lowering("aten.pow.Tensor_Scalar")
def pow_number(b: Builder, x: Tensor, exponent: int | float) -> Tensor:
    """Small exponents by multiplication and roots, the others by pow."""
    dtype = b.spec.dtype
    y = representable(exponent, dtype)
    read = read_as(x, dtype)
    special = _POWERS.get(float(y))
    if not dtype.is_float and (y < 0 or dtype is DType.BOOL):
        raise LoweringError("W202", f"integer power {y}")
    if dtype is DType.F16 and y in (0.5, -0.5):
        special = None  # in eager the root of -inf is NaN except in f16, where pow answers
    if dtype is DType.BF16 and y in (3, -2) and b.spec.device == "cpu":
        special = _ROUNDED_POWERS[y]
    if special is not None:
        return b.emit(lambda idx: special(read(idx)))
    if dtype.is_float:
        return b.emit(lambda idx: power(read(idx), y))
    return b.emit(lambda idx: _ipow(read(idx), lift(y, dtype)))


_POWERS: dict[float, Callable[[Val], Val]] = {
    0.0: lambda x: lift(1, x.dtype), 1.0: lambda x: x, 2.0: lambda x: x * x,
    3.0: lambda x: x * x * x, 0.5: sqrt, -0.5: lambda x: 1 / sqrt(x), -1.0: lambda x: 1 / x,
    -2.0: lambda x: 1 / (x * x),
}  # fmt: skip


def _square(x: Val) -> Val:
    """Rounded, as eager's vectors of bf16 are after each operator."""
    return (x * x).to(DType.BF16).to(x.dtype)


_ROUNDED_POWERS: dict[float, Callable[[Val], Val]] = {
    3: lambda x: _square(x) * x, -2: lambda x: 1 / _square(x),
}  # fmt: skip


def _ipow(x: Val, y: Val) -> Val:
    if x.dtype is DType.BOOL:
        raise LoweringError("W203", "power of bool")
    return binary("ipow", x, y)


@pointwise("aten.maximum.default")
def maximum_(x: Val, y: Val) -> Val:
    return maximum(x, y)


@pointwise("aten.minimum.default")
def minimum_(x: Val, y: Val) -> Val:
    return minimum(x, y)


@pointwise("aten.fmax.default")
def fmax(x: Val, y: Val) -> Val:
    """The larger, NaN counting as missing."""
    if not x.dtype.is_float:
        return maximum(x, y)
    return where(isnan(x), y, where(isnan(y), x, maximum(x, y)))


@pointwise("aten.fmin.default")
def fmin(x: Val, y: Val) -> Val:
    if not x.dtype.is_float:
        return minimum(x, y)
    return where(isnan(x), y, where(isnan(y), x, minimum(x, y)))


@lru_cache(maxsize=1)
def _nan_bounds() -> bool:
    """Whether a number that is NaN, as the only bound, is a bound: up to torch 2.11 it is none."""
    return bool(torch.zeros(1).clamp(min=math.nan).isnan())


@pointwise("aten.clamp.default")
def clamp(x: Val, low: Operand | None, high: Operand | None) -> Val:
    """clamp_between, of numbers."""
    bounded = clamp_between(x, low, high)
    if (low is None) == (high is None) or _nan_bounds():
        return bounded
    bound = high if low is None else low
    if isinstance(bound, Val):
        return where(isnan(bound), x, bounded) if bound.dtype.is_float else bounded
    return x if bound != bound else bounded


@pointwise("aten.clamp.Tensor")
def clamp_between(x: Val, low: Operand | None, high: Operand | None) -> Val:
    """min(max(x, low), high): NaN anywhere gives NaN, and `high` wins over `low`."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


@pointwise("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(x: Val, low: Operand) -> Val:
    return maximum(x, low)


@pointwise("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(x: Val, high: Operand) -> Val:
    return minimum(x, high)


def _register_binary(op: str, name: str) -> None:
    def apply(x: Val, y: Val) -> Val:
        return binary(name, x, y)

    pointwise(op)(apply)


for _op, _row in (("atan2", "atan2"), ("copysign", "copysign"), ("hypot", "hypot")):
    _register_binary(f"aten.{_op}.{'Tensor' if _op == 'copysign' else 'default'}", _row)


@lowering("aten.nextafter.default")
def nextafter(b: Builder, x: Tensor, other: Tensor) -> Tensor:
    """The next value after x toward other in their dtype.

    A bf16 is an f32 whose last 16 bits are 0, so that its step is 2 ** 16 of the f32's, which is
    exact; only the step back from infinity is not a difference.
    """
    dtype = b.spec.dtype
    if dtype is DType.F16:
        raise LoweringError("W203", "the next f16")
    reads = [(read_as(t, dtype), t.shape) for t in (x, other)]

    def body(idx: Idx) -> Val:
        a, z = (read(broadcast(idx, shape)) for read, shape in reads)
        near = binary("nextafter", a, z)
        if dtype is not DType.BF16:
            return near
        far = where(unary("isinf", a), lift(_LAST_BF16, a.dtype), a + (near - a) * 65536.0)
        far = where(equal(a, 0), far, binary("copysign", far, a))
        return where(equal(a, z), z, where(isnan(z), z, far))

    return b.emit(body)


_LAST_BF16 = 255 * 2.0**120


@pointwise("aten.copysign.Scalar")
def copysign_number(x: Val, y: int | float) -> Val:
    return binary("copysign", x, y)


@pointwise("aten.lerp.Scalar", "aten.lerp.Tensor", wide=True)
def lerp(x: Val, y: Val, weight: Operand) -> Val:
    """x + weight * (y - x), from the nearer end."""
    w = lift(weight, x.dtype)
    near = fma(w, y - x, x)
    far = fma(-(y - x), 1 - w, y)
    if isinstance(w.s, Const):
        return near if abs(w.s.value) < 0.5 else far
    return where(absolute(w) < 0.5, near, far)


@pointwise("aten.addcmul.default", wide=True)
def addcmul(x: Val, a: Val, b: Val, value: int | float = 1) -> Val:
    if not x.dtype.is_float:
        return x + (a if value == 1 else a * value) * b
    return fma(a if value == 1 else a * value, b, x)


@pointwise("aten.addcdiv.default", wide=True)
def addcdiv(x: Val, a: Val, b: Val, value: int | float = 1) -> Val:
    return x + (a if value == 1 else a * value) / b


@pointwise("aten.ldexp.Tensor")
def ldexp(x: Val, y: Val) -> Val:
    return x * unary("exp2", y)


@pointwise("aten.xlogy.Tensor", "aten.special_xlogy.default", "aten.xlogy.Scalar_Other",
           "aten.xlogy.Scalar_Self")  # fmt: skip
def xlogy(x: Operand, y: Operand) -> Val:
    """x * log(y), 0 where x is 0, NaN where y is NaN."""
    return _xlog(x, y, log)


@pointwise("aten.special_xlog1py.default")
def xlog1py(x: Operand, y: Operand) -> Val:
    return _xlog(x, y, log1p)


def _xlog(x: Operand, y: Operand, function: object) -> Val:
    if isinstance(x, Val):
        y = lift(y, x.dtype)
    assert isinstance(y, Val) and callable(function)
    x = lift(x, y.dtype)
    value: Val = x * function(y)
    return where(isnan(y), math.nan, where(equal(x, 0), 0, value))


@pointwise("aten.logaddexp.default")
def logaddexp(x: Val, y: Val) -> Val:
    m = maximum(x, y)
    value = m + log1p(exp(-absolute(x - y)))
    return where(unary("isinf", x) & equal(x, y), x, value)


@pointwise("aten.logaddexp2.default")
def logaddexp2(x: Val, y: Val) -> Val:
    m = maximum(x, y)
    value = m + log1p(unary("exp2", -absolute(x - y))) * (1 / math.log(2))
    return where(unary("isinf", x) & equal(x, y), x, value)


@pointwise("aten.logit.default", "aten.special_logit.default")
def logit(x: Val, eps: float | None = None) -> Val:
    if eps is not None:
        x = where(x < eps, eps, where(x > lift(1 - eps, x.dtype), 1 - eps, x))
    return log(x / (1 - x))


@pointwise("aten.sinc.default", "aten.special_sinc.default")
def sinc(x: Val) -> Val:
    y = x * math.pi
    return where(equal(x, 0), 1, unary("sin", y) / y)


@pointwise("aten.special_entr.default")
def entr(x: Val) -> Val:
    """-x * log(x); 0 at 0, -inf below."""
    value = where(x > 0, -x * log(x), where(equal(x, 0), 0, lift(-math.inf, x.dtype)))
    return where(isnan(x), x, value)


@pointwise("aten.heaviside.default")
def heaviside(x: Val, y: Val) -> Val:
    one_or_zero = where(x > 0, 1, lift(0, x.dtype)) if x.dtype is not DType.BOOL else x
    if x.dtype.is_float:
        one_or_zero = where(isnan(x), lift(0, x.dtype), one_or_zero)
    return where(equal(x, 0), y, one_or_zero)


@pointwise("aten.round.decimals")
def round_decimals(x: Val, decimals: int) -> Val:
    if not x.dtype.is_float:
        return x
    scale = 10.0 ** abs(decimals)
    if decimals == 0:
        return unary("round", x)
    if decimals > 0:
        return unary("round", x * scale) / scale
    return unary("round", x / scale) * scale


@pointwise("aten.deg2rad.default")
def deg2rad(x: Val) -> Val:
    return x * (math.pi / 180)


@pointwise("aten.rad2deg.default")
def rad2deg(x: Val) -> Val:
    return x * (180 / math.pi)


@pointwise("aten.bitwise_not.default")
def bitwise_not(x: Val) -> Val:
    return ~x if x.dtype is DType.BOOL else unary("bit_not", x)


def _register_bitwise(name: str, on_bool: str, on_int: str) -> None:
    def apply(x: Operand, y: Operand) -> Val:
        dtype = x.dtype if isinstance(x, Val) else y.dtype  # type: ignore[union-attr]
        return binary(on_bool if dtype is DType.BOOL else on_int, x, y)

    ops = [f"aten.bitwise_{name}.{v}" for v in ("Tensor", "Scalar", "Scalar_Tensor")]
    pointwise(*ops)(apply)


for _name in ("and", "or", "xor"):
    _register_bitwise(_name, _name, f"bit_{_name}")


@pointwise("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar",
           "aten.__lshift__.Tensor", "aten.__lshift__.Scalar")  # fmt: skip
def left_shift(x: Val, y: Operand) -> Val:
    return _shift("shl", x, y, lift(0, x.dtype))


@pointwise("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar",
           "aten.__rshift__.Tensor", "aten.__rshift__.Scalar")  # fmt: skip
def right_shift(x: Val, y: Operand) -> Val:
    return _shift("shr", x, y, where(x < 0, lift(-1, x.dtype), 0))


def _shift(name: str, x: Val, y: Operand, beyond: Val) -> Val:
    """The shift, or `beyond` for an amount that the type does not have."""
    if not x.dtype.is_int:
        raise LoweringError("W203", f"shift of {x.dtype.value}")
    bits = x.dtype.bytes * 8
    y = lift(y, x.dtype)
    if isinstance(y.s, Const):
        return binary(name, x, y) if 0 <= y.s.value < bits else beyond
    return where((y < 0) | (y >= bits), beyond, binary(name, x, y))
