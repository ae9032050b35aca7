"""Copies that need no operator of their own in a functional graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchweld.base.errors import Unsupported
from torchweld.graph.decomps.table import OWN, decomposes
from torchweld.graph.layout import with_layout

aten = torch.ops.aten


@decomposes(aten.copy.default)
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """`src` with the dtype, shape and (if it is dense) layout of `self`."""
    if self.device != src.device:
        return NotImplemented
    out: Tensor = src
    if out.dtype != self.dtype:
        out = aten._to_copy.default(out, dtype=self.dtype)
    if out.shape != self.shape:
        out = aten.expand.default(out, list(self.shape))
    return with_layout(out, self.stride())


@decomposes(aten._unsafe_view.default)
def unsafe_view(self: Tensor, size: list[int]) -> Any:
    """A plain view: in a functional graph nothing can write through it."""
    return aten.view.default(self, size)


def _view_then_copy(view: OpOverload) -> Callable[..., Any]:
    """The operator that copies what `view` shows."""

    def decomposed(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        shown = view(self, *args, **kwargs)
        return aten.clone.default(shown, memory_format=torch.contiguous_format)

    return decomposed


for _copying, _view in (
    (aten.permute_copy.default, aten.permute.default),
    (aten.transpose_copy.int, aten.transpose.int),
    (aten.t_copy.default, aten.t.default),
    (aten.expand_copy.default, aten.expand.default),
    (aten.slice_copy.Tensor, aten.slice.Tensor),
    (aten.select_copy.int, aten.select.int),
    (aten.squeeze_copy.default, aten.squeeze.default),
    (aten.squeeze_copy.dim, aten.squeeze.dim),
    (aten.squeeze_copy.dims, aten.squeeze.dims),
    (aten.unsqueeze_copy.default, aten.unsqueeze.default),
    (aten.diagonal_copy.default, aten.diagonal.default),
    (aten.unfold_copy.default, aten.unfold.default),
    (aten.alias_copy.default, aten.alias.default),
    (aten.detach_copy.default, aten.alias.default),
):
    OWN.add(_copying, _view_then_copy(_view))


@decomposes(aten.unsafe_split.Tensor)
def unsafe_split(self: Tensor, split_size: int, dim: int = 0) -> Any:
    """Plain views: nothing can write through them, and outputs get memory of their own."""
    return aten.split.Tensor(self, split_size, dim)


@decomposes(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(self: Tensor, split_sizes: list[int], dim: int = 0) -> Any:
    """Plain views, as `unsafe_split`."""
    return aten.split_with_sizes.default(self, split_sizes, dim)


@decomposes(aten._efficientzerotensor.default)
def efficient_zeros(*args: Any, **kwargs: Any) -> Any:
    """Times infinity, a tensor that knows that it is zero is zero in eager: left to eager.

    Errors: Unsupported W112.
    """
    raise Unsupported("W112", "a tensor of zeros without memory")
