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


# ---------------------------------------------------------------- results that are returned


def gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The gradient of a weight of 2 MB."""
    return (g.t() @ x).view(2, 512, 512)


@needs_onednn
def test_a_large_result_that_is_returned_is_written_into_kept_memory(linear: str) -> None:
    g = check(gradient, torch.randn(64, 512), torch.randn(64, 1024), tol=TOLERANCE)
    assert externs(g) == ["aten.mm.default"] and not nests(g)


@needs_onednn
def test_a_product_that_other_loops_read_is_onednns(linear: str) -> None:
    g = check(lambda x, g: gradient(x, g) + 1.0, torch.randn(64, 512), torch.randn(64, 1024),
              tol=TOLERANCE)  # fmt: skip
    assert externs(g) == [linear]


@needs_onednn
def test_a_returned_product_over_many_rows_is_onednns(linear: str) -> None:
    g = check(gradient, torch.randn(1024, 512), torch.randn(1024, 1024), tol=TOLERANCE)
    assert externs(g) == [linear]


@needs_onednn
def test_a_returned_product_of_a_linear_layer_is_onednns(linear: str) -> None:
    g = check(F.linear, torch.randn(1024, 256), torch.randn(512, 256), tol=TOLERANCE)
    assert externs(g) == [linear]


def test_rows_are_added_to_a_product_where_it_is() -> None:
    def fn(x: torch.Tensor, g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.index_put(g.t() @ x, (i,), x[:8])

    g = check(fn, torch.randn(64, 512), torch.randn(64, 1024), torch.arange(8) * 3, tol=TOLERANCE)
    (store,) = nests(g)
    assert store.out is g.outputs[0].buffer


def test_a_product_that_is_read_later_is_copied_before_rows_are_added() -> None:
    def fn(x: torch.Tensor, g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        product = g.t() @ x
        return torch.index_put(product, (i,), x[:8]) + product

    check(fn, torch.randn(64, 512), torch.randn(64, 1024), torch.arange(8) * 3, tol=TOLERANCE)
