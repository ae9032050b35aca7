"""What a loss and a caller both read of a product: who gets the copy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrite_graphs import BF16, OnCpu, joint_on_gpu, value
from torch import Tensor
from torch.fx import GraphModule, Node
from torch_capture import capture

from torchweld.base.config import current
from torchweld.graph.joint import joint
from torchweld.graph.schema import view_chain
from torchweld.ir.graph import Joint

aten = torch.ops.aten
TARGET = torch.tensor([1, 3, 0, 2])


def scored(x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A loss over scores, and the scores."""
    scores = F.linear(x, w).view(2, 2, 64)
    return F.cross_entropy(scores.flatten(0, 1), target), scores


def inputs() -> list[Tensor]:
    torch.manual_seed(1)
    x, w = torch.randn(4, 32), torch.randn(64, 32)
    return [x.to(BF16).requires_grad_(), w.to(BF16).requires_grad_(), TARGET]


def ends(parts: Joint) -> tuple[list[Node], list[Node]]:
    """The owners of the memory of results, and of what is saved."""
    nodes: list[Node] = [view_chain(n)[-1] for n in parts.forward.forward.output_node().args[0]]
    count = len(parts.tangents)
    return nodes[:count], nodes[count:]


def test_on_a_gpu_the_caller_gets_the_copy_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, scores), saved = ends(joint_on_gpu(monkeypatch, scored, inputs()))
    (product,) = [n for n in saved if n.target is aten.mm.default]
    assert scores.target is aten.clone.default and scores.args[0] is product
    assert [n for n in saved if value(n).numel() >= 4 * 64] == [product]


def test_the_copy_is_the_product_and_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = joint_on_gpu(monkeypatch, scored, inputs()).forward.forward
    with torch.no_grad():
        loss, scores, *saved = OnCpu(GraphModule({}, graph)).run(*inputs())
    wanted = scored(*inputs())
    torch.testing.assert_close((loss, scores.view(2, 2, 64)), wanted, check_stride=False)
    assert all(scores.untyped_storage()._cdata != x.untyped_storage()._cdata for x in saved)


def test_scores_keep_shape_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = joint_on_gpu(monkeypatch, scored, inputs())
    scores = parts.forward.forward.output_node().args[0][1]  # type: ignore[index]
    source = parts.returned[1]
    assert value(scores).is_contiguous() and value(scores).numel() == 4 * 64
    assert source.place == 1 and not source.of_input


def test_on_a_cpu_the_result_is_the_product_itself() -> None:
    (_, scores), saved = ends(joint(capture(scored, *inputs()), current()))
    assert scores.target is aten.mm.default and scores not in saved
