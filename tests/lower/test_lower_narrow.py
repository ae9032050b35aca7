"""Operators that must meet eager's own bf16, element by element."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check, externs

EXACT = (0.0, 0.0)
EVERY = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("toward", [0.0, -0.0, 1.0, -3e38, math.inf, -math.inf, math.nan])
def test_next_value_of_every_bf16(toward: float) -> None:
    z = torch.tensor(toward, dtype=torch.bfloat16)
    g = check(torch.nextafter, EVERY, z, tol=EXACT)
    assert not externs(g)
    if toward == toward:
        check(lambda x, z: torch.signbit(torch.nextafter(x, z)), EVERY[~EVERY.isnan()], z)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("channels", [2, 5])
def test_trilinear_weights_are_rounded_where_eager_does(
    layout: torch.memory_format, channels: int
) -> None:
    x = (torch.randn(2, channels, 4, 3, 5) * 5).bfloat16().to(memory_format=layout)
    got = check(lambda x: F.interpolate(x, (5, 4, 6), mode="trilinear", align_corners=True), x,
                tol=(8e-3, 1e-6))  # fmt: skip
    assert not externs(got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_infinity_is_what_eager_says(dtype: torch.dtype, approximate: str) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 3e38, -3e38, 1.0, -1.0, 0.5] * 8, dtype=dtype)
    for y in (x, x[:1], x[5:6], x[::2], x.view(8, 8).t()):
        check(lambda x: F.gelu(x, approximate=approximate), y)


NARROW = [torch.bfloat16, torch.float16]


def kept_steps(dtype: torch.dtype) -> torch.Tensor:
    """Values at 0.1, 0.3, 0.7 and 1.1, which no narrow float is, and those next to them."""
    middle = torch.tensor([0.1, 0.3, 0.7, 1.1]).to(dtype).view(torch.int16)
    found = torch.stack([middle + k for k in (-1, 0, 1)]).to(torch.int16).view(dtype)
    return torch.cat([found, -found]).flatten()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("bound", [0.1, 0.3, 0.7, 1.1])
def test_bounds_of_activations_are_not_rounded(dtype: torch.dtype, bound: float) -> None:
    x, g = kept_steps(dtype), torch.full((24,), 3.0, dtype=dtype)
    check(lambda x: F.threshold(x, bound, 0.2), x, tol=EXACT)
    check(lambda g, x: torch.ops.aten.threshold_backward(g, x, bound), g, x, tol=EXACT)
    check(lambda g, x: torch.ops.aten.hardtanh_backward(g, x, -bound, bound), g, x, tol=EXACT)


LOSSES = {
    "mse": lambda x, y, how: F.mse_loss(x, y, reduction=how),
    "logits": lambda x, y, how: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=how),
    "weights": lambda x, y, how: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), y, pos_weight=y * 2, reduction=how),
    "wide targets": lambda x, y, how: F.binary_cross_entropy_with_logits(
        x, y.float().sigmoid(), reduction=how),
}  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_round_what_eager_stores(name: str, dtype: torch.dtype) -> None:
    x, y = (torch.randn(97).to(dtype) for _ in "xy")
    check(lambda x, y: LOSSES[name](x, y, "none"), x, y, tol=EXACT)
    check(lambda x, y: LOSSES[name](x, y, "mean"), x, y)


def test_cubes_of_bf16_are_rounded_twice() -> None:
    x = EVERY[EVERY.isfinite()]
    check(lambda x: (x**3, x**-2), x[: x.numel() // 16 * 16], tol=EXACT)
