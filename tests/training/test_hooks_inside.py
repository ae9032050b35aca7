"""Hooks of parameters while a captured frame calls backward: part of its one graph."""

import pytest
import torch
from step_twin import assert_left, assert_one_graph, batches, compiled, descend, mlp, run

from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")


def hooked(register):
    """A step whose parameters have hooks from outside."""

    def make(model):
        register(model)

        def step(x):
            model.zero_grad()
            model(x).square().mean().backward()
            descend(model)

        return step

    return make


def test_hooks_that_change_gradients_are_captured():
    def register(model):
        for p in model.parameters():
            p.register_hook(lambda g: g * 2)
            p.register_hook(lambda g: g.clamp(-0.1, 0.1))

    run(hooked(register), batches(3))
    assert_one_graph(2)


def test_an_optimizer_in_hooks_behind_the_accumulation_is_captured():
    def register(model):
        ours = {p: torch.optim.SGD([p], lr=0.1, momentum=0.5) for p in model.parameters()}

        def update(p):
            ours[p].step()
            ours[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)

    run(hooked(register), batches(3))
    assert_one_graph(2)


def test_hooks_are_called_in_eagers_order():
    def note(model, seen):
        for name, p in model.named_parameters():
            p.register_hook(lambda g, name=name: seen.append(name))
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name + "+"))

    mine, theirs, (x,) = mlp(), mlp(), batches(1)
    got, want = [], []
    note(mine, got)
    note(theirs, want)
    compiled(lambda x: mine(x).square().mean().backward())(x)
    theirs(x).square().mean().backward()
    assert got == want
    assert_left(mine, theirs)
    assert_one_graph()


def test_a_hook_sees_the_gradients_that_are_there_already():
    def make(model):
        def count(p):
            p.grad.mul_(sum(q.grad is not None for q in model.parameters()))

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(count)

        def step(x):
            model.zero_grad()
            model(x).square().mean().backward()

        return step

    run(make, batches(2))


def test_hooks_of_the_step_itself_are_captured():
    def make(model):
        def step(x):
            handles = [p.register_hook(lambda g: g * 0.5) for p in model.parameters()]
            model.zero_grad()
            model(x).square().mean().backward()
            for handle in handles:
                handle.remove()
            descend(model)

        return step

    run(make, batches(2))
    assert_one_graph(2)


@pytest.mark.parametrize("other", [lambda g: None, lambda g: g * 3])
def test_another_hook_is_another_compilation(other):
    mine, (x, y) = mlp(), batches(2)
    weight = mine[0].weight

    def step(x):
        mine.zero_grad()
        mine(x).square().mean().backward()

    fast = compiled(step)
    fast(x)
    handle = weight.register_hook(other)
    fast(y)
    got = weight.grad.clone()
    handle.remove()
    weight.register_hook(other)
    step(y)
    torch.testing.assert_close(got, weight.grad)
    assert STATISTICS.breaks == 0


def test_a_hook_that_returns_another_size_is_an_error():
    def step(x):
        model(x).sum().backward()

    model, (x,) = mlp(), batches(1)
    model[0].weight.register_hook(lambda g: g.sum())
    with pytest.raises(RuntimeError, match="has changed the size"):
        compiled(step)(x)
