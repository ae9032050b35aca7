"""Max and average pools with gradients: generated, positions of maxima saved in few bits."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.ir.dtype import DType
from torchweld.pipeline import STATISTICS

WINDOWS = [w for w in itertools.product((2, 3), (1, 2, 3), (0, 1), (False, True))
           if w[2] <= w[0] // 2]  # fmt: skip

EXACT = {"rtol": 0, "atol": 0}


def check(f, x, *, exact=True):
    """Results and gradients of eager; forward and backward without ATen calls."""
    torchweld.reset()
    mine, other = (x.clone().requires_grad_() for _ in range(2))
    got, want = torchweld.compile(f)(mine), f(other)
    got, want = (y if isinstance(y, tuple) else (y,) for y in (got, want))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **(EXACT if exact else {}))
        assert a.stride() == b.stride()
    tangent = torch.randn_like(want[0])
    got[0].backward(tangent)
    want[0].backward(tangent)
    torch.testing.assert_close(mine.grad, other.grad)
    assert mine.grad.stride() == other.grad.stride()
    (made,) = STATISTICS.compiled
    assert made.externs == 0 and len(made.backwards) == 1 and made.refusal is None
    return made


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_max_pool(window, channels_last):
    k, s, p, ceil = window
    x = torch.randn(2, 3, 9, 10)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    check(lambda x: F.max_pool2d(x.relu(), k, s, p, 1, ceil, return_indices=True), x)
    made = check(lambda x: F.max_pool2d(x.relu(), k, s, p, 1, ceil), x)
    held = {made.executable.program.tensors[n].dtype for n in made.executable.program.outputs}
    assert DType.I16 in held


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_average_pool(window, included):
    k, s, p, ceil = window
    x = torch.randn(2, 3, 9, 10)
    check(lambda x: F.avg_pool2d(x * 2, k, s, p, ceil, included), x, exact=False)


def test_average_pools_with_other_windows():
    images, volumes, rows = (torch.randn(2, 3, *[8] * n) for n in (2, 3, 1))
    check(lambda x: F.avg_pool2d(x * 2, 2, divisor_override=3), images, exact=False)
    check(lambda x: F.avg_pool3d(x * 2, 2), volumes, exact=False)
    check(lambda x: F.avg_pool1d(x * 2, 3, 2, 1), rows, exact=False)


def test_the_first_of_equal_maxima_gets_the_gradient():
    check(lambda x: F.max_pool2d(x.relu(), 3, 2, 1), -torch.ones(1, 2, 8, 8))
    check(lambda x: F.max_pool2d(x * 1, 2), torch.ones(3, 8, 8))


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_windows_of_infinities_and_nan(value):
    x = torch.randn(1, 1, 7, 7)
    x[:, :, :4, :4] = value
    x[:, :, 6, 5:] = value
    check(lambda x: F.max_pool2d(x * 1, 3, 2, 1, return_indices=True), x)


def test_windows_with_gaps_are_left_to_aten():
    torchweld.reset()
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    compiled = torchweld.compile(lambda x: F.max_pool2d(x * 1, 3, 1, 1, 2))
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (want,) = torch.autograd.grad(F.max_pool2d(x * 1, 3, 1, 1, 2).sum(), x)
    torch.testing.assert_close(got, want)
    assert STATISTICS.compiled[0].externs == 2
