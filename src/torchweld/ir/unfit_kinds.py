"""Dtypes and empty shapes that torch's fake kernels take, where ATen's own kernels refuse them.

There is no table of what kernels take: they are asked. A call whose tensors have no elements, or
whose first tensor is of a dtype that many kernels lack, is made once on small tensors like its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from torchweld.ir.nested import tensors_in
from torchweld.ir.predicted import below_functionalization
from torchweld.ir.size_node import is_number

_MOST = 1 << 16  # elements of all tensors of a call that is made in its own shapes
_EVERYWHERE = frozenset((torch.float32, torch.float64, torch.bfloat16))
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip
_GENERATORS = (torch.Tag.nondeterministic_seeded,)
_KIND_SAYS = re.compile(r"not implemented for '|does not support|not supported|with a bool tensor")


@dataclass(frozen=True, slots=True)
class _Like:
    """A tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def refused_kind(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why the kernel refuses the dtypes or the empty shapes of a call, or None.

    Cost: the operator itself, once for each look of such a call.
    """
    tensors = list(tensors_in((*args, *kwargs.values())))
    if not tensors or not _asked(func):
        return None
    empty = any(x.numel() == 0 for x in tensors if not is_number(x.numel()))
    if not empty and not _is_rare(tensors[0]):
        return None
    small = not empty and torch.Tag.pointwise in func.tags
    if not small and not _is_small(tensors):
        return None
    try:
        named = tuple((k, _changed(v, Tensor, _looks(small))) for k, v in sorted(kwargs.items()))
        return _answer(func, _changed(tuple(args), Tensor, _looks(small)), named, empty)
    except TypeError:  # an argument that cannot be remembered
        return None


@lru_cache(maxsize=4096)
def _asked(func: OpOverload) -> bool:
    """Whether a call may be made: it draws no random numbers, and is one of ATen's own."""
    return func.namespace == "aten" and not any(t in func.tags for t in _GENERATORS)


def _is_rare(x: Tensor) -> bool:
    """Whether many kernels lack its dtype."""
    return x.dtype not in _EVERYWHERE and (x.dtype is not torch.float16 or x.device.type == "cpu")


def _is_small(tensors: Sequence[Tensor]) -> bool:
    sizes = [n for x in tensors for n in (*x.shape, *x.stride())]
    return not any(map(is_number, sizes)) and sum(x.numel() for x in tensors) <= _MOST


def _looks(small: bool) -> Callable[[Tensor], _Like]:
    """How to describe a tensor. small: with one element in each dimension."""

    def look(x: Tensor) -> _Like:
        ones = (1,) * x.dim()
        shape, strides = (ones, ones) if small else (tuple(x.shape), x.stride())
        return _Like(shape, strides, x.dtype, x.device)

    return look


@lru_cache(maxsize=4096)
def _answer(func: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...],
            empty: bool) -> str | None:  # fmt: skip
    """What the kernel says to tensors like these: any error counts of an empty one."""
    fill = 1 if torch.Tag.pointwise in func.tags else 0  # 1 is a divisor, 0 a position

    def made(like: _Like) -> Tensor:
        x = torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=like.device)
        return x.fill_(fill)

    with _disable_current_modes(), below_functionalization(), torch.no_grad():
        try:
            func(*_changed(args, _Like, made, list), **dict(_changed(kwargs, _Like, made, list)))
        except Exception as error:
            if empty or _KIND_SAYS.search(str(error)):
                return str(error).partition("\n")[0]
    return None


def _changed(x: Any, kind: type, change: Callable[[Any], Any], container: type = tuple) -> Any:
    """The arguments with every `kind` changed, in containers of one type."""
    if isinstance(x, tuple | list):
        return container(_changed(i, kind, change, container) for i in x)
    if not isinstance(x, (kind, *_PLAIN)):
        raise TypeError(type(x))  # a storage or generator is nobody's to hold
    return change(x) if isinstance(x, kind) else x
