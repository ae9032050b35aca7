"""Random fills that must give each element the number that eager gives it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchweld.base.errors import Unsupported
from torchweld.graph.decomps.table import decomposes
from torchweld.graph.layout import memory_order
from torchweld.ir.predicted import is_dense

aten = torch.ops.aten


@decomposes(aten.bernoulli.p)
def bernoulli(self: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """What `self.bernoulli_(p)` writes.

    It goes through memory in order, while this operator numbers the elements by their indices. What
    shares elements cannot be written: there the operator itself was called, as vmap's dropout does.
    """
    if self.is_contiguous():
        return NotImplemented
    if any(s == 0 and n > 1 for n, s in zip(self.shape, self.stride(), strict=True)):
        own = aten.empty_like.default(self, memory_format=torch.contiguous_format)
        return aten.bernoulli.p(own, p, generator=generator)
    order = memory_order(self.shape, self.stride())
    inverse = [order.index(d) for d in range(self.dim())]
    dense = aten.empty_like.default(
        aten.permute.default(self, order), memory_format=torch.contiguous_format
    )
    drawn = aten.bernoulli.p(dense, p, generator=generator)
    return aten.permute.default(drawn, inverse)


@decomposes(aten.normal_functional.default)
def normal(self: Tensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    """What `self.normal_()` writes; the operator itself, which copies a dense layout.

    Errors: Unsupported W201 for other layouts: `normal_` uses another algorithm for them.
    """
    if not is_dense(self.shape, self.stride()):
        raise Unsupported("W201", "normal_ on memory with gaps")
    return NotImplemented
