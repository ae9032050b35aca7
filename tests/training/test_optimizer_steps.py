"""Training steps with optimizers of torch in one function: one graph, and what eager leaves."""

import pytest
import torch
from step_twin import assert_one_graph, batches, compiled, descend, mlp, run
from torch import nn

pytestmark = pytest.mark.usefixtures("at_once")

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "adam": lambda ps: torch.optim.Adam(ps, lr=1e-2, foreach=False),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_twenty_steps_with_clipping_and_a_logged_loss(name):
    def make(model):
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        return step

    run(make, batches(20))
    assert_one_graph(2)  # the first step makes the optimizer's state


def test_a_rate_that_changes_with_every_step():
    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def scheduled(x):
            loss = fast(x) if is_compiled else step(x)
            schedule.step()
            return loss

        is_compiled = not made
        made.append(schedule)
        fast = compiled(step) if is_compiled else step
        return scheduled

    made = []
    mine, theirs = mlp(), mlp()
    ours, eagers = make(mine), make(theirs)
    for x in batches(10):
        torch.testing.assert_close(ours(x), eagers(x))
    assert_one_graph(2)  # the rate of the second step is an input


@pytest.mark.parametrize("clip", [
    lambda ps: nn.utils.clip_grad_norm_(ps, 0.1),
    lambda ps: nn.utils.clip_grad_norm_(ps, 0.1, norm_type=float("inf"), foreach=False),
    lambda ps: nn.utils.clip_grad_value_(ps, 0.01),
])  # fmt: skip
def test_gradients_are_clipped(clip):
    def make(model):
        def step(x):
            model(x).square().sum().backward()
            norm = clip(model.parameters())
            descend(model)
            model.zero_grad()
            return norm

        return step

    run(make, batches(3))
    assert_one_graph()


def test_a_closure_that_the_optimizer_calls():
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            def closure():
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            return optimizer.step(closure).item()

        return step

    run(make, batches(3))
    assert_one_graph(2)


def test_a_step_of_several_micro_batches():
    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x):
            total = 0.0
            for part in x.chunk(3):
                loss = model(part).square().mean() / 3
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            return total

        return step

    run(make, batches(5, 6, 6))
    assert_one_graph(2)


def test_a_loss_that_is_printed(capsys):
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        descend(model)
        model.zero_grad()
        value = loss.item()
        print(f"loss {value:.3f} {value!r:>20}", "or %+9.2e, %s" % (value, value), value)  # noqa: UP031

    model, (x,) = mlp(), batches(1)
    step(x)
    model = mlp()
    compiled(step)(x)
    eagers, ours = capsys.readouterr().out.splitlines()
    assert eagers == ours
    assert_one_graph()
