"""Gradients of the zoo in bf16: as near to those of f64 as eager's are."""

from __future__ import annotations

import copy

import pytest
import torch
from training_twin import assert_generated, newest, tensors

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.models import ZOO

WORSE = 1.3  # how much farther from f64 than eager; both round, in another order
ROUNDING = 2**-9  # of bf16


def make(name):
    """A model in training mode that draws no random numbers, and its inputs."""
    torch.manual_seed(7)
    work = ZOO[name]("small")
    for module in work.fn.modules():
        for attribute, value in vars(module).items():
            if "drop" in attribute or (isinstance(module, torch.nn.Dropout) and attribute == "p"):
                setattr(module, attribute, 0.0 if isinstance(value, float) else value)
    return work.fn.train(), work.kwargs


def gradients(run, owner, kwargs, dtype):
    """All gradients of one step in f64, as one vector for each parameter."""
    kwargs = {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in copy.deepcopy(kwargs).items()
    }
    outs = tensors(list(run(**kwargs).values()))
    sum(t.double().square().mean() for t in outs if t.requires_grad).backward()
    return [torch.zeros(1).double() if p.grad is None else p.grad.double().flatten()
            for p in owner.parameters()]  # fmt: skip


@pytest.mark.parametrize("name", sorted(ZOO))
def test_gradients_are_as_near_to_f64_as_eagers(name):
    exact, kwargs = make(name)
    eager, ours = (copy.deepcopy(exact).bfloat16() for _ in range(2))
    # what all three start from is what bf16 holds
    exact.load_state_dict(copy.deepcopy(eager).double().state_dict())
    want = gradients(exact.double(), exact, kwargs, torch.float64)
    near = gradients(eager, eager, kwargs, torch.bfloat16)
    torchweld.reset()
    got = gradients(torchweld.compile(ours), ours, kwargs, torch.bfloat16)
    assert (STATISTICS.graphs, STATISTICS.breaks) == (1, 0), STATISTICS.refusals
    assert_generated(newest())
    size = torch.cat(want).norm()
    eagers, ourselves = ((torch.cat(g) - torch.cat(want)).norm() for g in (near, got))
    assert ourselves <= WORSE * eagers + ROUNDING * size, (ourselves / size, eagers / size)
    for g, n, w in zip(got, near, want, strict=True):
        allowed = 3 * (n - w).norm() + 8 * ROUNDING * w.norm() + ROUNDING * size
        assert (g - w).norm() <= allowed
