"""Backwards of views, and of losses, in terms of operators that are fused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchweld.graph.decomps.table import decomposes

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def _zeros(like: Tensor, sizes: list[int]) -> Tensor:
    made: Tensor = aten.full.default(sizes, 0, dtype=like.dtype, device=like.device)
    return made


@decomposes(aten.slice_backward.default)
def slice_backward(grad_output: Tensor, input_sizes: list[int], dim: int, start: int, end: int,
                   step: int) -> Any:  # fmt: skip
    """The gradient in its place, zero elsewhere."""
    whole = _zeros(grad_output, input_sizes)
    return aten.slice_scatter.default(whole, grad_output, dim, start, end, step)


@decomposes(aten.select_backward.default)
def select_backward(grad_output: Tensor, input_sizes: list[int], dim: int, index: int) -> Any:
    """The gradient in its place, zero elsewhere."""
    return aten.select_scatter.default(_zeros(grad_output, input_sizes), grad_output, dim, index)


@decomposes(aten.diagonal_backward.default)
def diagonal_backward(grad_output: Tensor, input_sizes: list[int], offset: int, dim1: int,
                      dim2: int) -> Any:  # fmt: skip
    """The gradient in its place, zero elsewhere."""
    whole = _zeros(grad_output, input_sizes)
    return aten.diagonal_scatter.default(whole, grad_output, offset, dim1, dim2)


@decomposes(aten.mse_loss_backward.default)
def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Any:
    """Twice the difference; divided by the number of elements for a mean."""
    if self.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    factor = 2.0 / self.numel() if reduction == MEAN and self.numel() else 2.0
    return aten.mul.Tensor(aten.mul.Tensor(aten.sub.Tensor(self, target), factor), grad_output)


@decomposes(aten.nll_loss_backward.default)
def nll_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None,
                      reduction: int, ignore_index: int, total_weight: Tensor) -> Any:  # fmt: skip
    """-gradient at each target's class, zero elsewhere: a comparison, not a scatter."""
    if weight is not None or self.dim() != 2 or not self.numel():
        return NotImplemented
    classes = aten.arange.default(self.shape[1], dtype=target.dtype, device=self.device)
    column = aten.unsqueeze.default(target, 1)
    hit = aten.bitwise_and.Tensor(aten.eq.Tensor(classes, column),
                                  aten.ne.Scalar(column, ignore_index))  # fmt: skip
    if reduction == NONE:
        each = aten.neg.default(aten.unsqueeze.default(grad_output, 1))
    elif reduction == MEAN:
        each = aten.neg.default(aten.div.Tensor(grad_output, total_weight))
    else:
        each = aten.neg.default(grad_output)
    zero = aten.full.default([], 0, dtype=self.dtype, device=self.device)
    return aten.where.self(hit, each, zero)


@decomposes(aten.silu_backward.default, aten.mish_backward.default, aten._fused_rms_norm.default)
def whole(*args: Any) -> Any:
    """Kept: torch would take it apart, and write in place."""
    return NotImplemented
