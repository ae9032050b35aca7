"""Modes that are set around a compiled call, as its backward sees them."""

import warnings

import pytest
import torch
from torch import nn
from training_twin import leaf

import torchweld


def test_the_backward_runs_outside_of_the_autocast_of_its_forward():
    def product(x, w):
        with torch.autocast("cpu", enabled=False):
            return x.float() @ w.t()

    torchweld.reset()
    x, w = torch.randn(3, 6).bfloat16(), leaf(6, 6)
    for run in (product, torchweld.compile(product)):
        with torch.autocast("cpu", torch.bfloat16):
            out = run(x, w)
        out.backward(torch.linspace(0, 1, 18).reshape(3, 6))
    whole, w.grad = w.grad, None
    product(x, w).backward(torch.linspace(0, 1, 18).reshape(3, 6))
    torch.testing.assert_close(whole, 2 * w.grad, rtol=1e-6, atol=1e-6)
    assert torchweld.statistics()["graphs"] == 1


@pytest.mark.parametrize("backend", ["torchweld", "eager"])
def test_hooks_around_the_call_see_real_tensors_once(backend):
    seen = []

    def pack(x):
        seen.append(type(x))
        return x

    torchweld.reset()
    compiled = torchweld.compile(lambda a, b: a * b, backend=backend)
    for _ in range(2):
        seen.clear()
        a, b = leaf(3), leaf(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x * 2):
            y = compiled(a, b)
        y.sum().backward()
        assert seen == [torch.Tensor, torch.Tensor]
        torch.testing.assert_close(a.grad, 2 * b.detach())
        torch.testing.assert_close(b.grad, 2 * a.detach())


def test_a_compilation_under_autocast_warns_of_nothing():
    torchweld.reset()
    compiled = torchweld.compile(nn.Linear(3, 3))
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        assert compiled(torch.randn(2, 3)).dtype is torch.bfloat16
