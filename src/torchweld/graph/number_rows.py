"""Operators whose numbers are floats of C++, written with operators that take any number.

ATen's `Scalar` may be a symbolic float (graph/numbers.py), its `float` may not. What has such ones
is taken apart here, as eager composes it where eager does; graph/number_draws.py has those that
draw. Shapes, dtypes: those of the operator. Errors: Unsupported W208 for what is not written here:
then the number is none that changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchweld.graph.number_lists import refused

_TORCH: Any = torch
_NN: Any = torch._C._nn
_WIDE = (torch.float32, torch.float64)
_NONE, _MEAN, _SUM = range(3)


# ---------------------------------------------------------------- losses
def _reduced(x: Tensor, reduction: int) -> Any:
    return x.mean() if reduction == _MEAN else x.sum() if reduction == _SUM else x


def _cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN,
                   ignore_index: int = -100, label_smoothing: Any = 0.0) -> Any:  # fmt: skip
    dim = 0 if x.dim() == 1 else 1
    n = x.shape[dim]
    plain = _NN.cross_entropy_loss
    if target.is_floating_point():
        smoothed = target * (1 - label_smoothing) + label_smoothing / n
        return plain(x, smoothed, weight, reduction, ignore_index, 0.0)
    if weight is not None or isinstance(n, torch.SymInt):
        raise refused("label_smoothing with weights of classes")
    logs = torch.log_softmax(x, dim)
    exact = _NN.nll_loss_nd(logs, target, None, reduction, ignore_index)
    ignored = target == ignore_index
    smooth = (-logs.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == _MEAN:
        smooth = smooth.sum() / ignored.logical_not().sum()
    elif reduction == _SUM:
        smooth = smooth.sum()
    return exact * (1 - label_smoothing) + smooth * (label_smoothing / n)


def _smooth_l1(x: Tensor, y: Tensor, reduction: int = _MEAN, beta: Any = 1.0) -> Any:
    z = (x - y).abs()
    return _reduced(torch.where(z < beta, z * z * 0.5 / beta, z - 0.5 * beta), reduction)


def _huber(x: Tensor, y: Tensor, reduction: int = _MEAN, delta: Any = 1.0) -> Any:
    z = (x - y).abs()
    return _reduced(torch.where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta), reduction)


def _margin_ranking(x: Tensor, y: Tensor, target: Tensor, margin: Any = 0.0,
                    reduction: int = _MEAN) -> Any:  # fmt: skip
    return _reduced((-target * (x - y) + margin).clamp_min(0), reduction)


def _hinge_embedding(x: Tensor, target: Tensor, margin: Any = 1.0,
                     reduction: int = _MEAN) -> Any:  # fmt: skip
    zeros = torch.zeros_like(x)
    far = torch.where(target != 1, (margin - x).clamp_min(0), zeros)
    return _reduced(far + torch.where(target != -1, x, zeros), reduction)


def _cosine_embedding(x: Tensor, y: Tensor, target: Tensor, margin: Any = 0.0,
                      reduction: int = _MEAN) -> Any:  # fmt: skip
    dim = target.dim()
    tiny = 9.999999960041972e-13
    lengths = ((x * x).sum(dim) + tiny) * ((y * y).sum(dim) + tiny)
    cosine = (x * y).sum(dim) / lengths.sqrt()
    zeros = torch.zeros_like(cosine)
    near = torch.where(target == 1, 1 - cosine, zeros)
    return _reduced(near + torch.where(target == -1, (cosine - margin).clamp_min(0), zeros),
                    reduction)  # fmt: skip


def _triplet(anchor: Tensor, positive: Tensor, negative: Tensor, margin: Any = 1.0, p: Any = 2.0,
             eps: Any = 1e-6, swap: bool = False, reduction: int = _MEAN) -> Any:  # fmt: skip
    near = _pairwise_distance(anchor, positive, p, eps)
    far = _pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, _pairwise_distance(positive, negative, p, eps))
    return _reduced((near + margin - far).clamp_min(0), reduction)


def _poisson(x: Tensor, target: Tensor, log_input: bool, full: bool, eps: Any,
             reduction: int) -> Any:  # fmt: skip
    if log_input:
        return torch.poisson_nll_loss(x, target, log_input, full, 1e-8, reduction)
    loss = x - target * (x + eps).log()
    if full:
        rest = target * target.log() - target + (target * (2 * math.pi)).log() * 0.5
        loss = loss + rest.masked_fill(target <= 1, 0)
    return _reduced(loss, reduction)


# ---------------------------------------------------------------- norms and distances
def _normalized(x: Tensor, dims: list[int], eps: Any) -> tuple[Tensor, Tensor, Tensor]:
    """x without mean and with variance 1 along dims; mean, and variance."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(dims, keepdim=True)
    return centred * torch.rsqrt(variance + eps), mean, variance


def _along(x: Tensor, like: Tensor) -> Any:
    """One number for each channel, beside a tensor."""
    return x.reshape(1, -1, *(1 for _ in like.shape[2:]))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Any:
    x = x if weight is None else x * _along(weight, x)
    return x if bias is None else x + _along(bias, x)


def _batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None,
                variance: Tensor | None, training: bool, momentum: Any, eps: Any,
                cudnn: bool) -> Any:  # fmt: skip
    if x.dtype not in _WIDE:
        raise refused("a batch norm of half precision")
    if not training and mean is not None and variance is not None:
        out = (x - _along(mean, x)) * _along(torch.rsqrt(variance + eps), x)
        return _scaled(out, weight, bias)
    dims = [d for d in range(x.dim()) if d != 1]
    normal, *found = _normalized(x, dims, eps)
    n = x.numel() // x.shape[1]
    own = [found[0].detach().reshape(-1), found[1].detach().reshape(-1) * (n / (n - 1))]
    out = _scaled(normal, weight, bias)
    with torch.no_grad():
        for old, new in zip((mean, variance), own, strict=True):
            if old is not None:
                old.copy_(new * momentum + old * (1 - momentum))
    return out


def _group_norm(x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
                eps: Any = 1e-5, cudnn: bool = True) -> Any:  # fmt: skip
    if x.dtype not in _WIDE:
        raise refused("a group norm of half precision")
    rows = x.reshape(x.shape[0], groups, -1)
    return _scaled(_normalized(rows, [2], eps)[0].reshape(x.shape), weight, bias)


def _instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None,
                   variance: Tensor | None, uses_input: bool, momentum: Any, eps: Any,
                   cudnn: bool) -> Any:  # fmt: skip
    if x.dtype not in _WIDE or mean is not None or not uses_input:
        raise refused("an instance norm with running statistics, or of half precision")
    return _scaled(_normalized(x, list(range(2, x.dim())), eps)[0], weight, bias)


def _pairwise_distance(x: Tensor, y: Tensor, p: Any = 2.0, eps: Any = 1e-6,
                       keepdim: bool = False) -> Any:  # fmt: skip
    d = x - y + eps
    return torch.norm(d, p, d.dim() - 1, keepdim)


def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: Any = 1e-8) -> Any:
    parts = []
    for t in _TORCH.broadcast_tensors(x, y):
        length = torch.linalg.vector_norm(t, 2, [dim], keepdim=True).clone()
        with torch.no_grad():
            length.clamp_min_(eps)
        parts.append(t / length)
    return (parts[0] * parts[1]).sum(dim)


# ---------------------------------------------------------------- elements
def _nan_to_num(x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if not x.is_floating_point():
        return x.clone()
    limits = torch.finfo(x.dtype)
    rows = ((torch.isnan(x), 0.0 if nan is None else nan),
            (x == float("inf"), limits.max if posinf is None else posinf),
            (x == float("-inf"), limits.min if neginf is None else neginf))  # fmt: skip
    for where, value in rows:
        x = x.masked_fill(where, value)
    return x


def _pad(x: Tensor, pad: list[int], mode: str = "constant", value: Any = None) -> Any:
    if mode != "constant":
        raise refused("the value of a pad that fills in no value")
    return torch.constant_pad_nd(x, pad, value)


def _logit(x: Tensor, eps: Any = None) -> Any:
    inside = x.clamp(eps, 1 - eps)
    return (inside / (1 - inside)).log()


def _isclose(x: Tensor, y: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8,
             equal_nan: bool = False) -> Any:  # fmt: skip
    if not x.is_floating_point():
        raise refused("isclose of what is no float")
    close = x == y
    if equal_nan:
        close = close | (x.isnan() & y.isnan())
    difference = (x - y).abs()
    return close | (difference.isfinite() & (difference <= (y * rtol).abs() + atol))


def _quantile(function: Callable[..., Any]) -> Callable[..., Any]:
    def row(x: Tensor, q: Any, *args: Any, **kwargs: Any) -> Any:
        return function(x, _beside(x, q), *args, **kwargs)

    return row


def _beside(x: Tensor, number: Any) -> Any:
    """A number as a tensor without dimensions of x's dtype."""
    return x.new_ones(()) * number


def _power(x: Any, y: Any) -> Any:
    """x ** y, of which one is a number."""
    of = x if isinstance(x, Tensor) else y
    if not of.is_floating_point():
        raise refused("a power of integers, or of complex numbers")
    wide = of.float() if of.dtype not in _WIDE else of
    number = _beside(wide, y if of is x else x)
    return (torch.pow(wide, number) if of is x else torch.pow(number, wide)).to(of.dtype)


def _lerp(x: Tensor, y: Tensor, weight: Any) -> Any:
    return torch.lerp(x, y, _beside(x, weight))


def _float_power(x: Tensor, exponent: Any) -> Any:
    if not isinstance(x, Tensor) or x.is_complex():
        raise refused("float_power of a number, or of complex ones")
    return _power(x.to(torch.float64), exponent)


def _celu(x: Tensor, alpha: Any = 1.0) -> Any:
    return _NN.elu(x, alpha, 1.0, 1 / alpha)


# ---------------------------------------------------------------- products
def _sum_with(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """x * beta + product(a, b) * alpha: whether they are 1 is asked by the operator's backward."""

    def row(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return x * beta + product(a, b) * alpha

    return row


ROWS: dict[str, Callable[..., Any]] = {
    "cross_entropy_loss": _cross_entropy, "smooth_l1_loss": _smooth_l1, "huber_loss": _huber,
    "margin_ranking_loss": _margin_ranking, "hinge_embedding_loss": _hinge_embedding,
    "cosine_embedding_loss": _cosine_embedding, "triplet_margin_loss": _triplet,
    "poisson_nll_loss": _poisson, "batch_norm": _batch_norm, "group_norm": _group_norm,
    "instance_norm": _instance_norm, "pairwise_distance": _pairwise_distance,
    "cosine_similarity": _cosine_similarity, "nan_to_num": _nan_to_num, "pad": _pad,
    "logit": _logit, "isclose": _isclose, "celu": _celu,
    "float_power": _float_power, "quantile": _quantile(torch.quantile),
    "nanquantile": _quantile(torch.nanquantile),
}  # fmt: skip
# in the place of operators whose backward needs to know the numbers
DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    "pow": _power, "lerp": _lerp, "addmm": _sum_with(torch.mm), "addmv": _sum_with(torch.mv),
    "addr": _sum_with(torch.outer),
    "baddbmm": _sum_with(torch.bmm), "xlogy": lambda x, y: torch.xlogy(x, _beside(x, y)),
    "addbmm": _sum_with(lambda a, b: torch.bmm(a, b).sum(0)),
}  # fmt: skip
