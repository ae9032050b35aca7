"""Activation functions, element by element."""

from __future__ import annotations

import math

import torch

from torchweld.ir.dtype import DType
from torchweld.lower.builder import Builder
from torchweld.lower.reduce import read_as
from torchweld.lower.registry import lowering, pointwise
from torchweld.lower.tensor import Idx, Tensor, elements
from torchweld.lower.value import (
    Val,
    absolute,
    erf,
    exp,
    expm1,
    log1p,
    maximum,
    minimum,
    sigmoid,
    tanh,
    where,
)
from torchweld.lower.views import in_order, sliced, wrap


@pointwise("aten.relu.default")
def relu(x: Val) -> Val:
    return maximum(x, 0)


@pointwise("aten.relu6.default")
def relu6(x: Val) -> Val:
    return minimum(maximum(x, 0), 6)


@pointwise("aten.hardtanh.default")
def hardtanh(x: Val, low: float = -1, high: float = 1) -> Val:
    return minimum(maximum(x, low), high)


@pointwise("aten.silu.default")
def silu(x: Val) -> Val:
    """x * sigmoid(x)."""
    return x / (exp(-x) + 1)


@lowering("aten.gelu.default")
def gelu(b: Builder, x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function, or its approximation by tanh.

    Eager uses oneDNN for two or more adjacent elements of a dtype that oneDNN has here, which
    answers NaN for infinity and overflows above half of the largest f32 (torch 2.11, 2.13): so does
    this.
    """
    read = read_as(x, b.spec.dtype)
    if approximate == "tanh":
        return b.emit(lambda idx: _gelu_by_tanh(read(idx)))
    if b.spec.device != "cpu" or not _by_onednn(x):
        return b.emit(lambda idx: _gelu(read(idx)))

    def body(idx: Idx) -> Val:
        v = read(idx)
        return v * (erf(v * math.sqrt(0.5)) + 1) * 0.5 - (v - v)

    return b.emit(body)


def _gelu(x: Val) -> Val:
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1)


def _gelu_by_tanh(x: Val) -> Val:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (tanh(inner) + 1)


# the questions whether oneDNN computes in a narrow dtype on this processor
_ONEDNN_HAS = {
    DType.BF16: "_is_mkldnn_bf16_supported",
    DType.F16: "_is_mkldnn_fp16_supported",
}


def _by_onednn(x: Tensor) -> bool:
    """Whether eager leaves gelu of `x` to oneDNN."""
    if x.dtype is DType.F64 or _single(x) or not in_order(x, range(len(x.shape))):
        return False
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:  # type: ignore[no-untyped-call]
        return False
    return x.dtype is DType.F32 or bool(getattr(torch.ops.mkldnn, _ONEDNN_HAS[x.dtype])())


def _single(x: Tensor) -> bool:
    """Whether there is at most one element. Errors: TypeError if that is not known."""
    n = elements(x.shape)
    if not n.is_const and (n.lo is None or n.lo < 2):
        raise TypeError(f"{n.text()} elements, which may be one")
    return n.is_const and n.value < 2


@pointwise("aten.mish.default")
def mish(x: Val) -> Val:
    """x * tanh(log(1 + exp(x)))."""
    return x * tanh(log1p(exp(x)))


@pointwise("aten.hardswish.default")
def hardswish(x: Val) -> Val:
    return x * minimum(maximum(x + 3, 0), 6) / 6


@pointwise("aten.hardsigmoid.default")
def hardsigmoid(x: Val) -> Val:
    return minimum(maximum(x + 3, 0), 6) / 6


@pointwise("aten.leaky_relu.default", wide=True)
def leaky_relu(x: Val, slope: float = 0.01) -> Val:
    return where(x > 0, x, x * slope)


@pointwise("aten._prelu_kernel.default")
def prelu(x: Val, weight: Val) -> Val:
    return where(x > 0, x, x * weight)


@pointwise("aten.elu.default", wide=True)
def elu(x: Val, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Val:
    below = expm1(x if input_scale == 1 else x * input_scale) * (alpha * scale)
    return where(x <= 0, below, x if scale == 1 else x * scale)


@pointwise("aten.celu.default", wide=True)
def celu(x: Val, alpha: float = 1) -> Val:
    return elu(x, alpha, 1, 1 / alpha)


@pointwise("aten.selu.default", wide=True)
def selu(x: Val) -> Val:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@pointwise("aten.softplus.default", wide=True)
def softplus(x: Val, beta: float = 1, threshold: float = 20) -> Val:
    y = x * beta
    return where(y > threshold, x, log1p(exp(y)) / beta)


@pointwise("aten.threshold.default", wide="cpu")
def threshold(x: Val, limit: float, value: float) -> Val:
    return where(x <= limit, value, x)


@pointwise("aten.softshrink.default", wide=True)
def softshrink(x: Val, lambd: float = 0.5) -> Val:
    """x moved toward zero by lambd; NaN stays NaN."""
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0))


@pointwise("aten.hardshrink.default")
def hardshrink(x: Val, lambd: float = 0.5) -> Val:
    return where((x >= -lambd) & (x <= lambd), 0, x)


@lowering("aten.log_sigmoid_forward.default")
def log_sigmoid(b: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """min(x, 0) - log(1 + exp(-|x|)); the second result is exp(-|x|), kept for the gradient."""

    def kept(idx: Idx) -> Val:
        return exp(-absolute(x.load(idx).to(x.dtype.compute)))

    def value(idx: Idx) -> Val:
        return minimum(x.load(idx).to(x.dtype.compute), 0) - log1p(kept(idx))

    return b.emit(value), b.emit(kept, b.specs[1], "buffer")


@lowering("aten.glu.default")
def glu(b: Builder, x: Tensor, dim: int = -1) -> Tensor:
    """First half times the sigmoid of the second."""
    d = wrap(dim, len(x.shape))
    half = x.shape[d] // 2
    first, gate = sliced(x, d, 0, half), sliced(x, d, half, half)

    def body(idx: Idx) -> Val:
        compute = x.dtype.compute
        return first.load(idx).to(compute) * sigmoid(gate.load(idx).to(compute))

    return b.emit(body)
