"""What a GradScaler calls: gradients divided by the scale, and the scale after a step.

Source: what eager gives; scales are f32, factors are f64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchweld.graph.decomps.table import decomposes

aten = torch.ops.aten


@decomposes(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscale(self: Sequence[Tensor], found_inf: Tensor,
            inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Each gradient times `inv_scale`; 1 for `found_inf` if one was infinite or NaN."""
    made = []
    for x in self:
        all_finite = aten.all.default(_is_finite(x))
        found_inf = aten.where.self(all_finite, found_inf, aten.ones_like.default(found_inf))
        wide = aten._to_copy.default(x, dtype=inv_scale.dtype) if x.dtype.itemsize < 4 else x
        made.append(aten._to_copy.default(aten.mul.Tensor(wide, inv_scale), dtype=x.dtype))
    return made, found_inf


@decomposes(aten._amp_update_scale.default)
def update_scale(self: Tensor, growth_tracker: Tensor, found_inf: Tensor,
                 scale_growth_factor: float, scale_backoff_factor: float,
                 growth_interval: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Smaller after an infinite gradient, larger after enough steps without one."""
    infinite = aten.ne.Scalar(found_inf, 0)
    count = aten.add.Scalar(growth_tracker, 1)
    full = aten.eq.Scalar(count, growth_interval)
    wide = aten._to_copy.default(self, dtype=torch.float64)
    smaller = aten._to_copy.default(aten.mul.Scalar(wide, scale_backoff_factor), dtype=self.dtype)
    larger = aten._to_copy.default(aten.mul.Scalar(wide, scale_growth_factor), dtype=self.dtype)
    grows = aten.logical_and.default(full, _is_finite(larger))
    grown = aten.where.self(grows, larger, self)
    zero = aten.zeros_like.default(growth_tracker)
    stays = aten.where.self(full, zero, count)
    return aten.where.self(infinite, smaller, grown), aten.where.self(infinite, zero, stays)


def _is_finite(x: Tensor) -> Tensor:
    finite: Tensor = aten.lt.Scalar(aten.abs.default(x), math.inf)
    return finite
