"""Softmax and its relatives: a maximum, a sum, and a normalisation."""

from __future__ import annotations

from torchweld.base.errors import LoweringError
from torchweld.lower.builder import Builder
from torchweld.lower.reduce import Over, over, read_as
from torchweld.lower.registry import reduction
from torchweld.lower.tensor import Idx, Tensor
from torchweld.lower.value import Val, equal, exp, isinf, log, where


@reduction("aten._softmax.default")
def softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """exp(x - max) / sum, along `dim`."""
    if not x.dtype.is_float:
        raise LoweringError("W203", f"softmax of {x.dtype.value}")
    o = over(x, dim)
    _, e, total = _exponentials(b, x, o)
    return b.emit(lambda idx: e.load(idx) / total.load(o.row(idx)))


@reduction("aten._safe_softmax.default")
def safe_softmax(b: Builder, x: Tensor, dim: int) -> Tensor:
    """Softmax in which rows that are -inf throughout give 0."""
    o = over(x, dim)
    top, e, total = _exponentials(b, x, o)

    def body(idx: Idx) -> Val:
        empty = equal(top.load(o.row(idx)), float("-inf"))
        return where(empty, 0, e.load(idx) / total.load(o.row(idx)))

    return b.emit(body)


def _exponentials(b: Builder, x: Tensor, o: Over) -> tuple[Tensor, Tensor, Tensor]:
    """The row maximum, exp(x - maximum) in a nest of its own, and its row sum."""
    read = read_as(x, b.spec.dtype)
    top = b.reduce("max", x.shape, tuple(o.dims), read, part="max")
    e = b.temp(lambda idx: exp(read(idx) - top.load(o.row(idx))), x, top.dtype, "exp")
    return top, e, b.reduce("sum", x.shape, tuple(o.dims), e.load, part="sum")


@reduction("aten._log_softmax.default")
def log_softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """x - max - log(sum(exp(x - max))), along `dim`."""
    if not x.dtype.is_float:
        raise LoweringError("W203", f"softmax of {x.dtype.value}")
    o = over(x, dim)
    read = read_as(x, b.spec.dtype)
    top = b.reduce("max", x.shape, tuple(o.dims), read, part="max")

    def shifted(idx: Idx) -> Val:
        return read(idx) - top.load(o.row(idx))

    total = b.reduce("sum", x.shape, tuple(o.dims), lambda idx: exp(shifted(idx)), part="sum")
    return b.emit(lambda idx: shifted(idx) - log(total.load(o.row(idx))))


@reduction("aten.logsumexp.default")
def logsumexp(b: Builder, x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))), shifted by a maximum that counts as 0 when infinite."""
    o = over(x, dim, keepdim)
    read = read_as(x, b.spec.dtype)
    top = b.reduce("max", x.shape, tuple(o.dims), read, part="max")

    def shift(row: Idx) -> Val:
        m = top.load(row)
        return where(isinf(m), 0, m)

    def shifted(idx: Idx) -> Val:
        return exp(read(idx) - shift(o.row(idx)))

    total = b.reduce("sum", x.shape, tuple(o.dims), shifted, part="sum")
    return b.emit(lambda idx: log(total.load(o.kept(idx))) + shift(o.kept(idx)))
