"""Strides: whether two tensors are laid out alike, and copies to a given layout."""

from __future__ import annotations

import torch
from torch import Tensor

from torchweld.ir.predicted import is_dense

aten = torch.ops.aten


def same_strides(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors of one shape are laid out alike; axes of one element do not count.

    b: None means an unknown layout, which only the standard one is taken to equal.
    """
    if b is None:
        return a.is_contiguous()
    if a.numel() == 0:
        return True
    axes = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(x == y for n, x, y in axes if n > 1)


def memory_order(shape: torch.Size, stride: tuple[int, ...]) -> list[int]:
    """The axes from the one with the longest step to the one with the shortest."""
    return sorted(range(len(shape)), key=lambda d: (stride[d], shape[d]), reverse=True)


def with_layout(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """`x`, copied to these strides if it has others and they are those of a dense tensor."""
    if x.stride() == stride or not is_dense(x.shape, stride):
        return x
    order = memory_order(x.shape, stride)
    inverse = [order.index(d) for d in range(x.dim())]
    sorted_copy = aten.clone.default(
        aten.permute.default(x, order), memory_format=torch.contiguous_format
    )
    return aten.permute.default(sorted_copy, inverse)  # type: ignore[no-any-return]
