"""Forward, loss, backward and update of models of the zoo in one function: one graph."""

import copy

import pytest
import torch
from step_twin import assert_left, assert_one_graph, compiled, descend

from torchweld.workbench.models import ZOO


def make_step(model, kwargs):
    def step():
        out = model(**kwargs)
        loss = sum(t.float().square().mean() for t in out.values() if isinstance(t, torch.Tensor))
        loss.backward()
        descend(model, 1e-3)
        model.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "resnet"])
def test_twenty_steps_equal_eager_in_one_graph(name):
    torch.manual_seed(7)
    work = ZOO[name]("small")
    theirs = work.fn.train()
    mine = copy.deepcopy(theirs)
    step, eager = compiled(make_step(mine, work.kwargs)), make_step(theirs, work.kwargs)
    for i in range(20):
        torch.manual_seed(i)
        got = step()
        torch.manual_seed(i)
        torch.testing.assert_close(got, eager(), rtol=1e-3, atol=1e-4)
    assert_left(mine, theirs, rtol=1e-3, atol=1e-3)
    assert_one_graph()
