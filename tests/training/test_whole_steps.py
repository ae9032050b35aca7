"""Forward, loss, backward, clipping and AdamW of models of the zoo in one function: one graph."""

import copy

import pytest
import torch
from step_twin import assert_left, assert_one_graph, compiled

from torchweld.workbench.models import ZOO

STEPS = 20


def make_step(model, kwargs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        out = model(**kwargs)
        loss = sum(t.float().square().mean() for t in out.values() if isinstance(t, torch.Tensor))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_twenty_steps_equal_eager_in_one_graph(name):
    torch.manual_seed(7)
    work = ZOO[name]("small")
    theirs = work.fn.train()
    mine = copy.deepcopy(theirs)
    step, eager = compiled(make_step(mine, work.kwargs)), make_step(theirs, work.kwargs)
    for i in range(STEPS):
        torch.manual_seed(i)
        got = step()
        torch.manual_seed(i)
        assert got == pytest.approx(eager(), rel=5e-3, abs=1e-4)
    assert_left(mine, theirs, rtol=1e-2, atol=1e-2)
    assert_one_graph(2, passing=1)  # the first step makes the optimizer's state
