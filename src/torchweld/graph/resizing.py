"""interpolate by a factor that leaves a size as it is: eager's kernels on a CPU copy then.

So do those of the nearest element where the size becomes twice as large; torch's decompositions and
ours compute positions by the factor that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# by what the size may grow, in which modes, for its factor not to matter
_COPIES: dict[str, tuple[int, ...]] = {
    "nearest": (1, 2), "linear": (1,), "bilinear": (1,), "trilinear": (1,),
}  # fmt: skip


def interpolate(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
                antialias: bool = False) -> Tensor:  # fmt: skip
    """torch.nn.functional.interpolate."""
    by_factor = scale_factor is not None and not (recompute_scale_factor or align_corners)
    if by_factor and input.device.type == "cpu" and not antialias:
        sizes = input.shape[2:]
        given = [scale_factor] * len(sizes) if isinstance(scale_factor, (int, float)) else (
            list(scale_factor))  # fmt: skip
        if len(given) == len(sizes) and all(type(n) is int for n in sizes):
            scale_factor = [_factor(n, s, _COPIES.get(mode, ())) for n, s in zip(
                sizes, given, strict=True)]  # fmt: skip
    return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor,
                         antialias)  # fmt: skip


def _factor(n: int, factor: Any, copies: tuple[int, ...]) -> Any:
    plain = type(factor) in (int, float)
    whole = next((k for k in copies if plain and math.floor(n * float(factor)) == k * n), None)
    return factor if whole is None else float(whole)


RESIZED: dict[Any, Callable[..., Any]] = {torch.nn.functional.interpolate: interpolate}
