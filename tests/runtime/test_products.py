"""Every layout of a product's operands as cuBLASLt is told of it, against column-major NumPy."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from column_major import computed, described, operand

from torchweld.ir.dtype import DType
from torchweld.runtime.cublas import EPILOGUE_BIAS, EPILOGUE_GELU_BIAS, EPILOGUE_RELU_BIAS, Shape
from torchweld.runtime.products import is_long

MM, BMM = "aten.mm.default", "aten.bmm.default"
F64 = torch.float64
ADDMM, ACTIVATION = "aten.addmm.default", "aten._addmm_activation.default"


def strides_of(rows, columns, layout):
    return {
        "rows": (columns, 1), "columns": (1, rows), "rows with gaps": (columns + 3, 1),
        "columns with gaps": (1, rows + 5),
    }[layout]  # fmt: skip


LAYOUTS = ("rows", "columns", "rows with gaps", "columns with gaps")
SIZES = [(5, 4, 3), (1, 4, 3), (5, 1, 3), (5, 4, 1), (1, 1, 3), (1, 4, 1), (5, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_mm_of_every_layout(size):
    m, k, n = size
    for left, right, gap in itertools.product(LAYOUTS, LAYOUTS, (0, 2)):
        x = operand((m, k), strides_of(m, k, left))
        w = operand((k, n), strides_of(k, n, right), 1)
        out = torch.empty_strided((m, n), (n + gap, 1), dtype=torch.float64)
        s = described(MM, (x, w), out)
        assert isinstance(s, Shape), (left, right, s)
        assert torch.equal(computed(s, (x, w), out), x @ w), (left, right, gap)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bmm_of_every_layout(size):
    m, k, n = size
    for left, right, batch in itertools.product(LAYOUTS, LAYOUTS, (1, 3)):
        row, column = strides_of(m, k, left), strides_of(k, n, right)
        x = operand((batch, m, k), (max(row) * max(m, k), *row))
        w = operand((batch, k, n), (max(column) * max(k, n) + 1, *column), 1)
        out = torch.empty((batch, m, n), dtype=torch.float64)
        s = described(BMM, (x, w), out)
        assert isinstance(s, Shape), (left, right, s)
        assert torch.equal(computed(s, (x, w), out), x @ w), (left, right, batch)


def test_bmm_of_an_operand_that_all_products_share():
    x, w = operand((3, 5, 4), (20, 4, 1)), operand((3, 4, 6), (0, 6, 1), 1)
    out = torch.empty((3, 5, 6), dtype=torch.float64)
    s = described(BMM, (x, w), out)
    assert s.strides == (0, 20, 30) and torch.equal(computed(s, (x, w), out), x @ w)


def test_bmm_of_heads_next_to_each_other():
    x = operand((4, 5, 3), (3, 12, 1))  # 5 rows of 4 heads of 3 numbers
    out = torch.empty((4, 5, 5), dtype=torch.float64)
    w = x.transpose(1, 2)
    assert torch.equal(computed(described(BMM, (x, w), out), (x, w), out), x @ w)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_and_relu_are_the_epilogue(layout):
    x, w = operand((5, 4), (4, 1)), operand((4, 3), strides_of(4, 3, layout), 1)
    bias, out = operand((3,), (1,), 2), torch.empty((5, 3), dtype=torch.float64)
    plain = described(ADDMM, (bias, x, w), out, alpha=2)
    assert plain.epilogue == EPILOGUE_BIAS and plain.fused
    assert torch.equal(computed(plain, (bias, x, w), out), bias + 2.0 * (x @ w))
    relu = described(ACTIVATION, (bias, x, w), out, use_gelu=False)
    assert relu.epilogue == EPILOGUE_RELU_BIAS
    assert torch.equal(computed(relu, (bias, x, w), out), torch.relu(bias + x @ w))
    gelu = described(ACTIVATION, (bias, x, w), out, use_gelu=True)
    assert gelu.epilogue == EPILOGUE_GELU_BIAS


def test_a_linear_layer_is_described_as_aten_does():
    """cublasGemmEx(T, N, out features, rows, in features, weight, ..., x, ...)."""
    x, weight = operand((5, 4), (4, 1)), operand((3, 4), (4, 1))
    s = described(MM, (x, weight.t()), torch.empty((5, 3), dtype=torch.float64))
    assert (s.a, s.b, s.m, s.n, s.k, s.transposed) == (1, 0, 3, 5, 4, (True, False))
    assert (s.lda, s.ldb, s.ldc) == (4, 4, 3) and not s.fused


def out_of(m, n):
    return torch.empty((m, n), dtype=torch.float64)


def test_a_product_is_long_by_its_work_or_by_its_bytes():
    plain = replace(described(MM, (X, W), out_of(5, 3)), dtype=DType.F32)
    assert not is_long(replace(plain, m=2560, n=2560, k=2560))
    assert is_long(replace(plain, m=2600, n=2600, k=2600))
    assert is_long(replace(plain, m=1, n=8192, k=8192))
    assert not is_long(replace(plain, m=1, n=4096, k=2048))


X, W, B = operand((5, 4), (4, 1)), operand((4, 3), (3, 1)), operand((3,), (1,))


@pytest.mark.parametrize(
    ("op", "tensors", "out", "kwargs", "why"),
    [
        (MM, (operand((5, 4), (8, 2)), W), out_of(5, 3), {}, "copies"),
        (MM, (operand((5, 4), (1, 1)), W), out_of(5, 3), {}, "copies"),
        (MM, (X, W), out_of(3, 5).t(), {}, "not made of rows"),
        (MM, (operand((0, 4), (4, 1)), W), out_of(0, 3), {}, "no product"),
        (ADDMM, (operand((5, 3), (3, 1)), X, W), out_of(5, 3), {}, "one number per column"),
        (ADDMM, (operand((3,), (2,)), X, W), out_of(5, 3), {}, "one number per column"),
        (ADDMM, (B, X, W), out_of(5, 3), {"beta": 2}, "one number per column"),
        (ADDMM, (B, X, W), out_of(5, 3), {"gamma": 2}, "unknown kind"),
        (ADDMM, (B, X[:1], W), out_of(1, 3), {}, "several steps"),
        (ADDMM, (B, X, W), torch.empty_strided((5, 3), (8, 1), dtype=F64), {}, "with gaps"),
        (BMM, (X[None], W[None]), operand((1, 5, 3), (40, 8, 1)), {}, "have gaps"),
        (BMM, (X[None], W[None].float()), out_of(5, 3)[None], {}, "several types"),
        (MM, (X.cfloat(), W.cfloat()), out_of(5, 3).cfloat(), {}, "no product"),
    ],
)  # fmt: skip
def test_what_is_left_to_aten_says_why(op, tensors, out, kwargs, why):
    assert why in described(op, tensors, out, **kwargs)
