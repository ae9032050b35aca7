"""Small programs of every kind: results and gradients equal eager's, and both are generated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from training_twin import assert_generated, check, check_module, copied, leaf, newest

import torchweld
from torchweld.base import config

torch.manual_seed(0)
X = leaf(5, 8)
W = leaf(8, 8)
B = leaf(8)
IMAGE = leaf(2, 3, 6, 6)

ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu6": F.relu6,
    "hardtanh": F.hardtanh, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu, "elu": F.elu, "celu": F.celu, "selu": F.selu,
    "softplus": F.softplus, "mish": F.mish, "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink, "softshrink": F.softshrink, "glu": F.glu,
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, 0),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])), "exp": torch.exp, "sin": torch.sin,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1), "pow": lambda x: (x * x + 1).pow(1.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5), "where": lambda x: torch.where(x > 0, x, x * x),
    "maximum": lambda x: torch.maximum(x, -x * 2), "abs": torch.abs, "erf": torch.erf,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation(name):
    f = ACTIVATIONS[name]
    assert_generated(check(lambda x, b: f(x + b) * 2, X, B))


SHAPES = {
    "view": lambda x: x.view(4, 10) * 2, "slice": lambda x: x[1:4, ::2] * 2,
    "select": lambda x: x[2] * x[0], "transpose": lambda x: x.t().exp(),
    "cat": lambda x: torch.cat([x, x * 2], 1).sin(), "stack": lambda x: torch.stack([x, x.exp()]),
    "split": lambda x: sum(c * i for i, c in enumerate(x.split(3, 1)) if c.shape[1] == 3),
    "expand": lambda x: x[:, None].expand(5, 3, 8) * 2, "pad": lambda x: F.pad(x, (1, 2)) * 2,
    "flip": lambda x: x.flip(0) * x, "roll": lambda x: x.roll(2, 1) * x,
    "gather": lambda x: x.gather(1, torch.arange(10).view(5, 2) % 8) * 2,
    "index": lambda x: x[[0, 2, 2]] * 3, "mask": lambda x: x.masked_fill(x > 0, 0.5) * x,
    "cumsum": lambda x: x.cumsum(1) * x, "diagonal": lambda x: x.diagonal() * 2,
    "unfold": lambda x: x.unfold(1, 3, 2) * 2, "repeat": lambda x: x.repeat(2, 3) * 2,
    "index_add": lambda x: torch.zeros(3, 8).index_add(0, torch.tensor([0, 1, 1, 2, 0]), x) * x[:3],
    "scatter_add": lambda x: torch.zeros(5, 8).scatter_add(
        1, torch.arange(40).view(5, 8) % 3, x * 2),
    "tril": lambda x: x[:, :5].tril() * 2,
    "permute": lambda x: x.view(5, 2, 4).permute(2, 0, 1) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_shape(name):
    assert_generated(check(SHAPES[name], X))


REDUCTIONS = {
    "sum": lambda x: x.sum(0) * 2, "mean": lambda x: x.mean(-1, keepdim=True) * x,
    "var": lambda x: x.var(0) * 2, "std": lambda x: x.std(1) * 2, "amax": lambda x: x.amax(1) * 2,
    "max": lambda x: x.max(1)[0] * 2, "norm": lambda x: x.norm(dim=1) * 2,
    "logsumexp": lambda x: x.logsumexp(1) * 2, "prod": lambda x: x.prod(1) * 2,
    "all_of_it": lambda x: (x * x).sum().sqrt() * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_reduction(name):
    assert_generated(check(REDUCTIONS[name], X))


LOSSES = {
    "mse": lambda x: F.mse_loss(x, torch.ones(5, 8)) * 2,
    "l1": lambda x: F.l1_loss(x, torch.ones(5, 8)) * 2,
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.ones(5, 8)) * 2,
    "huber": lambda x: F.huber_loss(x, torch.ones(5, 8)) * 2,
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(5, 8)) * 2,
    "kl": lambda x: F.kl_div(x.log_softmax(1), torch.ones(5, 8) / 8) * 2,
    "nll_sum": lambda x: F.nll_loss(x, torch.arange(5), reduction="sum") * 2,
    "nll_none": lambda x: F.nll_loss(x, torch.arange(5), reduction="none") * 2,
    "cross_entropy": lambda x: F.cross_entropy(x * 2, torch.arange(5)),
    "ignored": lambda x: F.cross_entropy(x * 2, torch.tensor([1, -100, 3, -100, 0])),
    "smoothed": lambda x: F.cross_entropy(x * 2, torch.arange(5), label_smoothing=0.1),
    "weighted": lambda x: F.cross_entropy(x * 2, torch.arange(5), torch.arange(8) * 1.0 + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_loss(name):
    assert_generated(check(LOSSES[name], X))


LAYERS = {
    "linear": lambda x, w, b: F.linear(x, w, b).relu(),
    "layer_norm": lambda x, w, b: F.layer_norm(x @ w, (8,), b, b * 2),
    "rms_norm": lambda x, w, b: F.rms_norm(x @ w, (8,), b),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, b, b * 2),
    "batch_norm": lambda x, w, b: F.batch_norm(x @ w, None, None, b, b * 2, training=True),
    "dropout": lambda x, w, b: F.dropout(x @ w, 0.4) * b,
    "embedding": lambda x, w, b: F.embedding(torch.tensor([1, 3, 3]), w) * b,
    "attention": lambda x, w, b: F.scaled_dot_product_attention(
        x.view(1, 1, 5, 8), w[:5].view(1, 1, 5, 8), x.view(1, 1, 5, 8) + b, is_causal=True),
    "attention_by_hand": lambda x, w, b: (((x @ w) @ x.t()) / 3).softmax(-1) @ (x + b),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert_generated(check(LAYERS[name], X, W, B))


IMAGES = {
    "conv": lambda x: F.conv2d(x * 2, torch.ones(4, 3, 3, 3), torch.ones(4)).relu(),
    "max_pool": lambda x: F.max_pool2d(x * 2, 2) * 2,
    "avg_pool": lambda x: F.avg_pool2d(x * 2, 2) * 2,
    "adaptive": lambda x: F.adaptive_avg_pool2d(x * 2, 1) * 2,
    "upsample": lambda x: F.interpolate(x * 2, scale_factor=2) * 2,
    "bilinear": lambda x: F.interpolate(x * 2, scale_factor=2, mode="bilinear") * 2,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last).relu() * 2,
    "group_norm": lambda x: F.group_norm(x * 2, 3, torch.ones(3), torch.ones(3)),
    "instance_norm": lambda x: F.instance_norm(x * 2) * 2,
    "pixel_shuffle": lambda x: F.pixel_unshuffle(x * 2, 2) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_image(name):
    assert_generated(check(IMAGES[name], IMAGE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype(dtype):
    x, w = leaf(6, 8, dtype=dtype), leaf(8, 8, dtype=dtype)
    exact = {} if dtype is torch.float64 else {"rtol": 3e-2, "atol": 3e-2}
    assert_generated(check(lambda x, w: F.gelu(x @ w).softmax(-1), x, w, **exact))


def test_inputs_that_are_not_contiguous():
    assert_generated(check(lambda x, w: (x * w.t()).exp(), leaf(8, 6).t(), leaf(8, 6)))


def test_empty_tensor():
    check(lambda x: (x * 2).sum() + 1, leaf(0, 3))


@pytest.mark.parametrize("budget", [0, 0.3, 0.6])
def test_gradients_are_the_same_with_any_memory_budget(budget):
    x, w = leaf(4, 6), leaf(6, 6)

    def fn(x, w):
        y = F.layer_norm(F.dropout(x, 0.3) @ w, (6,))
        y = F.scaled_dot_product_attention(y[None], y[None], y[None])[0]
        return F.gelu(y @ w) @ w.t()

    with config.override(memory_budget=budget):
        assert_generated(check(fn, x, w, rtol=1e-4, atol=1e-4))


def test_memory_budget_is_an_option():
    def saved(**options):
        torchweld.reset()
        compiled = torchweld.compile(lambda x, w: F.gelu(x @ w) @ w, options=options)
        compiled(copied(X), copied(W))
        return len(newest().executable.program.outputs)

    assert saved(memory_budget=0) < saved(memory_budget=1) == saved()


def test_batch_norm_of_an_input_without_a_gradient():
    assert_generated(check_module(torch.nn.BatchNorm1d(5), torch.randn(6, 5)))


def of_two_dtypes():
    return [torch.randn(4, 5, dtype=dtype).requires_grad_()
            for dtype in (torch.float32, torch.float64)]  # fmt: skip


def eager_has_gradients(loss):
    """torch 2.11 has none of mse_loss."""
    try:
        loss(*of_two_dtypes()).backward()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("loss", filter(eager_has_gradients, [F.smooth_l1_loss, F.mse_loss]))
def test_a_loss_of_two_dtypes_has_a_gradient_of_each(loss):
    inputs = of_two_dtypes()
    torchweld.reset()
    got = torch.autograd.grad(torchweld.compile(lambda a, b: loss(a, b))(*inputs), inputs)
    want = torch.autograd.grad(loss(*inputs), inputs)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
    assert torchweld.statistics()["internal_errors"] == 0
