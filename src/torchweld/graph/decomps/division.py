"""Division by a number on a GPU: eager multiplies by the number's reciprocal there.

Source: the CUDA kernel of true division in ATen, whose comment says that a bit may be lost.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchweld.graph.decomps.table import decomposes
from torchweld.ir.rounding import round_f32

aten = torch.ops.aten


@decomposes(aten.div.Tensor, aten.div.Scalar)
def div(self: Tensor, other: Any) -> Any:
    """`self` times the reciprocal, taken in the type that the kernel computes in."""
    if not isinstance(self, Tensor) or self.device.type == "cpu" or self.is_complex() or (
            not isinstance(other, int | float)):  # fmt: skip
        return NotImplemented
    wide = torch.result_type(self, 1.0) is torch.float64
    return aten.mul.Tensor(self, reciprocal(float(other), wide=wide))


def reciprocal(x: float, *, wide: bool) -> float:
    """1 / x as f64 has it if `wide`, else as f32 has it of x rounded to f32."""
    if not wide:
        x = round_f32(x)
    if x == 0:
        return math.copysign(math.inf, x)
    return 1 / x if wide else round_f32(1 / x)
