"""Splits whose results share the memory of their argument although their schemas deny it.

`unsafe_split` only keeps autograd from tracking the views; whoever writes to one writes to all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def split(input: Tensor, split_size: int, dim: int = 0) -> Any:
    """torch.unsafe_split."""
    return torch.split(input, split_size, dim)


def split_with_sizes(input: Tensor, split_sizes: list[int], dim: int = 0) -> Any:
    """torch.unsafe_split_with_sizes."""
    return torch.split(input, split_sizes, dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> Any:
    """torch.unsafe_chunk."""
    return torch.chunk(input, chunks, dim)


SPLITS: dict[Any, Callable[..., Any]] = {
    torch.unsafe_split: split,
    torch.unsafe_split_with_sizes: split_with_sizes,
    torch.unsafe_chunk: chunk,
}
SPLIT_METHODS: dict[str, Callable[..., Any]] = {f.__name__: g for f, g in SPLITS.items()}
