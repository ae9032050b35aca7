"""What is taken apart in graphs with a backward only, so that less has to be saved.

log_softmax   maximum and sum of each row, and what a loop can repeat: the backward computes the
              rest again from its input, which is in memory anyway and often narrower, and the
              forward of a loss over it writes nothing of its size
mm, addmm     of an odd number of columns in half precision on a GPU: cuBLAS computes most of them
              fast, into rows that begin at even addresses, and the rest; those parts are what is
              saved, in the place of a copy of the result
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchweld.graph.rewrites.aligned import ALIGNMENT, LEAST_WORK
from torchweld.ir.sizes import USUAL

aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_LEAST_INNER = 128  # as for products without gradients, lower/contractions.py


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


def mm(self: Tensor, mat2: Tensor) -> Any:
    """The columns that are a multiple of 16 bytes, beside the others."""
    return _in_parts(self, mat2, lambda start, end: aten.mm.default(
        self, aten.slice.Tensor(mat2, 1, start, end)))  # fmt: skip


def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """The same, with a bias of one number a column."""
    if self.shape != mat2.shape[1:] or (beta, alpha) != (1, 1):
        return NotImplemented

    def part(start: int, end: int) -> Tensor:
        bias, columns = (aten.slice.Tensor(x, d, start, end) for x, d in ((self, 0), (mat2, 1)))
        product: Tensor = aten.addmm.default(bias, mat1, columns)
        return product

    return _in_parts(mat1, mat2, part)


def _in_parts(x: Tensor, mat2: Tensor, product: Callable[[int, int], Tensor]) -> Any:
    if x.device.type != "cuda" or x.dtype not in _HALVES or mat2._has_symbolic_sizes_strides:
        return NotImplemented
    unit = ALIGNMENT // x.element_size()
    inner, columns = mat2.shape
    rows = x.shape[0] if isinstance(x.shape[0], int) else USUAL
    most = columns - columns % unit
    if most in (0, columns) or rows * inner * columns < LEAST_WORK or inner < _LEAST_INNER:
        return NotImplemented
    if x.stride() != (inner, 1) or mat2.stride() != (1, inner) or inner % unit:
        return NotImplemented
    return aten.cat.default([product(0, most), product(most, columns)], 1)


WITH_GRADIENTS: dict[OpOverload, Callable[..., Any]] = {
    aten._log_softmax.default: log_softmax, aten.mm.default: mm, aten.addmm.default: addmm,
}  # fmt: skip
