"""Results that the backward reads, and that the user may change before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_twin import leaf

import torchweld
from torchweld.pipeline import STATISTICS

ROWS, CLASSES = 64, 1000
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}


def loss_and_scores(x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    scores = x @ w
    return F.cross_entropy(scores, target), scores


def loss_and_view(x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    scores = x @ w
    return F.cross_entropy(scores.float(), target), scores.view(2, -1, CLASSES)


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    x, w = leaf(ROWS, 32, dtype=dtype), leaf(32, CLASSES, dtype=dtype)
    return [x, w, torch.randint(0, CLASSES, (ROWS,))]


def gradients(fn: Callable[..., Any], given: list[Tensor],
              between: Callable[[Tensor], object]) -> tuple[Tensor, ...]:  # fmt: skip
    loss, scores = fn(*given)
    between(scores)
    return torch.autograd.grad(loss, given[:2])


def loss_alone(x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, None]:
    return F.cross_entropy(x @ w, target), None


@pytest.mark.parametrize(("fn", "dtype"), [
    (loss_alone, torch.float32), (loss_alone, torch.bfloat16), (loss_and_view, torch.bfloat16),
])  # fmt: skip
def test_a_loss_over_scores_saves_two_numbers_a_row(fn: Callable[..., Any], dtype: Any) -> None:
    torchweld.reset()
    given = inputs(dtype)
    got = gradients(torchweld.compile(fn, fullgraph=True), given, lambda scores: None)
    want = gradients(fn, given, lambda scores: None)
    close = {"rtol": 1e-5, "atol": 1e-7} if dtype is torch.float32 else {"rtol": 0.1, "atol": 0.01}
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, **close)
    (made,) = STATISTICS.compiled
    assert made.executable is not None and len(made.backwards) == 1
    tensors = made.executable.program.tensors
    large = [t for t in tensors if t.sizes == (ROWS, CLASSES)]
    assert {t.dtype.value for t in large} == {NAMES[dtype]} and len(large) <= 2
    assert sum(t.sizes == (ROWS, 1) for t in tensors) == 2


@pytest.mark.parametrize("fn", [loss_and_scores, loss_and_view])
@pytest.mark.parametrize("change", [
    lambda scores: scores.detach().add_(1.0), lambda scores: scores.data.zero_(),
    lambda scores: scores.mul_(2),
])  # fmt: skip
def test_a_result_that_eager_does_not_keep_may_be_changed(fn: Callable[..., Any],
                                                          change: Any) -> None:  # fmt: skip
    torchweld.reset()
    compiled, given = torchweld.compile(fn, fullgraph=True), inputs()
    for between in (lambda scores: None, change, lambda scores: None):
        got, want = (gradients(f, given, between) for f in (compiled, fn))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-7)
