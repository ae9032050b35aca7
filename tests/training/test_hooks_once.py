"""Hooks of parameters are called once for each gradient, also where a graph runs in ATen."""

import copy
import functools

import pytest
import torch
from step_twin import assert_left, batches, descend, mlp

import torchweld
from torchweld.ir.takes import grad_before_hooks
from torchweld.pipeline import STATISTICS

_OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.05),
}
_BACKENDS = ("torchweld", "eager")


def note(model):
    """Register hooks of both kinds on all parameters; what they see, with the values."""
    seen = []

    def before(name, g):
        seen.append((name, g.detach().clone()))
        return g * 0.5

    def after(name, p):
        seen.append((name + "+", p.grad.clone()))

    for name, p in model.named_parameters():
        p.register_hook(functools.partial(before, name))
        p.register_hook(lambda g: g.clamp(-0.1, 0.1))
        p.register_post_accumulate_grad_hook(functools.partial(after, name))
    return seen


def assert_seen(got, want):
    assert [name for name, _ in got] == [name for name, _ in want]
    for (_, a), (_, b) in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def compare(make_step, xs, backend, hook=note):
    """Assert that each call of the compiled step leaves and shows hooks what eager's does."""
    theirs = mlp()
    mine = copy.deepcopy(theirs)
    got, want = hook(mine), hook(theirs)
    torchweld.reset()
    step, eager = torchweld.compile(make_step(mine), backend=backend), make_step(theirs)
    for x in xs:
        torch.testing.assert_close(step(x), eager(x), rtol=2e-5, atol=2e-6)
        assert_seen(got, want)
        assert_left(mine, theirs)
    assert STATISTICS.breaks == 0, STATISTICS.refusals
    assert want
    return step


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("kind", _OPTIMIZERS)
def test_the_first_steps_of_an_optimizer_with_hooks(kind, to_none, backend):
    def make(model):
        optimizer = _OPTIMIZERS[kind](model.parameters())

        def step(x):
            optimizer.zero_grad(set_to_none=to_none)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    compare(make, batches(3), backend)


@pytest.mark.parametrize("backend", _BACKENDS)
def test_two_backwards_that_accumulate(backend):
    def make(model):
        def step(x):
            model.zero_grad()
            out = model(x)
            out.sum().backward(retain_graph=True)
            out.square().mean().backward()
            descend(model)
            return out.detach()

        return step

    compare(make, batches(3), backend)


@pytest.mark.parametrize("backend", _BACKENDS)
def test_a_hook_of_the_step_itself_behind_one_from_outside(backend):
    def make(model):
        def step(x):
            handle = model[0].weight.register_hook(lambda g: g + 1)
            hidden = model[1](model[0](x))
            hidden.register_hook(lambda g: g * 3)
            loss = model[2](hidden).square().mean()
            loss.backward()
            handle.remove()
            return loss.detach()

        return step

    compare(make, batches(2), backend)


@pytest.mark.parametrize("backend", _BACKENDS)
def test_a_leaf_that_the_step_makes_keeps_its_hook(backend):
    def make(model):
        def step(x):
            scale = torch.ones(4).requires_grad_()
            scale.register_hook(lambda g: g * 7)
            (model(x) * scale).square().mean().backward()
            return scale.grad * 1

        return step

    compare(make, batches(2), backend)


@pytest.mark.usefixtures("at_once")
def test_a_refused_graph_calls_hooks_once():
    def make(model):
        def step(x):
            model.zero_grad()
            out = model(x)
            out.square().mean().backward(retain_graph=True)
            descend(model[2])
            return out

        return step

    compare(make, batches(2), "torchweld")
    assert STATISTICS.aten_graphs


def test_hooks_are_there_after_the_call_and_can_be_removed():
    weight = torch.ones(3, requires_grad=True)
    handle = weight.register_hook(lambda g: g * 2)

    def step(x):
        (weight * x).sum().backward()

    fast = torchweld.compile(step, backend="eager")
    fast(torch.ones(3))
    step(torch.ones(3))
    assert weight.grad.tolist() == [4, 4, 4]
    handle.remove()
    fast(torch.ones(3))
    assert weight.grad.tolist() == [5, 5, 5]


def test_hooks_are_there_after_an_error_of_autograd():
    weight, other = (torch.ones(3, requires_grad=True) for _ in range(2))
    weight.register_hook(lambda g: g * 2)
    with pytest.raises(RuntimeError, match="not have been used"):
        grad_before_hooks([weight], [weight.sum()], [other])
    weight.sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]


def test_a_backend_of_the_users_gets_a_graph_that_calls_hooks_once():
    def make(model):
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return step

    compare(make, batches(2), lambda gm, examples: torch.fx.Interpreter(gm).run)


# ------------------------------------------------------- backwards outside of the compiled function
@pytest.mark.parametrize("kind", ["leaf", "no leaf"])
def test_a_backward_that_runs_in_aten_calls_hooks_of_the_inputs_once(kind):
    def gradients(model, call, seen):
        def hook(g):
            seen.append(g.detach().clone())
            return g * 0.5

        model[0].weight.register_hook(hook)
        (x,) = batches(1)
        x.requires_grad_()
        given = x if kind == "leaf" else x * 2
        given.register_hook(hook)
        weight = model[0].weight
        found = torch.autograd.grad(call(given).square().sum(), (weight, x), create_graph=True)
        return *found, *torch.autograd.grad(found[0].square().sum(), (weight, x))

    theirs = mlp()
    mine = copy.deepcopy(theirs)
    got, want = [], []
    torch.testing.assert_close(gradients(mine, torchweld.compile(mine.forward), got),
                               gradients(theirs, theirs, want), rtol=1e-4, atol=1e-5)  # fmt: skip
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_backward_that_runs_in_aten_keeps_the_gradient_of_an_input_once():
    def kept(call):
        y = torch.linspace(0, 1, 4, requires_grad=True) * 2
        y.retain_grad()
        call(y).sum().backward(create_graph=True)
        return y.grad.detach()

    def cube(x):
        return x.sin() * x

    torch.testing.assert_close(kept(torchweld.compile(cube)), kept(cube))


@pytest.mark.parametrize("backend", _BACKENDS)
def test_a_gradient_that_an_input_keeps_is_left_to_eager(backend):
    def slope(y):
        (g,) = torch.autograd.grad((y * 3).square().sum(), y)
        return g * 1

    torchweld.reset()
    fast = torchweld.compile(slope, backend=backend)
    x = torch.ones(3, requires_grad=True)
    keeping = x * 2
    torch.testing.assert_close(fast(x * 2), slope(x * 2))
    assert STATISTICS.breaks == 0
    keeping.retain_grad()
    fast(keeping)
    torch.testing.assert_close(keeping.grad, torch.full((3,), 36.0))
