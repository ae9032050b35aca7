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
