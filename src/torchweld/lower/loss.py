"""Losses: an elementwise distance, and its mean or sum."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr
from torchweld.lower.builder import Builder, broadcast
from torchweld.lower.gather import broadcast_shapes
from torchweld.lower.reduce import Over, Read, combine
from torchweld.lower.registry import reduction
from torchweld.lower.tensor import Idx, Tensor
from torchweld.lower.value import (
    Check,
    Val,
    absolute,
    checked,
    constant,
    equal,
    exp,
    log1p,
    minimum,
    where,
)

NONE, MEAN, SUM = 0, 1, 2


def _reduced(b: Builder, shape: Idx, body: Read, reduction: int) -> Tensor:
    """The values of `body` over `shape`, or their mean or sum."""
    if reduction == NONE:
        return b.emit(body)
    o = Over(shape, frozenset(range(len(shape))), False)
    return combine(b, "sum", o, body, after=(lambda v: v / o.count) if reduction == MEAN else None)


def _read(b: Builder, t: Tensor) -> Read:
    dtype = b.spec.dtype

    def read(idx: Idx) -> Val:
        return t.load(broadcast(idx, t.shape)).to(dtype.compute)

    return read


def _distance(b: Builder, x: Tensor, target: Tensor, reduction: int,
              f: Callable[[Val], Val]) -> Tensor:  # fmt: skip
    if not b.spec.dtype.is_float:
        raise LoweringError("W203", f"loss of {b.spec.dtype.value}")
    a, t = _read(b, x), _read(b, target)
    shape = broadcast_shapes([x.shape, target.shape])
    return _reduced(b, shape, lambda idx: f(a(idx) - t(idx)), reduction)


def _rounded(v: Val, dtype: DType) -> Val:
    """What eager keeps in `dtype`, to compute with."""
    return v.to(dtype).to(v.dtype)


@reduction("aten.mse_loss.default")
def mse_loss(b: Builder, x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    kept = b.spec.dtype

    def f(d: Val) -> Val:
        d = _rounded(d, kept)
        return _rounded(d * d, kept)

    return _distance(b, x, target, reduction, f)


@reduction("aten.smooth_l1_loss.default")
def smooth_l1_loss(b: Builder, x: Tensor, target: Tensor, reduction: int = MEAN,
                   beta: float = 1.0) -> Tensor:  # fmt: skip
    def f(d: Val) -> Val:
        z = absolute(d)
        return z if beta == 0 else where(z < beta, z * z * 0.5 / beta, z - 0.5 * beta)

    return _distance(b, x, target, reduction, f)


@reduction("aten.huber_loss.default")
def huber_loss(b: Builder, x: Tensor, target: Tensor, reduction: int = MEAN,
               delta: float = 1.0) -> Tensor:  # fmt: skip
    def f(d: Val) -> Val:
        z = absolute(d)
        return where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta)

    return _distance(b, x, target, reduction, f)


@reduction("aten.binary_cross_entropy_with_logits.default")
def bce_with_logits(b: Builder, x: Tensor, target: Tensor, weight: Tensor | None = None,
                    pos_weight: Tensor | None = None,
                    reduction: int = MEAN) -> Tensor:  # fmt: skip
    """(1 - t) * x - log_sigmoid(x), the latter scaled where positives are weighted."""
    a, t = _read(b, x), _read(b, target)

    def body(idx: Idx) -> Val:
        v, y = a(idx), t(idx)
        log_sigmoid = _rounded(minimum(v, 0) - log1p(exp(-absolute(v))), x.dtype)
        if pos_weight is not None:
            kept = pos_weight.dtype
            more = _rounded(_rounded(_read(b, pos_weight)(idx) - 1, kept) * y, kept)
            log_sigmoid = _rounded(log_sigmoid * _rounded(more + 1, kept), x.dtype)
        out = _rounded(_rounded(1 - y, target.dtype) * v, target.dtype)
        out = _rounded(out - log_sigmoid, target.dtype)
        return out if weight is None else _rounded(out * _read(b, weight)(idx), target.dtype)

    return _reduced(b, broadcast_shapes([x.shape, target.shape]), body, reduction)


@reduction("aten.soft_margin_loss.default")
def soft_margin_loss(b: Builder, x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    a, t = _read(b, x), _read(b, target)
    shape = broadcast_shapes([x.shape, target.shape])
    dtype = b.spec.dtype

    def body(idx: Idx) -> Val:
        # eager stores the exponential: in f16 it overflows
        grown = exp(-a(idx) * t(idx)).to(dtype).to(dtype.compute)
        return log1p(grown)

    return _reduced(b, shape, body, reduction)


@reduction("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(b: Builder, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int,
             ignore_index: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """-weight[t] * x[.., t, ..], 0 for ignored targets; the second result is the total weight."""
    classes = 1 if len(x.shape) > 1 else 0
    dtype = b.spec.dtype.compute

    def goal(idx: Idx) -> Val:
        return target.load(broadcast(idx, target.shape)).to(DType.I64)

    def scaled(idx: Idx, v: Val, c: Expr) -> Val:
        v = v if weight is None else v * weight.load((c,)).to(dtype)
        return where(equal(goal(idx), ignore_index), 0, v)

    def loss(idx: Idx) -> Val:
        c = checked(goal(idx), x.shape[classes], Check.INDEX)
        at = (idx[0], c, *idx[1:]) if classes else (c,)
        return scaled(idx, -x.load(at).to(dtype), c)

    def weight_at(idx: Idx) -> Val:
        return scaled(idx, constant(1, dtype), checked(goal(idx), x.shape[classes], Check.INDEX))

    if reduction == NONE:
        none = b.emit(lambda idx: constant(0, b.specs[1].dtype), b.specs[1], "weights")
        return b.emit(loss), none
    shape = target.shape
    dims = range(len(shape))
    weights = b.reduce("sum", shape, dims, weight_at, keepdim=False, part="weights")
    losses = b.reduce("sum", shape, dims, loss, keepdim=False, part="losses")

    def body(idx: Idx) -> Val:
        v = losses.load(())
        return v / weights.load(()) if reduction == MEAN else v

    return b.emit(body), b.emit(weights.load, b.specs[1], "total_weight")
