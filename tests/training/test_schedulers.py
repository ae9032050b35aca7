"""Learning rates that a scheduler sets: no compilation per step, wherever it is called."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

import torchweld
from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")

STEPS = 12
# scheduler -> states of it that a whole step with it is compiled for, besides the first step's
SCHEDULERS = {
    "StepLR": (lambda o: lr_scheduler.StepLR(o, 3, 0.5), 2),
    "MultiStepLR": (lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 8], 0.5), 4),
    "ConstantLR": (lambda o: lr_scheduler.ConstantLR(o, 0.5, 4), 2),
    "LinearLR": (lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=6), 2),
    "ExponentialLR": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), 1),
    "PolynomialLR": (lambda o: lr_scheduler.PolynomialLR(o, 8), 2),
    "CosineAnnealingLR": (lambda o: lr_scheduler.CosineAnnealingLR(o, 8), 2),
    "CosineAnnealingWarmRestarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4), 2),
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch), 1),
    "MultiplicativeLR": (lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.95), 1),
    "CyclicLR": (lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3), 2),
    "OneCycleLR": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=14), 2),
    "ReduceLROnPlateau": (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1), 2),
    "SequentialLR": (lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [4]), 5),
    "ChainedScheduler": (lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]), 2),
    "SWALR": (lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=5), 3),
}  # fmt: skip


def train(name, inside, compiles):
    """Losses and rates of each step, then the parameters. compiles: "step", "optimizer" or not."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name][0](optimizer)
    metric = (0.5,) if name == "ReduceLROnPlateau" else ()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if inside:
            scheduler.step(*metric)
        return loss.detach()

    if compiles == "optimizer":
        optimizer.step = torchweld.compile(optimizer.step)
    run, seen = torchweld.compile(step) if compiles == "step" else step, []
    for _ in range(STEPS):
        loss = run(torch.randn(5, 6))
        if not inside:
            scheduler.step(*metric)
        seen.append(torch.stack([loss, torch.tensor(optimizer.param_groups[0]["lr"])]))
    return [*seen, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("compiles", ["optimizer", "step"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_outside_costs_no_compilation(name, compiles):
    torchweld.reset()
    want = train(name, False, None)
    got = train(name, False, compiles)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_inside_costs_one_compilation_for_each_way_through_it(name):
    torchweld.reset()
    want = train(name, True, None)
    got = train(name, True, "step")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    counts = STATISTICS.counts()
    assert counts["graphs"] <= 1 + SCHEDULERS[name][1], STATISTICS.refusals
    assert (counts["breaks"], counts["internal_errors"]) == (0, 0)


def test_a_number_that_is_looked_for_among_others_is_guarded_by_the_answer():
    def fn(x, n, places):
        return x * 2 if n in places else x - n

    for places in ({2: 0, 7: 1}, {2, 7}, [2, 7], (7, 2)):
        torchweld.reset()
        compiled = torchweld.compile(fn, fullgraph=True)
        for n in (1, 3, 2, 4, 7, 8, 9, 2):
            x = torch.ones(3)
            assert torch.equal(compiled(x, n, places), fn(x, n, places))
        assert STATISTICS.counts()["graphs"] == 3
