"""Layers with state, randomness, casts and caches: the functional graph against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_capture import capture, compare, targets

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.graph.autograd import needs_autograd
from torchweld.graph.run import normalize

X = torch.randn(4, 6)
IMAGE = torch.randn(2, 3, 4, 4)


def stats():
    return [torch.rand(3), torch.rand(3) + 0.5, torch.tensor(7)]


def test_batch_norm_in_training_updates_its_statistics():
    def fn(x, mean, var, n):
        n.add_(1)
        return F.batch_norm(x, mean, var, torch.ones(3), None, True, 0.1, 1e-5)

    assert compare(fn, IMAGE, *stats()).mutated == (1, 2, 3)


def test_batch_norm_call_of_torch_itself_updates_its_statistics():
    def fn(x, mean, var):
        return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)

    assert compare(fn, IMAGE, *stats()[:2]).mutated == (1, 2)


def test_batch_norm_statistics_that_are_a_view_of_an_input():
    def fn(x, both):
        return F.batch_norm(x, both[0], both[1], training=True)

    assert compare(fn, IMAGE, torch.rand(2, 3) + 0.5).mutated == (1,)


def test_batch_norm_in_inference_changes_nothing():
    pair = compare(lambda x, m, v: F.batch_norm(x, m, v, v, m), IMAGE, *stats()[:2])
    assert pair.mutated == ()


def test_batch_norm_without_statistics():
    compare(lambda x: F.batch_norm(x, None, None, training=True), IMAGE)


def test_instance_norm_updates_its_statistics():
    pair = compare(lambda x, m, v: F.instance_norm(x, m, v, v, m), IMAGE, *stats()[:2])
    assert pair.mutated == (1, 2)


def test_native_batch_norm_updates_its_statistics():
    pair = compare(
        lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5), IMAGE,
        *stats()[:2],
    )  # fmt: skip
    assert pair.mutated == (1, 2)


def test_native_batch_norm_operator_whose_update_would_be_lost_is_refused():
    def fn(x, mean, var):
        op = torch.ops.aten.native_batch_norm.default
        return op(x, None, None, mean, var, True, 0.1, 1e-5)[0]

    with pytest.raises(Unsupported, match="in place"):
        normalize(capture(fn, IMAGE, *stats()[:2]), Config())


def test_cache_written_by_index_copy():
    def fn(cache, new, place):
        cache.index_copy_(2, place, new)
        return cache[:, :, :4].sum(-1)

    cache, new = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 1, 4)
    assert compare(fn, cache, new, torch.tensor([3])).mutated == (0,)


def test_cache_written_by_slice_assignment():
    def fn(cache, new):
        cache[:, :, 3:5] = new
        return cache @ new.transpose(-1, -2), cache

    pair = compare(fn, torch.randn(1, 2, 8, 4), torch.randn(1, 2, 2, 4))
    assert pair.mutated == (0,) and pair.aliases == (None, 0)


def test_dropout_draws_the_same_numbers():
    compare(lambda x: F.dropout(x, 0.5, True), X)
    compare(lambda x: F.dropout(x.t(), 0.5, True), X)
    compare(lambda x: F.dropout((x * 2)[:, ::2], 0.5, True, inplace=True), X)


def test_random_numbers_come_in_eager_order():
    def fn(x):
        torch.rand(3)
        a = torch.randn(20) + torch.rand_like(x).sum()
        x = x * torch.bernoulli(torch.full((4, 6), 0.3))
        return a, x.uniform_(0, 1), torch.randint(0, 9, (5,)), torch.randperm(4)

    compare(fn, X)


def test_unused_random_call_stays():
    pair = compare(lambda x: (torch.rand(3), x + 1)[1], X)
    assert targets(pair) == ["aten.rand.default", "aten.add.Tensor"]


def test_equal_random_calls_are_two_calls():
    compare(lambda x: torch.rand_like(x) - torch.rand_like(x), X)


@pytest.mark.parametrize("method", ["normal_", "uniform_", "exponential_", "bernoulli_", "random_"])
def test_random_fill_of_a_strided_view_is_right_or_refused(method):
    def fn(x):
        y = torch.zeros(20, 30)
        getattr(y[:, ::2], method)()
        getattr(y.t()[3:25], method)()
        return y

    if method == "normal_":
        with pytest.raises(Unsupported, match="gaps"):
            compare(fn, X)
    else:
        compare(fn, X)


def test_autocast_region_is_casts():
    def fn(x, w):
        mode = torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, True)
        y = F.linear(x, w)
        torch.amp.autocast_mode._exit_autocast(mode)
        return y, F.linear(x, w)

    gm = capture(lambda x, w: x, X, torch.randn(3, 6))
    gm.graph.erase_node(gm.graph.output_node())
    x, w = list(gm.graph.nodes)
    enter = gm.graph.call_function(
        torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, True)
    )
    low = gm.graph.call_function(F.linear, (x, w))
    gm.graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    high = gm.graph.call_function(F.linear, (x, w))
    gm.graph.output((low, high))
    pair = normalize(gm, Config())
    a, b = pair.forward.output_node().args[0]
    assert (a.meta["val"].dtype, b.meta["val"].dtype) == (torch.bfloat16, torch.float32)
    assert targets(pair).count("aten._to_copy.default") == 2
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_left_open_by_an_error_is_closed():
    gm = capture(lambda x: x, X)
    gm.graph.erase_node(gm.graph.output_node())
    (x,) = gm.graph.nodes
    gm.graph.call_function(
        torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, True)
    )
    gm.graph.output((gm.graph.call_method("no_such_method", (x,)),))
    with pytest.raises(Unsupported, match="no_such_method"):
        normalize(gm, Config())
    assert not torch.is_autocast_enabled("cpu")
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Functionalize)


def test_inside_inference_mode():
    with torch.inference_mode():
        compare(lambda x, y: (x.add_(1), x @ y.t(), y[0]), torch.randn(4, 6), torch.randn(3, 6))


def test_weights_that_require_grad_under_no_grad():
    w = torch.randn(3, 6, requires_grad=True)
    with torch.no_grad():
        compare(lambda x, w: F.linear(x, w).relu(), X, w)


def test_gradient_is_needed_only_in_grad_mode():
    w = torch.randn(3, 6, requires_grad=True)
    gm = capture(F.linear, X, w)
    fakes = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    assert needs_autograd(gm, fakes)
    assert not needs_autograd(gm, fakes, grad_enabled=False)
    with torch.no_grad():
        gm = capture(F.linear, X, w)
        assert not needs_autograd(gm, fakes)


def test_no_grad_region_inside_the_graph_needs_no_gradient():
    w = torch.randn(3, 6, requires_grad=True)
    gm = capture(lambda x, w: w, X, w)
    gm.graph.erase_node(gm.graph.output_node())
    x, w_node = list(gm.graph.nodes)
    gm.graph.call_function(torch._C._set_grad_enabled, (False,))
    y = gm.graph.call_function(F.linear, (x, w_node))
    gm.graph.call_function(torch._C._set_grad_enabled, (True,))
    fakes = [n.meta["val"] for n in (x, w_node)]
    assert not needs_autograd(gm, fakes, grad_enabled=True)
    gm.graph.call_function(F.relu, (w_node,))
    assert needs_autograd(gm, fakes, grad_enabled=True)
    gm.graph.output((y,))
    assert len(targets(normalize(gm, Config()))) == 2


def test_attention_and_rotation():
    def fn(q, k, v, cos, sin):
        def turn(x):
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        q, k = turn(q), turn(k)
        k, v = (t[:, :, None].expand(1, 2, 2, 5, 8).reshape(1, 4, 5, 8) for t in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        b = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        return a.transpose(1, 2).contiguous().view(1, 5, -1), b

    q, kv = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    pair = compare(fn, q, kv, kv + 1, torch.randn(5, 8), torch.randn(5, 8))
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in targets(pair)


def test_losses_and_pooling():
    def fn(x, labels, image):
        a = F.cross_entropy(x, labels, label_smoothing=0.1)
        b = F.max_pool2d(image, 2) + F.adaptive_avg_pool2d(image, 2)
        c = F.interpolate(image, scale_factor=2, mode="bilinear")
        return a, b, c, F.group_norm(image, 3), F.pad(image, (1, 1, 2, 0), mode="reflect")

    compare(fn, X, torch.tensor([0, 1, 5, 3]), IMAGE)


def test_convolution_in_channels_last_keeps_strides():
    image = IMAGE.to(memory_format=torch.channels_last)
    compare(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), image, torch.randn(5, 3, 3, 3))


def test_embedding_that_renormalises_its_weight_updates_it():
    pair = compare(lambda i, w: F.embedding(i, w, max_norm=1.0), torch.tensor([0, 2, 2]), X)
    assert pair.mutated == (1,)
