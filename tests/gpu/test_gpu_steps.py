"""Training steps as one function on a GPU: one graph, and what eager leaves."""

from __future__ import annotations

import copy

import pytest
import torch
from models import make

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.suites import to_device

pytestmark = pytest.mark.gpu
STEPS = 6  # a first one, recording, and replays


def make_step(model, kwargs):
    def step():
        loss = sum(t.float().square().mean() for t in model(**kwargs).values()
                   if isinstance(t, torch.Tensor))  # fmt: skip
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=1e-3)
                    p.grad = None
        return loss.detach()

    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_steps_equal_eager_in_one_graph(name, dtype):
    work = to_device(make(name), "cuda")
    theirs = work.fn.to(dtype).train()
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    kwargs = {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
              for k, v in work.kwargs.items()}  # fmt: skip
    mine = copy.deepcopy(theirs)
    torchweld.reset()
    step, eager = torchweld.compile(make_step(mine, kwargs)), make_step(theirs, kwargs)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float32 else {"rtol": 0.1, "atol": 0.1}
    for _ in range(STEPS):
        torch.testing.assert_close(step(), eager(), **close)
    (made,) = STATISTICS.compiled
    assert made.refusal is None and not made.differentiable, made.text()
    assert (STATISTICS.breaks, STATISTICS.internal_errors) == (0, 0)


def test_gradients_are_set_and_added_to():
    def step(x):
        model(x).square().mean().backward()

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, device="cuda")
    like = copy.deepcopy(model)
    compiled = torchweld.compile(step)
    for _ in range(STEPS):
        x = torch.randn(32, 64, device="cuda")
        compiled(x)
        like(x).square().mean().backward()
        for p, q in zip(model.parameters(), like.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adam", "RMSprop"])
def test_the_optimizers_step_is_in_the_same_cuda_graph(optimizer):
    """GPT-2 has tables that a prologue makes, and counters that are on the CPU."""
    work = to_device(make("gpt2"), "cuda")
    theirs = work.fn.train()
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    mine = copy.deepcopy(theirs)
    torchweld.reset()

    def whole(model):
        optim = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)

        def step():
            optim.zero_grad()
            loss = model(**work.kwargs)[0].float().square().mean()
            loss.backward()
            optim.step()
            return loss.detach()

        return step

    step, eager = torchweld.compile(whole(mine)), whole(theirs)
    before = torchweld.memory_report().graphs
    for _ in range(STEPS):
        torch.testing.assert_close(step(), eager(), rtol=1e-3, atol=1e-3)
    assert torchweld.memory_report().graphs > before
    assert (STATISTICS.breaks, STATISTICS.internal_errors) == (0, 0)
    first, second = STATISTICS.compiled  # the first one makes the state and is of no use then
    assert first.refusal is not None and first.refusal.code == "W121"
    assert second.refusal is None, second.text()
