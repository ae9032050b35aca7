"""backward(create_graph=True) and gradients of gradients in a captured step."""

import pytest
import torch
from step_twin import assert_one_graph, batches, compiled, descend, mlp, run

from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")


def sizes(model):
    return sum(p.grad.square().sum() for p in model.parameters())


def test_a_penalty_of_the_gradients_that_a_backward_left():
    def make(model):
        def step(x):
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward(create_graph=True)
            penalty = sizes(model)
            model.zero_grad()
            (loss + penalty).backward()
            descend(model)
            return penalty.detach()

        return step

    run(make, batches(3))
    assert_one_graph(2)


def test_a_second_backward_adds_to_gradients_that_can_be_differentiated():
    def make(model):
        def step(x):
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward(create_graph=True)
            loss.backward(create_graph=True)
            taken = torch.autograd.grad(sizes(model), list(model.parameters()))
            model.zero_grad()
            return taken

        return step

    run(make, batches(2))
    assert_one_graph()


def test_gradients_that_are_left_can_be_differentiated_outside():
    def step(x):
        model(x).square().mean().backward(create_graph=True)

    model, other, (x,) = mlp(), mlp(), batches(1)
    compiled(step)(x)
    other(x).square().mean().backward(create_graph=True)
    got, want = (torch.autograd.grad(sizes(m), list(m.parameters())) for m in (model, other))
    torch.testing.assert_close(got, want)
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (1, 0, 0)


def test_gradients_detached_in_place_are_an_error():
    def step(x):
        model(x).square().mean().backward(create_graph=True)
        penalty = sizes(model)
        model.zero_grad(set_to_none=False)
        penalty.backward()

    model, (x,) = mlp(), batches(1)
    with pytest.raises(RuntimeError, match=r"in-?place"):
        compiled(step)(x)


def test_gradients_taken_inside_of_what_the_results_do_not_reach():
    """The graph runs again for a second derivative, and asks for its own gradients again."""

    def f(b, d):
        (slope,) = torch.autograd.grad((b * b.sin()).sum(), b)
        return slope.sigmoid(), d.sin()

    b, d = (torch.randn(3, requires_grad=True) for _ in range(2))
    seen = []
    for fn in (f, compiled(f)):
        slope, y = fn(b, d)
        (first,) = torch.autograd.grad(y.sum(), d, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), d)
        seen.append((slope, y.detach(), first.detach(), second))
    torch.testing.assert_close(seen[1], seen[0])
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"]) == (1, 0)
