"""Gradients where sizes vary: one forward and one backward serve every size, and equal eager's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from training_twin import assert_same, copied, leaf, newest, step, tensors

import torchweld.programs
from torchweld.pipeline import STATISTICS
from torchweld.runtime import gradients

LENGTHS = (5, 7, 8, 11, 13, 16, 23, 31, 40, 2)


def runs(fn, make, lengths=LENGTHS, graphs=2):
    """Results and gradients at each length; so many compilations, all generated."""
    torchweld.reset()
    torch.manual_seed(0)
    compiled = torchweld.compile(fn)
    for n in lengths:
        inputs = make(n)
        mine, theirs = ([copied(x) if x.is_floating_point() else x for x in inputs]
                        for _ in range(2))  # fmt: skip
        assert_same(step(compiled, mine), step(fn, theirs), rtol=1e-4, atol=1e-4)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["aten_graphs"], counts["internal_errors"]) == (graphs, 0, 0)
    return compiled


def rows(n):
    return [leaf(n, 4)]


def images(n):
    return [leaf(2, 3, n, n + 1)]


PROGRAMS = {
    "product": (lambda x, w: torch.softmax(x @ w, -1) * x.shape[0],
                lambda n: [leaf(n, 4), leaf(4, 6)]),
    "size in the denominator": (lambda x: x.sum(0) / x.shape[0], rows),
    "norm": (lambda x: F.layer_norm(x, (4,)) + x.std(0), rows),
    "cat": (lambda x: torch.cat([x, x * 2]).view(2, -1, 4).exp(), rows),
    "transposed": (lambda x: x.t().contiguous().view(-1).sin(), rows),
    "slices": (lambda x: x[:, :3].exp() + x[:1, 1:], rows),
    "first and last": (lambda x: x[0] * x[-1], rows),
    "pad": (lambda x: F.pad(x, (1, 2, 0, x.shape[0])).sin(), rows),
    "repeat": (lambda x: x.repeat(2, 1).tanh(), rows),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), images),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
                  lambda n: [leaf(2, 2, n, 8)]),
    "scores": (lambda q: torch.softmax(q @ q.transpose(1, 2) / q.shape[1] ** 0.5, -1) @ q,
               lambda n: [leaf(2, n, 4)]),
    "convolution": (lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2),
                    lambda n: [leaf(2, 3, n + 2, n + 3), leaf(4, 3, 3, 3)]),
    "embedding": (lambda w, ids: F.embedding(ids, w).sum(1),
                  lambda n: [leaf(7, 3), torch.randint(0, 7, (n, 4))]),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t),
                      lambda n: [leaf(n, 5), torch.randint(0, 5, (n,))]),
    "dropout": (lambda x: F.dropout(x, 0.5) * 2, rows),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_forward_and_one_backward_serve_every_size(name):
    runs(*PROGRAMS[name])
    assert all(len(c.backwards) == 1 for c in STATISTICS.compiled)


LAYERS = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
HIDDEN = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32,
          "intermediate_size": 64, "max_position_embeddings": 64}  # fmt: skip
MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**HIDDEN, **LAYERS)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=64, **LAYERS)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**HIDDEN, **LAYERS)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_ten_lengths_of_a_model_in_training_are_two_compilations(name):
    torch.manual_seed(0)
    model = MODELS[name]().train()
    twin = copy.deepcopy(model)
    torchweld.reset()
    compiled = torchweld.compile(model)
    for n in LENGTHS:
        ids = torch.randint(0, 100, (2, n))
        for run, owner in ((compiled, model), (twin, twin)):
            torch.manual_seed(n)
            owner.zero_grad()
            sum(t.square().mean() for t in tensors(run(ids)[0])).backward()
        assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()],
                    rtol=1e-3, atol=1e-5)  # fmt: skip
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)
    assert all(len(c.backwards) == 1 for c in STATISTICS.compiled)


def test_a_size_that_no_tensor_of_the_backward_has_is_given_as_a_number():
    compiled = torchweld.compile(lambda x, n: x.new_zeros(n, 4).add(x[: n - 1].sum(0)).cos())
    torchweld.reset()
    for n in (3, 4, 5, 9):
        x = leaf(n + 6, 4)
        y = copied(x)
        compiled(x, n).sum().backward()
        (y.new_zeros(n, 4) + y[: n - 1].sum(0)).cos().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert torchweld.statistics()["aten_graphs"] == 0
    sizes = newest().backwards[0].program.sizes
    assert any(kind == "number" for kind, _, _ in sizes.readings)


LAYOUTS = {
    "columns": lambda x: x[:, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 4),
    "windows": lambda x: x[:, 0].unfold(0, 2, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_input_with_gaps_or_shared_elements_is_read_where_it_lies(name):
    torchweld.reset()
    compiled = torchweld.compile(torch.sin)
    for n in (4, 6, 7):
        x = leaf(n, 8)
        given = LAYOUTS[name](x * 1)  # no leaf of the autograd graph
        (gradient,) = torch.autograd.grad(compiled(given).sum(), given)
        torch.testing.assert_close(gradient, given.detach().cos())
    assert torchweld.statistics()["aten_graphs"] == 0


def test_a_factor_that_is_a_complex_number_is_conjugated_at_every_size():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * (1 + 2j))
    for n in (3, 4, 5):
        x = leaf(n, 2)
        (gradient,) = torch.autograd.grad(torch.view_as_real(compiled(x)).sum(), x)
        torch.testing.assert_close(gradient, torch.full((n, 2), 3.0))
    assert torchweld.statistics()["internal_errors"] == 0


def test_gradients_with_other_strides_are_laid_out_for_every_size():
    runs(lambda x: x * 2, rows, graphs=2)
    compiled = torchweld.compile(lambda x: x * x)
    for n in (3, 4, 6):
        x = leaf(n, 4)
        (gradient,) = torch.autograd.grad(compiled(x), x, torch.ones(4, n).t())
        torch.testing.assert_close(gradient, 2 * x.detach())


def test_second_derivatives_are_eagers_at_every_size():
    compiled = torchweld.compile(lambda x: (x**3).sum(0) * x.shape[0])
    for n in (3, 4, 6):
        x = leaf(n, 4)
        (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * n * x.detach())


def test_a_backward_that_decides_more_than_is_guarded_serves_the_sizes_for_which_that_holds(
    monkeypatch,
):
    made = []
    fits = gradients.Gradients.fits
    monkeypatch.setattr(gradients.Gradients, "fits",
                        lambda self, sizes: made.append(fits(self, sizes)) or made[-1])  # fmt: skip
    compiled = torchweld.compile(lambda x: x * x)
    _decide_at_backward(monkeypatch)
    for n in (3, 4, 6, 5):
        x = leaf(n, 4)
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(gradient, 2 * x.detach())
    assert made == [True, False, True]  # the first is static


def test_a_memory_budget_fixes_no_size():
    fn = torchweld.compile(lambda x, w: torch.softmax(x @ w, -1).sin().exp(),
                           options={"memory_budget": 0.3})  # fmt: skip
    torchweld.reset()
    for n in (3, 5, 8):
        x, w = leaf(n, 4), leaf(4, 4)
        y, v = copied(x), copied(w)
        fn(x, w).sum().backward()
        torch.softmax(y @ v, -1).sin().exp().sum().backward()
        torch.testing.assert_close([x.grad, w.grad], [y.grad, v.grad])
    assert torchweld.statistics()["captures"] == 2


def _decide_at_backward(monkeypatch):
    """The stages behind a backward graph find out that the first size is at most 5."""
    plain = torchweld.programs.backward

    def deciding(joint, given, cfg):
        for place in joint.graph.find_nodes(op="placeholder"):
            bool(place.meta["val"].shape[0] <= 5)
        return plain(joint, given, cfg)

    monkeypatch.setattr(torchweld.programs, "backward", deciding)


def test_views_of_results_are_made_for_every_size():
    def fn(x):
        y = x * 2
        return y, y.view(x.shape[0], 2, 2), y[: x.shape[0] - 1]

    runs(fn, rows, LENGTHS[:-1])
    runs(fn, rows, (5, 2, 7), graphs=3)  # of two rows a view is of one, which fixes the size


@pytest.mark.parametrize("module", [
    nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False),
    nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.GroupNorm(3, 3),
], ids=lambda m: type(m).__name__)  # fmt: skip
def test_a_norm_of_images_that_need_no_gradient(module):
    ours = copy.deepcopy(module)
    torchweld.reset()
    compiled = torchweld.compile(ours)
    for n in (2, 5, 4, 7):
        x = torch.randn(n, 3, 4, n + 1)
        for run in (compiled, module):
            run(x).square().sum().backward()
        state = [[*m.buffers(), *(p.grad for p in m.parameters())] for m in (ours, module)]
        assert_same(*state, rtol=1e-4, atol=1e-4)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["internal_errors"]) == (2, 0)
    for made in newest().backwards:
        assert not any(getattr(s, "op", None) for s in made.program.steps)  # no call of ATen


def test_what_kron_reads_may_be_written_before_the_backward_as_in_eager():
    def fn(x, y):
        z = torch.kron(y[:1], x)
        y.copy_(2)
        return z

    def gradients(f, n):
        x, y = torch.ones(n, 3, requires_grad=True), torch.ones(2, 2, requires_grad=True)
        f(x, y * 1).sum().backward()
        return x.grad, y.grad

    torchweld.reset()
    compiled = torchweld.compile(fn)
    for n in (5, 3, 2):
        torch.testing.assert_close(gradients(compiled, n), gradients(fn, n))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"]) == (2, 0)
