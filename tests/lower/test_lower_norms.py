"""Normalisations as a few nests each, statistics included."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lower_harness import check, externs, nests

aten = torch.ops.aten


def test_softmax_is_maximum_exponentials_sum_and_quotient() -> None:
    g = check(lambda x: F.softmax(x, -1), torch.randn(3, 5))
    assert [n.reduce.kind if n.reduce else "" for n in nests(g)] == ["max", "", "sum", ""]


def test_row_of_minus_infinity() -> None:
    x = torch.full((2, 4), -torch.inf)
    x[1, 2] = 3.0
    check(lambda x: (F.softmax(x, -1), F.log_softmax(x, -1), x.logsumexp(-1)), x)
    check(lambda x: aten._safe_softmax(x, -1), x)


def test_layer_norm_returns_its_statistics() -> None:
    args = (torch.randn(2, 3, 8), [3, 8], torch.randn(3, 8), torch.randn(3, 8), 1e-5)
    g = check(lambda *a: aten.native_layer_norm(*a), *args)
    assert not externs(g)


def test_statistics_of_large_numbers_keep_their_digits() -> None:
    x = torch.randn(4, 256) + 1e4
    check(lambda x: (F.layer_norm(x, (256,)), x.var(-1)), x, tol=(1e-3, 2e-3))


def test_training_batch_norm_returns_new_running_statistics() -> None:
    x, c = torch.randn(4, 3, 5), torch.rand(3)
    g = check(lambda x, m, v, w: aten._native_batch_norm_legit_functional(
        x, w, None, m, v, True, 0.1, 1e-5), x, c, c + 1, c - 1)  # fmt: skip
    assert not externs(g)


def test_inference_batch_norm_takes_the_root_once_per_channel() -> None:
    g = check(lambda x, m, v: F.batch_norm(x, m, v), torch.randn(2, 3, 4), torch.randn(3),
              torch.rand(3))  # fmt: skip
    roots = [n for n in nests(g) if "rsqrt" in n.body.text()]
    assert [a.size.value for n in roots for a in n.axes] == [3]


def test_norm_of_bf16_with_f32_weights() -> None:
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    check(lambda x, w: F.layer_norm(x, (16,), w.bfloat16()), x, torch.randn(16), tol=(2e-2, 2e-2))


def test_empty_rows_and_columns() -> None:
    check(lambda x: (F.softmax(x, -1), x.sum(1), x.var(0), x.cumsum(1)), torch.randn(0, 4))
    check(lambda x: (F.softmax(x, -1), x.sum(1), x.prod(1), x.all(1)), torch.randn(3, 0))
