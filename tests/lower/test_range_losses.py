"""Losses and gates are generated for a range of sizes, as they are for one."""

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.pipeline import STATISTICS

PROGRAMS = {
    "mse": lambda x: F.mse_loss(x, x.cos()),
    "smooth l1": lambda x: F.smooth_l1_loss(x, x.cos(), beta=0.5),
    "huber": lambda x: F.huber_loss(x, x.cos(), reduction="sum"),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, x.cos().abs()),
    "margin": lambda x: F.soft_margin_loss(x, x.detach().sign()),
    "l1": lambda x: F.l1_loss(x, x.cos()),
    "glu": lambda x: F.glu(torch.cat([x, x.cos()], 1), 1) + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_every_size_without_aten(name):
    fn = PROGRAMS[name]
    torchweld.reset()
    compiled = torchweld.compile(fn, dynamic=True, fullgraph=True)
    for n in (8, 2, 7, 33):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), fn(x))
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["externs"]) == (1, 0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_for_every_size(name):
    fn = PROGRAMS[name]
    compiled = torchweld.compile(fn, dynamic=True, fullgraph=True)
    for n in (8, 5):
        x = torch.randn(3, n)
        found = []
        for run in (fn, compiled):
            leaf = x.clone().requires_grad_()
            run(leaf).sum().backward()
            found.append(leaf.grad)
        torch.testing.assert_close(found[1], found[0])
