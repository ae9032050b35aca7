"""Models of the zoo in training mode: one step, and twenty, equal eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from training_twin import assert_generated, assert_same, newest, tensors

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.models import ZOO


def make(name):
    """A model in training mode, and its inputs; the same on every call."""
    torch.manual_seed(7)
    work = ZOO[name]("small")
    model = work.fn.train()
    return model, work.kwargs


def loss_of(outs):
    """Something that depends on every result."""
    return sum(t.float().square().mean() for t in tensors(list(outs.values()))
               if t.requires_grad)  # fmt: skip


def one_step(run, kwargs):
    torch.manual_seed(5)
    loss = loss_of(run(**copy.deepcopy(kwargs)))
    loss.backward()
    return loss


@pytest.mark.parametrize("name", sorted(ZOO))
def test_one_step_leaves_eagers_gradients_and_buffers(name):
    model, kwargs = make(name)
    ours = copy.deepcopy(model)
    torchweld.reset()
    got, want = one_step(torchweld.compile(ours), kwargs), one_step(model, kwargs)
    assert_same(
        [got, *(p.grad for p in ours.parameters()), *ours.buffers()],
        [want, *(p.grad for p in model.parameters()), *model.buffers()],
        rtol=1e-3, atol=1e-4,
    )  # fmt: skip
    assert (STATISTICS.graphs, STATISTICS.breaks) == (1, 0), STATISTICS.refusals
    assert_generated(newest())


@pytest.mark.parametrize(("name", "optimizer"), [
    *((name, torch.optim.AdamW) for name in sorted(ZOO)),
    *((name, torch.optim.SGD) for name in ("bert", "gpt2", "llama", "resnet")),
])  # fmt: skip
def test_twenty_steps_give_eagers_losses(name, optimizer):
    model, kwargs = make(name)
    ours = copy.deepcopy(model)
    torchweld.reset()
    curves = []
    for run, owner in ((torchweld.compile(ours), ours), (model, model)):
        steps = optimizer(owner.parameters(), lr=1e-3)
        curve = []
        for _ in range(20):
            steps.zero_grad()
            curve.append(one_step(run, kwargs).detach())
            steps.step()
        curves.append(torch.stack(curve))
    torch.testing.assert_close(curves[0], curves[1], rtol=1e-3, atol=1e-4)
    assert STATISTICS.recompiles == 0 and STATISTICS.aten_graphs == 0
