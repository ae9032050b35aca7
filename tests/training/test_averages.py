"""Averages of weights that are kept in the step: torch.optim.swa_utils."""

import copy

import pytest
import torch
from step_twin import assert_left, assert_one_graph, batches, compiled, mlp
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")


def make_step(model, average):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)

    return step


@pytest.mark.parametrize("given", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
                                   {"avg_fn": lambda a, b, n: a + (b - a) / (n + 1)}])  # fmt: skip
def test_an_averaged_model_is_updated_in_one_graph(given):
    mine, theirs = mlp(), mlp()
    ours, eagers = (AveragedModel(copy.deepcopy(m), **given) for m in (mine, theirs))
    step, eager = compiled(make_step(mine, ours)), make_step(theirs, eagers)
    for x in batches(4):
        step(x)
        eager(x)
    assert_left(ours, eagers)
    assert ours.n_averaged.item() == 4
    assert_one_graph(2)  # the first average is a copy


def counter(value):
    owner = torch.nn.Module()
    owner.register_buffer("n", torch.tensor(value))
    return owner


def test_a_comparison_of_a_buffer_is_guarded_by_its_outcome():
    def step(x):
        return x * 5 if owner.n > 2 else x + 1

    owner, x = counter(0), torch.ones(3)
    fast = compiled(step)
    for value, want in ((0, 2), (2, 2), (3, 5), (7, 5), (1, 2)):
        owner.n.fill_(value)
        assert fast(x).tolist() == [want] * 3
    assert (STATISTICS.captures, STATISTICS.breaks) == (2, 0)


def test_a_buffer_that_the_frame_adds_to_is_compared_as_it_is_then():
    def step(x):
        owner.n += 1
        return x * 3 if owner.n == 2 else x

    owner, x = counter(0), torch.ones(2)
    fast = compiled(step)
    assert [fast(x).sum().item() for _ in range(4)] == [2, 6, 2, 2]
    assert STATISTICS.breaks == 0


def test_a_buffer_that_is_true_is_guarded():
    def step(x):
        return x * 3 if owner.n else x + 1

    owner, x = counter(False), torch.ones(2)
    fast = compiled(step)
    assert fast(x).sum() == 4
    owner.n.fill_(True)
    assert fast(x).sum() == 6
    owner.n.fill_(False)
    assert fast(x).sum() == 4
    assert (STATISTICS.captures, STATISTICS.breaks) == (2, 0)


def test_a_buffer_that_the_frame_computes_anew_is_a_break():
    def step(x):
        owner.n.mul_(2)
        return x * 3 if owner.n > 4 else x

    owner, x = counter(1), torch.ones(2)
    fast = compiled(step)
    assert [fast(x).sum().item() for _ in range(4)] == [2, 2, 6, 6]
    assert STATISTICS.breaks > 0
