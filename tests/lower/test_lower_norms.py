"""Normalisations as a few nests each, statistics included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import vector_eval
from lower_harness import check, externs, lowered, nests

from torchweld.base.errors import LoweringError

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


@pytest.mark.parametrize("layout", ["rows", "channels_last", "strided"])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_training_batch_norm_rounds_where_eager_does(layout: str, weights: torch.dtype) -> None:
    """Equal but for an element at the edge of rounding, which the order of a sum can push over."""
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(4, 6, 7, 9, generator=g) * 5).bfloat16()
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    if layout == "strided":
        x = x.transpose(0, 2).contiguous().transpose(0, 2)
    given = [(torch.randn(6, generator=g) * 5).to(weights) for _ in range(4)]
    given[3] = given[3].abs()
    want = aten._native_batch_norm_legit_functional(x, *given, True, 0.3, 0.1)[0]
    graph = lowered(lambda x, *p: aten._native_batch_norm_legit_functional(
        x, *p, True, 0.3, 0.1)[0], x, *given)  # fmt: skip
    assert not externs(graph)
    (got,) = vector_eval.run(graph, [x, *given])
    assert int((got != want).sum()) <= 2


def test_batch_norm_statistics_of_a_dtype_that_torch_predicts_wrongly_are_refused() -> None:
    x = torch.randn(4, 3, 5).bfloat16()
    with pytest.raises(LoweringError, match="not as predicted"):
        lowered(lambda x, w: aten._native_batch_norm_legit.no_stats(
            x, w, None, True, 0.1, 1e-5), x, torch.randn(3))  # fmt: skip


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
