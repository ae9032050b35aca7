"""Layouts of training graphs on a GPU: channels last from the forward through to the backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rewrite_graphs import BF16, OnCpu, aten, joint_on_gpu, targets, value
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from torchweld.base.config import current
from torchweld.graph.backward import backward
from torchweld.graph.extract import ends_of
from torchweld.graph.layout import same_strides
from torchweld.ir.graph import Joint

LAST = torch.channels_last
SHAPES = ((2, 4, 12, 12), (8, 4, 3, 3), (8,), (8,), (8, 8, 1, 1), (8, 8, 3, 3))


def block(x: Tensor, w1: Tensor, scale: Tensor, shift: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """Convolutions with a norm, a pooling and a sum of two branches between them."""
    y = F.batch_norm(F.conv2d(x, w1, None, 1, 1), None, None, scale, shift, True)
    y = F.max_pool2d(F.relu(y), 2)
    return (F.relu(F.conv2d(F.relu(F.conv2d(y, w2)), w3, None, 1, 1) + y)).mean((2, 3))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(joint_on_gpu, monkeypatch)


def inputs_of(dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def halves(parts: Joint) -> list[Graph]:
    return [parts.forward.forward, backward(parts, [True], current()).pair.forward]


def copied_images(graph: Graph) -> list[Node]:
    """The copies of images, not of weights, whose layout changes."""
    clones = graph.find_nodes(op="call_function", target=aten.clone.default)
    return [n for n in clones if value(n).dim() == 4 and value(n).shape[2] > 3]


def test_convolutions_of_both_halves_have_operands_with_their_channels_last(on_gpu: Any) -> None:
    for graph in halves(on_gpu(block, inputs_of(BF16))):
        convs = [n for n in graph.nodes if n.op != "placeholder" and "convolution" in str(n.target)]
        assert len(convs) == 3
        for conv in convs:
            operands = [a for a in conv.args if isinstance(a, Node)]
            assert all(value(a).is_contiguous(memory_format=LAST) for a in operands)


def test_no_image_is_copied_between_convolutions(on_gpu: Any) -> None:
    forward, back = halves(on_gpu(block, inputs_of(BF16)))
    (first,) = copied_images(forward)
    assert first.args[0].op == "placeholder"  # type: ignore[union-attr]
    (last,) = copied_images(back)  # the gradient of the image, as eager lays it out
    assert last in back.output_node().all_input_nodes


def test_gradients_have_the_strides_of_eager(on_gpu: Any) -> None:
    inputs = inputs_of(BF16)
    parts = on_gpu(block, inputs)
    _, _, gradients = ends_of(parts.graph)
    theirs = torch.autograd.grad(block(*inputs).sum(), inputs)
    assert all(same_strides(value(g), t) for g, t in zip(gradients, theirs, strict=True))


def test_the_relaid_graph_computes_what_eager_does(on_gpu: Any) -> None:
    inputs = inputs_of(BF16)
    parts = on_gpu(block, inputs)
    out = block(*inputs)
    theirs = torch.autograd.grad(out, inputs, torch.ones_like(out))
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = block(*exact)
    best = torch.autograd.grad(wanted, exact, torch.ones_like(wanted))
    with torch.no_grad():
        given = [x.detach() for x in inputs]
        _, (mine,), grads = OnCpu(GraphModule({}, parts.graph)).run(*given, torch.ones_like(out))
    torch.testing.assert_close(mine, out.detach(), rtol=2e-2, atol=2e-2)
    for got, their, truth in zip(grads, theirs, best, strict=True):
        error, allowed = (got - truth).norm(), (their - truth).norm() + 1e-3 * truth.norm()
        assert same_strides(got, their) and error <= 1.5 * allowed


def test_a_result_that_the_backward_reads_too_keeps_its_strides(on_gpu: Any) -> None:
    def fn(x: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(F.conv2d(x, w1, None, 1, 1))
        return y, F.conv2d(y, w2, None, 1, 1).mean((2, 3))

    parts = on_gpu(fn, inputs_of(BF16, (SHAPES[0], (8, 4, 3, 3), (8, 8, 3, 3))))
    _, results, _ = ends_of(parts.graph)
    assert value(results[0]).is_contiguous()
    assert parts.kept_results == (0,)


def test_the_gradient_of_a_bias_is_a_sum_that_is_fused(on_gpu: Any) -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w, b)).mean()

    back = halves(on_gpu(fn, inputs_of(BF16, SHAPES[:3])))[1]
    assert targets(back).count(aten.sum.dim_IntList) == 1
    (conv,) = back.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert conv.args[10] == [True, True, False]


def test_f32_keeps_the_layout_of_eager_in_both_halves(on_gpu: Any) -> None:
    for graph in halves(on_gpu(block, inputs_of(torch.float32))):
        assert not copied_images(graph)
