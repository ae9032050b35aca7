"""Gradients of embeddings as sums of the rows that were looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rewrite_graphs import BF16, OnCpu, aten, pretend_cuda, targets
from torch import Tensor
from torch.fx import GraphModule
from torch_capture import capture

import torchweld
from torchweld.base.config import current
from torchweld.graph.backward import backward
from torchweld.graph.joint import joint
from torchweld.graph.rewrites.embedding import embedding_backward, sum_rows
from torchweld.pipeline import STATISTICS

TOKENS = torch.tensor([[3, 0, 3, 7, 1], [1, 3, 0, 9, 9]])
WEIGHT = torch.randn(12, 8)


def tied(tokens: Tensor, w: Tensor) -> Tensor:
    """A weight that is also the last layer's."""
    return F.linear(F.embedding(tokens, w).tanh(), w).square().sum()


def gradient(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    fn(*inputs).sum().backward()
    found = inputs[-1].grad
    assert found is not None
    inputs[-1].grad = None
    return found


def summed(fn: Callable[..., Tensor], *inputs: Tensor) -> GraphModule:
    """The backward graph as it is on a GPU."""
    graph = backward(joint(capture(fn, *inputs), current()), [True], current()).pair.forward
    pretend_cuda(graph)
    sum_rows(graph)
    graph.eliminate_dead_code()
    return GraphModule({}, graph)


def lookup(weight: Tensor, padding: int | None = None) -> tuple[Any, Tensor, Tensor]:
    """Looks rows up in a weight, with the gradient that it gets and the exact one."""
    def fn(tokens: Tensor, scale: Tensor, w: Tensor) -> Tensor:
        return F.embedding(tokens, w, padding) * scale

    scale = torch.randn(2, 5, weight.shape[1]).to(weight.dtype)
    w = weight.clone().requires_grad_()
    wide = weight.double().requires_grad_()
    exact = gradient(lambda t, s, x: F.embedding(t, x, padding) * s, TOKENS, scale.double(), wide)
    gm = summed(fn, TOKENS, scale, w)
    assert embedding_backward not in targets(gm.graph)
    places = {"in0": TOKENS, "in1": scale, "in2": w.detach()}
    given = [places.get(str(n.target), torch.ones(2, 5, weight.shape[1]).to(weight.dtype))
             for n in gm.graph.find_nodes(op="placeholder")]  # fmt: skip
    with torch.no_grad():
        (mine,) = OnCpu(gm).run(*given)
    return gm.graph, mine, exact


def test_a_tied_weight_gets_eagers_gradient() -> None:
    w = WEIGHT.clone().requires_grad_()
    wanted = gradient(tied, TOKENS, w)
    torch.testing.assert_close(gradient(torchweld.compile(tied), TOKENS, w), wanted)


def test_rows_are_added_to_the_product_where_it_is() -> None:
    torchweld.reset()
    gradient(torchweld.compile(tied), TOKENS, WEIGHT.clone().requires_grad_())
    (compiled,) = STATISTICS.compiled
    (back,) = compiled.backwards
    assert not [s for s in back.program.steps if "embedding" in getattr(s, "op", "")]
    large = [t for t in back.program.tensors
             if t.sizes == (12, 8) and t.place in ("fresh", "arena")]  # fmt: skip
    assert not large  # the product's own memory is returned


def test_a_weight_of_one_use_stays_with_aten_on_a_cpu() -> None:
    w = WEIGHT.clone().requires_grad_()
    graph = backward(joint(capture(lambda t, w: F.embedding(t, w).tanh(), TOKENS, w), current()),
                     [True], current()).pair.forward  # fmt: skip
    assert embedding_backward in targets(graph)


@pytest.mark.parametrize("rows", [12, 1 << 18])
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_gradients_are_exact_sums_rounded_once(rows: int, dtype: torch.dtype) -> None:
    _, mine, exact = lookup(torch.randn(rows, 8).to(dtype))
    torch.testing.assert_close(mine, exact.to(dtype), rtol=1e-5, atol=1e-6)


def test_padding_gets_no_gradient() -> None:
    _, mine, exact = lookup(torch.randn(12, 8), padding=3)
    assert not mine[3].any()
    torch.testing.assert_close(mine, exact.float())


def test_a_large_weight_is_not_summed_in_a_wider_copy() -> None:
    graph, _, _ = lookup(torch.randn(1 << 18, 8).to(BF16))
    wide = [n for n in graph.find_nodes(op="call_function", target=aten.full.default)
            if n.args[0] == [1 << 18, 8] and n.kwargs["dtype"] is torch.float32]  # fmt: skip
    assert not wide


def test_infinite_gradients_stay_in_their_row() -> None:
    def fn(tokens: Tensor, w: Tensor) -> Tensor:
        rows = F.embedding(tokens, w)
        return (rows / (tokens - 7).unsqueeze(-1)).sum() + F.linear(rows, w).sum()

    w = WEIGHT.clone().requires_grad_()
    got, wanted = gradient(torchweld.compile(fn), TOKENS, w), gradient(fn, TOKENS, w)
    assert wanted[7].isinf().all() and got[[0, 1, 3, 9]].isfinite().all()
    torch.testing.assert_close(got, wanted)


def test_deterministic_algorithms_keep_atens_kernel_on_a_gpu() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        gm = summed(lambda t, w: F.embedding(t, w).tanh(), TOKENS, WEIGHT.clone().requires_grad_())
        assert embedding_backward in targets(gm.graph)
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_scaled_by_frequency_stay_with_aten() -> None:
    def fn(tokens: Tensor, w: Tensor) -> Tensor:
        return F.embedding(tokens, w, scale_grad_by_freq=True).tanh()

    gm = summed(fn, TOKENS, WEIGHT.clone().requires_grad_())
    assert embedding_backward in targets(gm.graph)
