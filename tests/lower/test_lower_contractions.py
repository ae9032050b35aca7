"""Which library call a matrix product becomes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check, externs, nests

from torchweld.base import config

TOLERANCE = (1e-4, 1e-4)
ONEDNN = "mkldnn._linear_pointwise.default"
needs_onednn = pytest.mark.parametrize("linear", [ONEDNN] * torch.backends.mkldnn.is_available())


def operands(rows: int = 64, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(rows, 256, dtype=dtype), torch.randn(512, 256, dtype=dtype),
            torch.randn(512, dtype=dtype)]  # fmt: skip


@needs_onednn
def test_large_linear_takes_the_weight_as_it_lies(linear: str) -> None:
    g = check(F.linear, *operands(), tol=TOLERANCE)
    assert externs(g) == [linear] and not nests(g)


@needs_onednn
def test_weight_that_is_stored_transposed_is_not_copied(linear: str) -> None:
    x, w, b = operands()
    g = check(lambda x, w, b: torch.addmm(b, x, w), x, w.t().contiguous(), b, tol=TOLERANCE)
    assert externs(g) == [linear] and not nests(g)


@needs_onednn
@pytest.mark.parametrize("row", [torch.randn(1, 1024), torch.randn(1024, 3)[:, :1].t()])
def test_one_row_by_a_large_weight(linear: str, row: torch.Tensor) -> None:
    """Adjacent elements are what the library needs; a row with steps stays with BLAS."""
    g = check(F.linear, row, torch.randn(4096, 1024), tol=TOLERANCE)
    assert externs(g) == [linear if row.stride(1) == 1 else "aten.mm.default"]


@needs_onednn
def test_batched_input_without_bias(linear: str) -> None:
    x, w, _ = operands()
    g = check(lambda x, w: x.view(4, 16, 256) @ w.t(), x, w, tol=TOLERANCE)
    assert externs(g) == [linear]


def test_nan_survives_the_relu_after_a_linear() -> None:
    x, w, b = operands()
    b[3] = math.nan
    check(lambda x, w, b: F.relu(F.linear(x, w, b)), x, w, b, tol=TOLERANCE)


@pytest.mark.parametrize("args", [operands(4), operands(64, torch.float64),
                                  operands(64, torch.bfloat16)])  # fmt: skip
def test_small_and_other_products_stay_with_blas(args: list[torch.Tensor]) -> None:
    g = check(F.linear, *args, tol=(2e-2, 2e-2))
    assert externs(g) == ["aten.addmm.default"]


def test_scaled_product_stays_with_blas() -> None:
    x, w, b = operands()
    g = check(lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2), x, w, b, tol=TOLERANCE)
    assert externs(g) == ["aten.addmm.default"]


def test_choice_can_be_skipped() -> None:
    with config.override(skip=("contractions",)):
        assert externs(check(F.linear, *operands())) == ["aten.addmm.default"]


OUTER = (torch.Tensor.bmm, lambda x, y: x[0].mm(y[0]),
         lambda x, y: torch.addmm(y[0, 0], x[0], y[0]),
         lambda x, y: torch.addmm(x[1] - y[1], x[0], y[0]),
         lambda x, y: torch.baddbmm(y, x, y))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", OUTER)
def test_product_of_inner_size_1_is_a_multiplication(fn: Any, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 5, 1).to(dtype), torch.randn(2, 1, 7).to(dtype)
    x[0, 0], x[0, 1], y[0, 0, 2], y[0, 0, 3] = math.inf, math.nan, 0.0, -math.inf
    g = check(fn, x, y, tol=(2e-3, 2e-3))
    assert not externs(g)


def test_scaled_product_of_inner_size_1_stays_with_blas() -> None:
    x, y = torch.randn(2, 5, 1), torch.randn(2, 1, 7)
    g = check(lambda x, y: torch.baddbmm(y, x, y, beta=2), x, y)
    assert externs(g) == ["aten.baddbmm.default"]
