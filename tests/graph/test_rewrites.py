"""Rewrites of ATen graphs: epilogues of products, channels last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rewrite_graphs import BF16, aten, graph_of, targets, value
from torch import Tensor

# ---------------------------------------------------------------- epilogues


@pytest.mark.parametrize("shape", [(64, 32), (2, 4, 32)])
def test_relu_of_a_linear_layer_is_its_epilogue(shape: tuple[int, ...]) -> None:
    graph = graph_of(lambda x, w, b: F.relu(F.linear(x, w, b)), shape, (16, 32), ((16,), BF16))
    assert targets(graph).count(aten._addmm_activation.default) == 1
    assert aten.relu.default not in targets(graph)


def test_products_without_bias_share_one_of_zeros() -> None:
    def fn(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.linear(F.relu(F.linear(x, v)), w))

    found = targets(graph_of(fn, (64, 32), (32, 32), (32, 32)))
    assert found.count(aten._addmm_activation.default) == 2
    assert found.count(aten.zeros.default) == 1


def test_only_the_tanh_form_of_gelu_is_an_epilogue() -> None:
    specs = ((64, 32), (16, 32), ((16,), BF16))
    tanh = graph_of(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), *specs)
    exact = graph_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), *specs)
    (node,) = tanh.find_nodes(op="call_function", target=aten._addmm_activation.default)
    assert node.kwargs["use_gelu"] is True
    assert aten.gelu.default in targets(exact)


def test_a_product_that_something_else_reads_keeps_its_activation() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x, w, b)
        return F.relu(y), y

    assert aten.relu.default in targets(graph_of(fn, (64, 32), (16, 32), ((16,), BF16)))


def test_epilogues_are_for_gpus() -> None:
    specs = ((64, 32), (16, 32), ((16,), BF16))
    graph = graph_of(lambda x, w, b: F.relu(F.linear(x, w, b)), *specs, device="cpu")
    assert aten._addmm_activation.default not in targets(graph)


# ---------------------------------------------------------------- convolutions


def tower(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, w3: Tensor) -> tuple[Tensor, Tensor]:
    y = F.max_pool2d(F.relu(F.conv2d(x, w1, b1, 2, 3)), 3, 2, 1)
    z = F.conv2d(F.relu(F.conv2d(y, w2)), w3, None, 1, 1) + y
    return z, F.adaptive_avg_pool2d(z, 1).flatten(1)


TOWER = [(2, 3, 32, 32), (8, 3, 7, 7), ((8,), BF16), (8, 8, 1, 1), (8, 8, 3, 3)]


def test_convolutions_run_channels_last_without_copies_in_between() -> None:
    graph = graph_of(tower, *TOWER)
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        for operand in node.args[:2]:
            assert value(operand).is_contiguous(memory_format=torch.channels_last)
        assert node.args[2] is None
        assert value(node).is_contiguous(memory_format=torch.channels_last)
    copies = [
        n for n in graph.find_nodes(op="call_function", target=aten.clone.default)
        if n.kwargs.get("memory_format") is torch.channels_last
    ]  # fmt: skip
    assert [n.args[0].op for n in copies] == ["placeholder"] * 3  # type: ignore[union-attr]


def test_outputs_keep_the_strides_of_eager() -> None:
    (outputs,) = graph_of(tower, *TOWER).output_node().args
    assert [value(n).is_contiguous() for n in outputs] == [True, True]  # type: ignore[union-attr]


def test_a_view_across_channels_gets_its_layout_back() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, None, 1, 1).view(2, -1) * 2.0

    graph = graph_of(fn, (2, 4, 8, 8), (8, 4, 3, 3))
    (view,) = graph.find_nodes(op="call_function", target=aten.view.default)
    assert value(view.args[0]).is_contiguous()
    assert value(graph.output_node().args[0][0]).shape == (2, 512)  # type: ignore[index]


def test_outputs_that_share_memory_keep_the_recorded_layout() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w, None, 1, 1)
        return y, y.view(2, 8, 64)

    graph = graph_of(fn, (2, 4, 8, 8), (8, 4, 3, 3))
    assert aten.clone.default not in targets(graph)


def test_a_1x1_convolution_alone_is_left_as_it_is() -> None:
    graph = graph_of(lambda x, w: F.conv2d(x, w), (2, 4, 8, 8), (8, 4, 1, 1))
    assert targets(graph) == [aten.convolution.default]


def test_f32_convolutions_keep_the_layout_and_with_it_the_precision() -> None:
    graph = graph_of(lambda x, w: F.conv2d(x, w), ((2, 4, 8, 8), torch.float32),
                     ((8, 4, 3, 3), torch.float32))  # fmt: skip
    assert targets(graph) == [aten.convolution.default]


# ---------------------------------------------------------------- gelu written out


def cubed(x: Tensor) -> Tensor:
    """transformers' NewGELU."""
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def multiplied(x: Tensor) -> Tensor:
    """transformers' FastGELU."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def another(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.05 * torch.pow(x, 3.0))))


LINEAR = ((2, 4, 32), (16, 32), ((16,), BF16))


@pytest.mark.parametrize("gelu", [cubed, multiplied])
def test_gelu_written_out_is_an_epilogue(gelu: Callable[[Tensor], Tensor]) -> None:
    graph = graph_of(lambda x, w, b: gelu(F.linear(x, w, b)), *LINEAR)
    (node,) = graph.find_nodes(op="call_function", target=aten._addmm_activation.default)
    assert node.kwargs["use_gelu"] is True
    assert aten.tanh.default not in targets(graph)


def test_what_is_only_like_gelu_stays() -> None:
    graph = graph_of(lambda x, w, b: another(F.linear(x, w, b)), *LINEAR)
    assert aten.tanh.default in targets(graph)


def test_gelu_written_out_stays_where_rounding_would_not_be_less() -> None:
    single = [((64, 32), torch.float32), ((16, 32), torch.float32), ((16,), torch.float32)]
    assert aten.tanh.default in targets(graph_of(lambda x, w, b: cubed(F.linear(x, w, b)), *single))
    on_cpu = graph_of(lambda x, w, b: cubed(F.linear(x, w, b)), *LINEAR, device="cpu")
    assert aten.tanh.default in targets(on_cpu)


def test_gelu_written_out_stays_where_more_is_read_than_its_result() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x, w, b)
        return cubed(y), y

    assert aten.tanh.default in targets(graph_of(fn, *LINEAR))


def test_gelu_from_wide_sums_is_nearer_to_f64_than_eagers_steps() -> None:
    torch.manual_seed(0)
    sums = torch.randn(1 << 14)
    exact = F.gelu(sums.double(), approximate="tanh")
    for dtype in (BF16, torch.float16):
        eager, ours = cubed(sums.to(dtype)), F.gelu(sums, approximate="tanh").to(dtype)
        assert (ours.double() - exact).abs().mean() < 0.6 * (eager.double() - exact).abs().mean()
