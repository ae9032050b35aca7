"""Operators whose results have other strides than torch predicts for them.

`_fft_r2c` up to torch 2.12, unless the last dimension is transformed (pytorch/pytorch#106623), and
all three transforms without MKL; `max_unpool2d` of channels that lie next to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchweld.graph.functional import below_functionalization
from torchweld.graph.layout import same_strides

aten = torch.ops.aten

_DOUBTFUL = frozenset((
    aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default, aten.max_unpool2d.default,
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Layout:
    """A CPU tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def mispredicted(func: OpOverload, args: tuple[Any, ...], predicted: object) -> bool:
    """Whether the real result of a doubtful operator is laid out otherwise than `predicted`.

    Cost: the operator itself, once for each layout of its arguments: its kernel decides.
    """
    if func not in _DOUBTFUL or not isinstance(predicted, Tensor) or predicted.numel() < 2:
        return False
    if predicted.device.type != "cpu":
        return False
    real = _strides(func, tuple(_each(args, Tensor, _layout, tuple)))
    like = torch.empty_strided(predicted.shape, real, dtype=predicted.dtype, device="meta")
    return not same_strides(predicted, like)


@lru_cache(maxsize=256)
def _strides(func: OpOverload, args: tuple[Any, ...]) -> tuple[int, ...]:
    """The strides of the kernel's result, for arguments that are zero."""
    with below_functionalization():
        made: Tensor = func(*_each(args, _Layout, _zeros, list))
        return tuple(made.stride())


def _each(args: Any, kind: type, change: Callable[[Any], Any], container: type) -> Any:
    """The arguments with every `kind` changed, in containers of one type."""
    if isinstance(args, (tuple, list)):
        return container(_each(a, kind, change, container) for a in args)
    return change(args) if isinstance(args, kind) else args


def _layout(x: Tensor) -> _Layout:
    return _Layout(tuple(x.shape), x.stride(), x.dtype)


def _zeros(x: _Layout) -> Tensor:
    return torch.empty_strided(x.shape, x.strides, dtype=x.dtype).zero_()
