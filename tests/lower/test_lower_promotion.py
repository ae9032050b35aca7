"""Mixed dtypes, Python numbers and narrow floats give eager's bits."""

from __future__ import annotations

import pytest
import torch
from lower_harness import check

EXACT = (0.0, 0.0)
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
          torch.bool, torch.float64]  # fmt: skip


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = torch.linspace(-3, 300, 12).reshape(shape)
    return x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)


@pytest.mark.parametrize("a", DTYPES, ids=str)
@pytest.mark.parametrize("b", DTYPES, ids=str)
def test_sum_product_and_comparison_of_two_dtypes(a: torch.dtype, b: torch.dtype) -> None:
    x, y = values(a, 3, 4), values(b, 12).flip(0)[:4]
    check(lambda x, y: (x + y, x * y, x < y, torch.maximum(x, y)), x, y, tol=EXACT)
    check(lambda x, y: (x + y, x * y, x >= y), x, values(b, 12)[5], tol=EXACT)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [2, 0.1, True, -7])
def test_python_numbers(dtype: torch.dtype, number: float) -> None:
    check(lambda x: (x + number, x * number, x / 3, x > number), values(dtype, 12), tol=EXACT)


def test_narrow_floats_round_after_every_operator() -> None:
    x = torch.randn(64, dtype=torch.bfloat16)
    check(lambda x: ((x * 1.1 + 0.3) * x - 0.7) / 1.3, x, tol=EXACT)


def test_wrapping_arithmetic() -> None:
    x = torch.tensor([-128, -1, 127, 100], dtype=torch.int8)
    check(lambda x: (x + x, x * x, -x, x - 100, x.abs()), x, tol=EXACT)
    check(lambda x: (x + 200, x * 3, -x), x.to(torch.uint8), tol=EXACT)


def test_wide_integers_are_not_rounded_through_floats() -> None:
    x = torch.tensor([2**62 + 1, -(2**53) - 1, 7])
    check(lambda x: (x + 1, x * 3, x // 10, x % 10, x.sum(), x.cumsum(0), x.amax()), x, tol=EXACT)
