"""log_softmax for graphs with a backward: maximum and sum of each row, and what a loop can repeat.

The backward then computes log_softmax again from its input, which is in memory anyway and often
narrower, and the forward of a loss over it writes nothing of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)


def log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    """x - max - log(sum(exp(x - max))), in f32 where x is narrower."""
    if not self.numel():
        return NotImplemented
    narrow = self.dtype in _HALVES
    x = aten._to_copy.default(self, dtype=torch.float32) if narrow else self
    shifted = aten.sub.Tensor(x, aten.amax.default(x, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    out = aten.sub.Tensor(shifted, aten.log.default(total))
    return aten._to_copy.default(out, dtype=self.dtype) if narrow and not half_to_float else out


WITH_GRADIENTS: dict[OpOverload, Callable[..., Any]] = {aten._log_softmax.default: log_softmax}
