"""Rewrites of ATen graphs: attention written by hand, epilogues of products, channels last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node, symbolic_trace

import torchweld
from torchweld.base.config import current, override
from torchweld.graph.run import normalize
from torchweld.ir.graph import VAL

aten = torch.ops.aten
BF16 = torch.bfloat16


def graph_of(fn: Callable[..., Any], *specs: Any, device: str = "cuda:0") -> Graph:
    """The normalized graph of a function of fakes. specs: shapes, or (shape, dtype)."""
    gm = symbolic_trace(fn)
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    with FakeTensorMode() as mode, torch.no_grad():
        for node, spec in zip(places, specs, strict=True):
            shape, dtype = spec if isinstance(spec[1], torch.dtype) else (spec, BF16)
            node.meta[VAL] = torch.empty(shape, dtype=dtype, device=device)
    del mode
    with torch.no_grad():
        return normalize(gm, current()).forward


def targets(graph: Graph) -> list[Any]:
    return [n.target for n in graph.nodes if n.op == "call_function"]


def value(node: Any) -> Tensor:
    assert isinstance(node, Node)
    found = node.meta[VAL]
    assert isinstance(found, Tensor)
    return found


# ---------------------------------------------------------------- attention


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(16), -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25 + mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def filled(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.unsqueeze(2).expand(2, 2, 2, 8, 16).reshape(2, 4, 8, 16)
    v = v.unsqueeze(2).expand(2, 2, 2, 8, 16).reshape(2, 4, 8, 16)
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def flat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, -1), v)


QKV = [(2, 4, 8, 16)] * 3
CASES: list[Any] = [
    pytest.param(plain, QKV, id="plain"),
    pytest.param(masked, [*QKV, (2, 1, 1, 8)], id="masked"),
    pytest.param(filled, [*QKV, ((8, 8), torch.bool)], id="filled"),
    pytest.param(grouped, [QKV[0], (2, 2, 8, 16), (2, 2, 8, 16)], id="grouped"),
    pytest.param(flat, [(4, 8, 16)] * 3, id="flat"),
]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(("fn", "specs"), CASES)
def test_attention_by_hand_becomes_one_operator(fn: Any, specs: Any, device: str) -> None:
    graph = graph_of(fn, *specs, device=device)
    assert targets(graph).count(aten.scaled_dot_product_attention.default) == 1
    assert aten.bmm.default not in targets(graph)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("fn", "specs"), CASES)
def test_attention_by_hand_gives_eagers_result(fn: Any, specs: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    args = []
    for spec in specs:
        shape, kind = spec if isinstance(spec[1], torch.dtype) else (spec, dtype)
        args.append(torch.rand(shape) > 0.7 if kind is torch.bool else torch.randn(shape).to(kind))
    with torch.no_grad():
        expected = fn(*args)
        found = torchweld.compile(fn, fullgraph=True)(*args)
    assert found.stride() == expected.stride() and found.dtype == expected.dtype
    with torch.no_grad():
        exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    error, own = ((t.double() - exact).abs().max() for t in (expected, found))
    assert own <= error + 1e-6


def test_a_row_that_is_masked_whole_is_nan_as_in_eager() -> None:
    q, k, v = (torch.randn(2, 4, 8, 16) for _ in range(3))
    mask = torch.zeros(2, 1, 8, 8)
    mask[1, 0, 3] = -math.inf
    hidden = torch.zeros(8, 8, dtype=torch.bool)
    hidden[5] = True
    for fn, extra in ((masked, mask), (filled, hidden)):
        with torch.no_grad():
            expected, found = fn(q, k, v, extra), torchweld.compile(fn)(q, k, v, extra)
        assert expected.isnan().any() and not expected.isnan().all()
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_weights_that_are_used_again_keep_the_products() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    assert targets(graph_of(fn, *QKV)).count(aten.bmm.default) == 2


def test_a_softmax_over_another_axis_keeps_the_products() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -2) @ v

    assert targets(graph_of(fn, *QKV)).count(aten.bmm.default) == 2


def test_a_kernel_whose_results_are_not_all_tensors_gets_its_general_name() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, True, scale=0.5)[0]

    graph = graph_of(fn, (2, 4, 8, 16), (2, 2, 8, 16), (2, 2, 8, 16))
    (node,) = [n for n in graph.nodes if n.op == "call_function"]
    assert node.target is aten.scaled_dot_product_attention.default
    assert node.args[4:] == (0.0, True)
    assert node.kwargs == {"scale": 0.5, "enable_gqa": True}


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


def test_rewrites_can_be_skipped() -> None:
    with override(skip=("attention", "channels_last", "conv_bias", "epilogues")):
        assert targets(graph_of(plain, *QKV)).count(aten.bmm.default) == 2
