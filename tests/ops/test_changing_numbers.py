"""Operators whose numbers change from call to call: compiled once for all values, eager's results.

Of every operator a function, and where there is one a method or a module's attribute, with six
values: the first is compiled as it is, the second for any other.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.pipeline import STATISTICS

VALUES = (0.5, 0.25, 0.75, 0.3, 0.9, 0.1)
X = torch.linspace(-2, 2, 40).reshape(5, 8)
_maker = torch.Generator().manual_seed(1)
Y = torch.randn(5, 8, generator=_maker)
W = torch.randn(8, 8, generator=_maker)
P = torch.rand(5, 8, generator=_maker)
Q = torch.randn(2, 3, 6, 8, generator=_maker)
CLASSES = torch.tensor([0, 3, 7, 2, 1])
SIGNS = torch.where(P > 0.5, 1.0, -1.0)
NAN, INF = math.nan, math.inf


def assigned(x, v):
    y = x.clone()
    y[:, 0] = v
    y[x > 1] = v
    return y


def normed(x, v, **kwargs):
    mean, var = torch.zeros(8), torch.ones(8)
    return F.batch_norm(x, mean, var, training=True, **kwargs), mean, var


DRAWN = {
    "dropout": lambda x, v: F.dropout(x, v), "dropout1d": lambda x, v: F.dropout1d(x, v),
    "alpha_dropout": lambda x, v: F.alpha_dropout(x, v, training=True),
    "feature_alpha_dropout": lambda x, v: F.feature_alpha_dropout(x, v, training=True),
    "bernoulli": lambda x, v: torch.bernoulli(x.detach(), v) * x,
    "bernoulli_": lambda x, v: torch.empty_like(x).bernoulli_(v) * x,
    "normal_": lambda x, v: torch.empty_like(x).normal_(v, v) * x,
    "normal": lambda x, v: torch.normal(x.detach(), v) + torch.normal(v, P) + torch.normal(
        v, v, (5, 8)),
    "uniform_": lambda x, v: x.new_empty(3).uniform_(-v, v),
    "exponential_": lambda x, v: x.new_empty(3).exponential_(v),
    "log_normal_": lambda x, v: x.new_empty(3).log_normal_(v, v),
    "cauchy_": lambda x, v: x.new_empty(3).cauchy_(v, v),
    "geometric_": lambda x, v: x.new_empty(3).geometric_(v),
    "init": lambda x, v: nn.init.xavier_uniform_(x.new_empty(3, 3), v),
    "gumbel_softmax": lambda x, v: F.gumbel_softmax(x, v),
    "attention": lambda x, v: F.scaled_dot_product_attention(Q * x.sum(), Q, Q, dropout_p=v),
}  # fmt: skip
LOSSES = {
    "cross_entropy": lambda x, v: F.cross_entropy(x, CLASSES, label_smoothing=v),
    "cross_entropy of probabilities": lambda x, v: F.cross_entropy(x, P, label_smoothing=v),
    "cross_entropy of each": lambda x, v: F.cross_entropy(
        x, CLASSES, ignore_index=3, label_smoothing=v, reduction="none"),
    "smooth_l1": lambda x, v: F.smooth_l1_loss(x, Y, beta=v),
    "huber": lambda x, v: F.huber_loss(x, Y, delta=v, reduction="sum"),
    "margin_ranking": lambda x, v: F.margin_ranking_loss(x, Y, SIGNS, margin=v),
    "hinge_embedding": lambda x, v: F.hinge_embedding_loss(x, SIGNS, margin=v),
    "cosine_embedding": lambda x, v: F.cosine_embedding_loss(x, Y, SIGNS[:, 0], margin=v),
    "multi_margin": lambda x, v: F.multi_margin_loss(x, CLASSES, margin=v),
    "triplet_margin": lambda x, v: F.triplet_margin_loss(x, Y, W[:5], margin=v, swap=True),
    "poisson_nll": lambda x, v: F.poisson_nll_loss(
        x.exp(), P * 3, log_input=False, full=True, eps=v),
    "weights of two": lambda x, v: (1 - v) * F.mse_loss(x, Y) + v * F.l1_loss(x, Y),
}  # fmt: skip
ELEMENTS = {
    "elu": F.elu, "celu": F.celu, "softplus": F.softplus, "leaky_relu": F.leaky_relu,
    "threshold of softplus": lambda x, v: F.softplus(x, 1.0, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -v, v), "softshrink": F.softshrink,
    "threshold": lambda x, v: F.threshold(x, v, v), "hardshrink": F.hardshrink,
    "clamp": lambda x, v: x.clamp(-v, v), "clip": lambda x, v: torch.clip(x, max=v),
    "pow": lambda x, v: x.abs().pow(v), "reflected pow": lambda x, v: v**x,
    "float_power": lambda x, v: torch.float_power(x.abs(), v),
    "remainder": lambda x, v: x % v, "fmod": torch.fmod,
    "floor": lambda x, v: (x.detach() // v) * x,
    "rounded": lambda x, v: torch.div(x, v, rounding_mode="trunc") * x,
    "copysign": torch.copysign, "xlogy": torch.xlogy, "rsub": torch.rsub,
    "sum": lambda x, v: v + x - v, "alpha": lambda x, v: torch.add(x, Y, alpha=v).sub(Y, alpha=v),
    "lerp": lambda x, v: torch.lerp(x, Y, v), "addcmul": lambda x, v: x.addcmul(Y, Y, value=v),
    "addcdiv": lambda x, v: torch.addcdiv(x, Y, P + 1, value=v),
    "nan_to_num": lambda x, v: torch.nan_to_num(x / 0, nan=v, posinf=v, neginf=-v),
    "logit": lambda x, v: torch.logit(x.sigmoid(), v / 3),
    "isclose": lambda x, v: torch.isclose(x, Y, rtol=v, atol=v) * x,
    "in place": lambda x, v: x.clone().mul_(v).add_(v).div_(v).clamp_(max=v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v), "assigned": assigned,
    "index_fill": lambda x, v: x.index_fill(0, CLASSES[:1], v),
    "scatter": lambda x, v: x.scatter(1, CLASSES[:, None], v),
    "index_add": lambda x, v: x.index_add(0, CLASSES[:1], Y[:1], alpha=v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v), "where": lambda x, v: torch.where(x > 0, v, x),
    "integers": lambda x, v: x * (CLASSES[:, None] * v + v),
}  # fmt: skip
OTHERS = {
    "addmm": lambda x, v: torch.addmm(x, x, W, beta=v, alpha=v),
    "addmm_": lambda x, v: x.clone().addmm_(x, W, beta=v, alpha=v),
    "addmv": lambda x, v: torch.addmv(x[0], W, x[1], beta=v, alpha=v),
    "addr": lambda x, v: torch.addr(x, x[:, 0], x[0], beta=v, alpha=v),
    "baddbmm": lambda x, v: torch.baddbmm(x[None], x[None], W[None], beta=v, alpha=v),
    "scale of attention": lambda x, v: F.scaled_dot_product_attention(
        Q * x.sum().sigmoid(), Q, Q, scale=v),
    "momentum of batch_norm": lambda x, v: normed(x, v, momentum=v),
    "eps of batch_norm": lambda x, v: normed(x, v, eps=v),
    "batch_norm that is trained": lambda x, v: F.batch_norm(
        x, Y[0], P[0], W[0], W[1], eps=v),
    "instance_norm": lambda x, v: F.instance_norm(x[None], eps=v),
    "group_norm": lambda x, v: F.group_norm(x, 2, W[0], W[1], eps=v),
    "layer_norm": lambda x, v: F.layer_norm(x, (8,), eps=v),
    "rms_norm": lambda x, v: F.rms_norm(x, (8,), eps=v),
    "local_response_norm": lambda x, v: F.local_response_norm(x[None], 3, alpha=v, beta=v, k=v),
    "normalize": lambda x, v: F.normalize(x, eps=v),
    "cosine_similarity": lambda x, v: F.cosine_similarity(x, Y, eps=v),
    "pairwise_distance": lambda x, v: F.pairwise_distance(x, Y, eps=v),
    "quantile": lambda x, v: torch.quantile(x, v, dim=1),
    "renorm": lambda x, v: torch.renorm(x, 2, 0, v),
    "temperature": lambda x, v: F.kl_div(
        F.log_softmax(x / v, -1), F.softmax(Y / v, -1), reduction="batchmean") * v**2,
    "made": lambda x, v: x[0, :3] * torch.full((3,), v) + x.new_tensor(v) + torch.tensor(
        [v, 2 * v, 1.0]),
    "linspace": lambda x, v: x[0, :5] * torch.linspace(0, v, 5) + torch.logspace(0, v, 5),
    "lists": lambda x, v: torch._foreach_mul(torch._foreach_add([x, Y], [Y, Y], alpha=v), v)[0],
}  # fmt: skip
OPERATORS = {**DRAWN, **LOSSES, **ELEMENTS, **OTHERS}


def outcome(fn, v, grad, dtype=torch.float32):
    """What a call gives: tensors and the gradient, or the class of its error."""
    torch.manual_seed(3)
    x = X.clone().to(dtype).requires_grad_(grad)
    try:
        made = fn(x, v)
        made = [made] if isinstance(made, torch.Tensor) else list(made)
        given = [t for t in made if t.requires_grad]
        return [*made, *(torch.autograd.grad([t.sum() for t in given], x) if given else ())]
    except Exception as error:
        return type(error)


def check(fn, values, grad=False, **close):
    torchweld.reset()
    compiled = torchweld.compile(lambda x, v: fn(x, v))
    for v in values:
        want, got = outcome(fn, v, grad), outcome(compiled, v, grad)
        if isinstance(want, type):
            assert got is want, (v, got)
        else:
            torch.testing.assert_close(got, want, equal_nan=True, **close)
    assert STATISTICS.counts()["internal_errors"] == 0, STATISTICS.refusals
    return STATISTICS.counts()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_that_changes_is_compiled_once(name, grad):
    counts = check(OPERATORS[name], VALUES, grad, rtol=1e-4, atol=1e-5)
    assert (counts["graphs"], counts["aten_graphs"]) == (2, 0), STATISTICS.refusals


SPECIAL = (0.5, 0.25, 0.0, 1.0, -1.0, -0.0, INF, -INF, NAN, 0.3)
# without a gradient: where both factors of a product are infinite, eager's order of sums decides
NO_GRADIENT = ("addmm", "addmm_", "addmv", "addr", "baddbmm", "hardtanh", "hardshrink")


@pytest.mark.parametrize("name", [*LOSSES, *ELEMENTS, *OTHERS, "dropout", "bernoulli_"])
def test_values_that_are_special_give_what_eager_gives(name):
    check(OPERATORS[name], SPECIAL, name not in NO_GRADIENT, rtol=1e-4, atol=1e-4)


INTEGERS = {
    "sum": lambda x, n: CLASSES + n, "product": lambda x, n: n * CLASSES,
    "quotient": lambda x, n: CLASSES // (n + 1), "rest": lambda x, n: CLASSES % (n + 1),
    "power": lambda x, n: CLASSES**n, "compared": lambda x, n: (n < CLASSES) | (n == CLASSES),
    "bits": lambda x, n: (CLASSES & n) << n, "clamp": lambda x, n: CLASSES.clamp(max=n),
    "float": lambda x, n: x * n + n, "slope": lambda x, n: F.leaky_relu(x, n),
    "roll": lambda x, n: x.roll(n, 1), "triangle": lambda x, n: x.tril(n),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_that_changes_is_compiled_once(name):
    counts = check(INTEGERS[name], (3, 2, 4, 5, 6, 7))
    assert (counts["graphs"], counts["aten_graphs"]) == (2, 0), STATISTICS.refusals


MODULES = {
    "dropout": (lambda: nn.Dropout(0.5), "p"), "elu": (nn.ELU, "alpha"),
    "softplus": (nn.Softplus, "beta"), "layer norm": (lambda: nn.LayerNorm(8), "eps"),
    "batch norm": (lambda: nn.BatchNorm1d(8), "momentum"), "threshold": (
        lambda: nn.Threshold(0.1, 0.2), "threshold"), "celu": (nn.CELU, "alpha"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_an_attribute_of_a_module_that_changes_is_compiled_once(name):
    make, attribute = MODULES[name]
    torchweld.reset()
    eager, module = make(), make()
    compiled = torchweld.compile(module)
    for v in VALUES:
        setattr(eager, attribute, v)
        setattr(module, attribute, v)
        want, got = outcome(lambda x, v: eager(x), v, True), outcome(
            lambda x, v: compiled(x), v, True)  # fmt: skip
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert STATISTICS.counts()["graphs"] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["softshrink", "clamp", "sum", "remainder", "elu", "smooth_l1"])
def test_a_number_is_rounded_where_eager_rounds_it(name, dtype):
    torchweld.reset()
    fn = OPERATORS[name] if name != "smooth_l1" else (
        lambda x, v: F.smooth_l1_loss(x, Y.to(dtype), beta=v))  # fmt: skip
    compiled = torchweld.compile(lambda x, v: fn(x, v))
    for v in VALUES:
        want, got = outcome(fn, v, False, dtype), outcome(compiled, v, False, dtype)
        torch.testing.assert_close(got, want, atol=0, rtol=1e-12 if dtype is torch.float64 else 0)


def test_an_operator_that_has_to_know_a_number_has_it_fixed():
    """Gradients of a norm ask which one it is: the graph is compiled for each."""
    counts = check(lambda x, v: torch.norm(x, p=v), (1.5, 2.5, 3.5), True, rtol=1e-4, atol=1e-5)
    assert counts["graphs"] == 4
    torchweld.reset()
