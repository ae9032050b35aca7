"""Derivatives of activation functions, element by element, times the gradient that arrives."""

from __future__ import annotations

import math

from torchweld.lower.registry import pointwise
from torchweld.lower.value import (
    Val,
    absolute,
    erf,
    exp,
    log1p,
    sigmoid,
    tanh,
    where,
)


@pointwise("aten.threshold_backward.default", wide="cpu")
def threshold_backward(g: Val, x: Val, limit: float) -> Val:
    return where(x <= limit, 0, g)


@pointwise("aten.sigmoid_backward.default")
def sigmoid_backward(g: Val, y: Val) -> Val:
    return g * (1 - y) * y


@pointwise("aten.tanh_backward.default")
def tanh_backward(g: Val, y: Val) -> Val:
    return g * (1 - y * y)


@pointwise("aten.gelu_backward.default")
def gelu_backward(g: Val, x: Val, approximate: str = "none") -> Val:
    """The normal distribution function plus x times its density, or that of the approximation."""
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        t = tanh(inner)
        slope = (x * x * (3 * 0.044715) + 1) * math.sqrt(2 / math.pi)
        return g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * slope)
    below = (erf(x * math.sqrt(0.5)) + 1) * 0.5
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (below + x * density)


@pointwise("aten.silu_backward.default")
def silu_backward(g: Val, x: Val) -> Val:
    s = sigmoid(x)
    return g * s * (x * (1 - s) + 1)


@pointwise("aten.hardtanh_backward.default", wide=True)
def hardtanh_backward(g: Val, x: Val, low: float, high: float) -> Val:
    return where((x <= low) | (x >= high), 0, g)


@pointwise("aten.hardswish_backward.default")
def hardswish_backward(g: Val, x: Val) -> Val:
    return where(x <= -3, 0, where(x < 3, g * (x / 3 + 0.5), g))


@pointwise("aten.hardsigmoid_backward.default")
def hardsigmoid_backward(g: Val, x: Val) -> Val:
    return where((x > -3) & (x < 3), g * (1 / 6), 0)


@pointwise("aten.leaky_relu_backward.default", wide=True)
def leaky_relu_backward(g: Val, x: Val, slope: float, is_result: bool) -> Val:
    return where(x > 0, g, g * slope)


@pointwise("aten.elu_backward.default", wide=True)
def elu_backward(g: Val, alpha: float, scale: float, input_scale: float, is_result: bool,
                 x: Val) -> Val:  # fmt: skip
    """`x` is the result of elu if `is_result`, else its argument."""
    factor = alpha * scale
    below = (x + factor) * input_scale if is_result else exp(x * input_scale) * (
        factor * input_scale)  # fmt: skip
    return where(x <= 0, g * below, g * scale)


@pointwise("aten.softplus_backward.default", wide=True)
def softplus_backward(g: Val, x: Val, beta: float, threshold: float) -> Val:
    z = exp(x * beta)
    return where(x * beta > threshold, g, g * z / (z + 1))


@pointwise("aten.mish_backward.default")
def mish_backward(g: Val, x: Val) -> Val:
    s, t = sigmoid(x), tanh(log1p(exp(x)))
    return g * (t + x * s * (1 - t * t))


@pointwise("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(g: Val, x: Val, buffer: Val) -> Val:
    """1 - sigmoid(x), from exp(-|x|): the buffer of the forward is empty on a GPU."""
    z = exp(-absolute(x))
    return g * where(x < 0, 1 - z / (z + 1), z / (z + 1))


@pointwise("aten.hardshrink_backward.default", "aten.softshrink_backward.default")
def shrink_backward(g: Val, x: Val, lambd: float) -> Val:
    return where((x >= -lambd) & (x <= lambd), 0, g)


@pointwise("aten.native_dropout_backward.default", keep=(1,), wide=True)
def native_dropout_backward(g: Val, mask: Val, scale: float) -> Val:
    return g * mask.to(g.dtype) * scale
