"""Average pools with gradients: forward and backward are generated."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.pipeline import STATISTICS

WINDOWS = [w for w in itertools.product((2, 3), (1, 2, 3), (0, 1), (False, True))
           if w[2] <= w[0] // 2]  # fmt: skip


def check(f, x):
    """Results and gradients of eager; forward and backward without ATen calls."""
    torchweld.reset()
    mine, other = (x.clone().requires_grad_() for _ in range(2))
    compiled = torchweld.compile(f)
    got, want = compiled(mine), f(other)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    tangent = torch.randn_like(want)
    got.backward(tangent)
    want.backward(tangent)
    torch.testing.assert_close(mine.grad, other.grad)
    assert mine.grad.stride() == other.grad.stride()
    (made,) = STATISTICS.compiled
    assert made.externs == 0 and len(made.backwards) == 1 and made.refusal is None


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_average_pool(window, included):
    k, s, p, ceil = window
    x = torch.randn(2, 3, 9, 10)
    check(lambda x: F.avg_pool2d(x * 2, k, s, p, ceil, included), x)
    check(lambda x: F.avg_pool2d(x * 2, k, s, p, ceil, included),
          x.contiguous(memory_format=torch.channels_last))  # fmt: skip


def test_average_pools_with_other_windows():
    images, volumes, rows = (torch.randn(2, 3, *[8] * n) for n in (2, 3, 1))
    check(lambda x: F.avg_pool2d(x * 2, 2, divisor_override=3), images)
    check(lambda x: F.avg_pool3d(x * 2, 2), volumes)
    check(lambda x: F.avg_pool1d(x * 2, 3, 2, 1), rows)
