"""Attention in ATen graphs: written by hand, masks, keys that heads share, where results lie."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rewrite_graphs import BF16, aten, graph_of, run_on_cpu, targets, value
from torch import Tensor
from torch.fx import Graph, Node

import torchweld
from torchweld.base.config import override
from torchweld.graph.rewrites.attention_operands import Kernel, asked, kernel_of, layout_of
from torchweld.graph.rewrites.node import arg
from torchweld.ir.fake import FakeMode
from torchweld.ir.size_node import symbolic
from torchweld.ir.sizes import SizeEnv
from torchweld.pipeline import STATISTICS

SDPA = aten.scaled_dot_product_attention.default


# ---------------------------------------------------------------- written by hand


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


def test_rewrites_can_be_skipped() -> None:
    with override(skip=("attention", "channels_last", "conv_bias", "epilogues")):
        assert targets(graph_of(plain, *QKV)).count(aten.bmm.default) == 2


# ---------------------------------------------------------------- masks


def mask_and_flag(graph: Graph) -> tuple[Any, Any]:
    """Of the one attention operator."""
    (node,) = graph.find_nodes(op="call_function", target=SDPA)
    return arg(node, 3, "attn_mask"), arg(node, 5, "is_causal", False)


def lower_triangle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = q.new_ones(8, 8, dtype=torch.bool).triu(1)
    return (q @ k.transpose(-1, -2) / 4.0).masked_fill(hidden, -math.inf).softmax(-1) @ v


def positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As transformers writes it: positions compared, the least number of the dtype added."""
    at = q.new_ones(1, 1, 1, 8, dtype=torch.int64).cumsum(-1)
    seen = at <= at.transpose(-1, -2)
    mask = torch.where(seen, q.new_zeros(()), q.new_full((), -3e38))
    scores = q @ k.transpose(-1, -2) * 0.25 + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = q.new_ones(8, 8, dtype=torch.bool).tril()
    return torch.where(seen, q * 0.25 @ k.transpose(-1, -2), -math.inf).softmax(-1) @ v


def flagged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CAUSAL = [lower_triangle, positions, chosen, flagged]


@pytest.mark.parametrize("fn", CAUSAL)
def test_a_mask_that_is_certain_to_be_causal_becomes_the_flag(fn: Any) -> None:
    graph = graph_of(fn, *QKV)
    assert mask_and_flag(graph) == (None, True)
    assert targets(graph) == [SDPA]


@pytest.mark.parametrize("fn", CAUSAL)
def test_causal_attention_gives_eagers_result(fn: Any) -> None:
    q, k, v = (torch.randn(2, 4, 8, 16) for _ in range(3))
    with torch.no_grad():
        torch.testing.assert_close(torchweld.compile(fn, fullgraph=True)(q, k, v), fn(q, k, v))


def test_a_mask_that_hides_nothing_is_dropped() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) + q.new_zeros(8, 8)).softmax(-1) @ v

    assert mask_and_flag(graph_of(fn, *QKV)) == (None, False)


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = q.new_ones(8, 8, dtype=torch.bool).tril().triu(-3)
    return (q @ k.transpose(-1, -2)).masked_fill(seen.logical_not(), -math.inf).softmax(-1) @ v


def of_more_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = q.new_ones(4, 8, dtype=torch.bool).tril()
    scores = q.narrow(2, 0, 4) @ k.transpose(-1, -2)
    return scores.masked_fill(seen.logical_not(), -math.inf).softmax(-1) @ v


def random(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.rand_like(q.new_ones(8, 8)) > 2.0
    return (q @ k.transpose(-1, -2)).masked_fill(hidden, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("fn", [window, of_more_keys, random])
def test_other_masks_stay(fn: Any) -> None:
    mask, causal = mask_and_flag(graph_of(fn, *QKV))
    assert isinstance(mask, Node) and causal is False


def test_a_known_mask_without_empty_rows_needs_no_check_for_them() -> None:
    assert aten.all.dim not in targets(graph_of(window, *QKV))
    assert aten.all.dim in targets(graph_of(filled, *QKV, ((8, 8), torch.bool)))


def test_a_number_that_hides_nothing_keeps_the_products() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).masked_fill(where, -100.0).softmax(-1) @ v

    assert targets(graph_of(fn, *QKV, ((8, 8), torch.bool))).count(aten.bmm.default) == 2


def least_added(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    least = q.new_zeros(8, 8).masked_fill(hidden, -3e38)
    return (q @ k.transpose(-1, -2) + least).softmax(-1) @ v


def least_filled(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, -3e38)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("fn", [least_added, least_filled])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_row_hidden_by_the_least_number_is_a_mean_as_in_eager(fn: Any, dtype: Any) -> None:
    q, k, v = (torch.randn(2, 4, 8, 16).to(dtype) for _ in range(3))
    hidden = torch.rand(8, 8) > 0.5
    hidden[3] = True
    with torch.no_grad():
        expected = fn(q, k, v, hidden)
        found = torchweld.compile(fn, fullgraph=True)(q, k, v, hidden)
    torch.testing.assert_close(found[:, :, 3], v.mean(-2), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert SDPA in targets(graph_of(fn, *QKV, ((8, 8), torch.bool)))


def test_the_least_number_is_finite_for_a_kernel_that_works_in_powers_of_two() -> None:
    graph = graph_of(least_added, *QKV, ((8, 8), torch.bool))
    (bounded,) = graph.find_nodes(op="call_function", target=aten.clamp.default)
    assert bounded.args[1] * math.log2(math.e) > torch.finfo(BF16).min


def test_layers_share_what_is_made_of_their_mask() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        for _ in range(3):
            q = (q @ k.transpose(-1, -2) + bias + mask).softmax(-1) @ v
        return q

    found = targets(graph_of(fn, *QKV, (2, 1, 8, 8), (1, 4, 8, 8)))
    assert found.count(SDPA) == 3
    assert found.count(aten.add.Tensor) == found.count(aten.all.dim) == 1


# ---------------------------------------------------------------- heads that share keys


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.unsqueeze(2).expand(-1, -1, 2, -1, -1).reshape(2, 4, 8, 16) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def interleaved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(2, dim=1), torch.repeat_interleave(v, 2, 1)
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def one_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.narrow(1, 0, 1).unsqueeze(2).expand(2, 1, 4, 8, 16) for x in (k, v))
    k, v = (x.reshape(2, 4, 8, 16) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


SHARED = [(2, 4, 8, 16), (2, 2, 8, 16), (2, 2, 8, 16)]


@pytest.mark.parametrize("fn", [repeated, interleaved, one_group])
def test_keys_that_heads_share_are_not_copied(fn: Any) -> None:
    graph = graph_of(fn, *SHARED)
    (node,) = graph.find_nodes(op="call_function", target=SDPA)
    assert node.kwargs["enable_gqa"] is True
    assert {aten.clone.default, aten.expand.default}.isdisjoint(targets(graph))


def test_keys_stay_copied_where_the_kernel_needs_it() -> None:
    specs = [(shape, torch.float32) for shape in SHARED]
    graph = graph_of(repeated, *specs)
    (node,) = graph.find_nodes(op="call_function", target=SDPA)
    assert "enable_gqa" not in node.kwargs and targets(graph).count(aten.expand.default) == 2


def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    return (q @ k.transpose(-1, -2) * 0.25 + mask).softmax(-1) @ v


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_one_query_a_head_is_a_row_of_its_group(heads: int, device: str) -> None:
    specs = [(2, 4, 1, 16), *SHARED[1:], (2, heads, 1, 8)]
    graph = graph_of(with_mask, *((s, torch.float32) for s in specs), device=device)
    (node,) = graph.find_nodes(op="call_function", target=SDPA)
    assert [tuple(value(n).shape) for n in node.args[:3]] == [(2, 2, 2, 16), *SHARED[1:]]
    assert aten.expand.default not in targets(graph)


@pytest.mark.parametrize("heads", [1, 4])
def test_one_query_a_head_gives_eagers_result(heads: int) -> None:
    q, k, v, mask = (torch.randn(s) for s in ((2, 4, 1, 16), *SHARED[1:], (2, heads, 1, 8)))
    torchweld.reset()
    with torch.no_grad():
        found = torchweld.compile(with_mask, fullgraph=True)(q, k, v, mask)
        torch.testing.assert_close(found, with_mask(q, k, v, mask))
    (compiled,) = STATISTICS.compiled
    assert compiled.externs == 1


# ---------------------------------------------------------------- kernels and their results


def projected(x: Tensor, w: Tensor) -> Tensor:
    parts = F.linear(x, w).split(64, 2)
    q, k, v = (parts[n].view(2, 8, 4, 16).transpose(1, 2) for n in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 8, 64)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_result_lies_as_its_kernel_leaves_it(dtype: torch.dtype) -> None:
    graph = graph_of(projected, ((2, 8, 64), dtype), ((192, 64), dtype))
    assert aten.clone.default not in targets(graph)
    (output,) = graph.output_node().args[0]  # type: ignore[misc]
    assert value(output).is_contiguous()


def test_an_output_keeps_the_strides_of_eager_although_the_kernel_has_others() -> None:
    specs = [((2, 8, 4, 16), BF16)] * 3

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))

    (output,) = graph_of(fn, *specs).output_node().args[0]  # type: ignore[misc]
    assert value(output).stride() == (512, 128, 16, 1)


def test_the_kernel_is_one_that_may_run() -> None:
    q = torch.empty(2, 4, 8, 16, dtype=BF16, device="meta")
    assert kernel_of(q, q, q, None, False, False) == Kernel("math", None)
    seen = []
    for enabled in (True, False):
        before = torch.backends.cuda.flash_sdp_enabled()
        torch.backends.cuda.enable_flash_sdp(enabled)
        try:
            graph = graph_of(repeated, *SHARED)
        finally:
            torch.backends.cuda.enable_flash_sdp(before)
        seen.append(aten.expand.default in targets(graph))
    assert seen == [False, True]


def test_torch_is_asked_with_operands_that_lie_as_the_real_ones() -> None:
    q, k = torch.randn(2, 8, 4, 16).transpose(1, 2), torch.randn(2, 4, 8, 16)
    mask = torch.zeros(2, 1, 8, 1).expand(2, 4, 8, 8)
    found = asked(tuple(map(layout_of, (q, k, k, mask))), False, False, ())
    result = F.scaled_dot_product_attention(q, k, k, mask)
    assert found == Kernel("flash", result.stride())


# ---------------------------------------------------------------- what it all computes


SAME: list[Any] = [
    *((fn, QKV) for fn in (*CAUSAL, window, of_more_keys)),
    *((fn, SHARED) for fn in (repeated, interleaved, one_group)),
    *((with_mask, [(2, 4, n, 16), *SHARED[1:], (2, heads, n, 8)])
      for n in (1, 8) for heads in (1, 4)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("fn", "shapes"), SAME)
def test_the_graph_for_a_gpu_computes_what_eager_does(fn: Any, shapes: Any, dtype: Any) -> None:
    torch.manual_seed(0)
    args = [torch.randn(s).to(dtype) for s in shapes]
    graph = graph_of(fn, *((s, dtype) for s in shapes))
    assert targets(graph).count(SDPA) == 1
    found, expected, exact = (
        run_on_cpu(graph, *args), fn(*args), fn(*(a.double() for a in args)),
    )  # fmt: skip
    error, own = ((x.double() - exact).abs().max() for x in (expected, found))
    assert own <= error + 1e-6


def test_layouts_whose_sizes_vary_are_asked_for_with_the_sizes_at_hand():
    env = SizeEnv()
    n = symbolic(env, env.symbol(33))
    mode = FakeMode()
    mode.cache_enabled = False  # torch's own, as in a capture whose sizes vary
    with mode:
        x = torch.empty(1, 4, n, 16)
    assert layout_of(x) == layout_of(torch.empty(1, 4, 33, 16))
    assert hash(layout_of(x)) == hash(layout_of(torch.empty(1, 4, 33, 16)))
