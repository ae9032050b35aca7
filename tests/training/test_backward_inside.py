"""Functions that take gradients themselves: one graph, and what eager leaves."""

import pytest
import torch
from step_twin import assert_left, assert_one_graph, batches, compiled, descend, mlp, run
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torchweld
from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")


def test_twenty_steps_of_descent_are_one_graph():
    def make(model):
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            descend(model)
            model.zero_grad()
            return loss.detach()

        return step

    run(make, batches(20))
    assert_one_graph()


def test_descent_by_data():
    def make(model):
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            for p in model.parameters():
                p.data -= 0.1 * p.grad
                p.grad.data.zero_()
            return loss.item()

        return step

    run(make, batches(3))
    assert STATISTICS.counts()["aten_graphs"] == 0


def test_gradients_are_left_in_the_parameters_laid_out_as_in_eager():
    def make(model):
        def step(x):
            model(x).square().mean().backward()

        return step

    def transposed():
        model = mlp()
        model[0].weight = nn.Parameter(torch.randn(6, 8).t())
        return model

    run(make, batches(1), transposed)
    assert_one_graph()


def test_gradients_that_are_there_are_added_to_in_place():
    def step(x):
        model(x).square().mean().backward()

    model, (x, y, z) = mlp(), batches(3)
    fast = compiled(step)
    fast(x)
    first = [p.grad for p in model.parameters()]
    fast(y)
    fast(z)
    assert all(p.grad is g for p, g in zip(model.parameters(), first, strict=True))
    run(lambda m: lambda x: m(x).square().mean().backward(), [x, y, z])
    assert_one_graph(2)


def test_micro_batches_accumulate():
    def make(model):
        def step(x):
            total = 0.0
            for part in x.chunk(2):
                loss = model(part).square().mean() / 2
                loss.backward()
                total = total + loss.detach()
            descend(model)
            for p in model.parameters():
                del p.grad
            return total

        return step

    run(make, batches(3, 4, 6))
    assert_one_graph()


@pytest.mark.parametrize("none", [True, False])
def test_zero_grad_in_front(none):
    def make(model):
        def step(x):
            model.zero_grad(set_to_none=none)
            model(x).square().mean().backward()
            descend(model)

        return step

    run(make, batches(4))
    assert_one_graph(2)


def test_a_returned_loss_requires_grad_and_a_second_backward_raises_eagers_error():
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss, loss

    model, (x,) = mlp(), batches(1)
    first, second = compiled(step)(x)
    assert first is second and first.requires_grad and not first.is_leaf
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        first.backward()
    assert_one_graph()


def test_a_second_backward_inside_raises_eagers_error():
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        loss.backward()

    model, (x,) = mlp(), batches(1)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torchweld.compile(step)(x)


def test_a_graph_that_is_retained_is_differentiated_twice():
    def make(model):
        def step(x):
            out = model(x)
            out.sum().backward(retain_graph=True)
            out.square().sum().backward()

        return step

    run(make, batches(1))
    assert_one_graph()


def test_a_result_whose_graph_is_retained_can_be_differentiated_outside():
    def step(x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        return loss

    model, (x,) = mlp(), batches(1)
    fast = compiled(step)
    loss = fast(x)
    assert STATISTICS.compiled[0].differentiable
    once = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for p, g in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)
    assert STATISTICS.counts()["breaks"] == 0


def test_another_result_that_requires_grad_keeps_its_graph():
    def step(x):
        out = model(x)
        out.mean().backward()
        return (model[0].weight * 2).sum()

    model, (x,) = mlp(), batches(1)
    other = torchweld.compile(step)(x)
    before = model[0].weight.grad.clone()
    other.backward()
    torch.testing.assert_close(model[0].weight.grad, before + 2)


@pytest.mark.parametrize("ends", [lambda y: (y.square(), y), lambda y: (y.sum(),)])
def test_autograd_backward_of_several_results_with_their_gradients(ends):
    def make(model):
        def step(x):
            found = ends(model(x))
            torch.autograd.backward(found, [torch.full_like(t, 0.5) for t in found])

        return step

    run(make, batches(1))
    assert_one_graph()


def test_backward_to_chosen_inputs_only():
    def make(model):
        def step(x):
            model(x).square().mean().backward(inputs=[model[0].weight, model[2].bias])

        return step

    run(make, batches(1))
    assert_one_graph()


def test_leaves_that_share_a_gradient_get_memory_of_their_own():
    def step(a, b):
        (a + b).sum().backward()

    a, b = (torch.randn(3, requires_grad=True) for _ in range(2))
    compiled(step)(a, b)
    assert a.grad.data_ptr() != b.grad.data_ptr()
    a.grad.add_(1)
    assert b.grad.tolist() == [1, 1, 1]
    assert_one_graph()


def test_a_gradient_that_was_given_is_copied():
    def step(a, g):
        (a * 1).view_as(a).backward(g)

    a, g = torch.randn(3, requires_grad=True), torch.randn(3)
    torchweld.compile(step)(a, g)
    assert a.grad is not g and a.grad.data_ptr() != g.data_ptr()
    torch.testing.assert_close(a.grad, g)


def test_grad_of_inputs_that_are_made_in_the_frame():
    def make(model):
        def forces(x):
            x = x.detach().requires_grad_()
            energy = model(x).square().sum()
            (found,) = torch.autograd.grad(energy, x)
            return energy.detach(), -found

        return forces

    run(make, batches(2))
    assert_one_graph()


def test_gradient_penalty_differentiates_gradients():
    def make(model):
        def step(x):
            x = x.clone().requires_grad_(True)
            out = model(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = out.mean() + (slope.norm(dim=1) - 1).square().mean()
            loss.backward()
            descend(model)
            model.zero_grad()
            return loss.detach()

        return step

    run(make, batches(3))
    assert_one_graph()


def test_forces_are_differentiated_outside():
    def make(model):
        def energy_and_forces(x):
            x = x.detach().requires_grad_()
            energy = model(x).square().sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy, -slope

        return energy_and_forces

    mine, theirs = mlp(), mlp()
    fast = compiled(make(mine))
    for x in batches(2):
        for fn in (fast, make(theirs)):
            energy, forces = fn(x)
            (energy + forces.square().sum()).backward()
        assert_left(mine, theirs)
    (made,) = STATISTICS.compiled
    assert made.differentiable and made.backwards and STATISTICS.counts()["aten_graphs"] == 0


def test_unused_inputs_get_none():
    def step(a, b, c):
        return torch.autograd.grad((a * b).sum(), (a, c), allow_unused=True)

    args = [torch.randn(3, requires_grad=True) for _ in range(3)]
    found = compiled(step)(*args)
    assert found[1] is None
    torch.testing.assert_close(found[0], args[1].detach())
    assert_one_graph()


def test_an_unused_input_raises_eagers_error():
    def step(a, b):
        return torch.autograd.grad(a.sum(), b)

    args = [torch.randn(3, requires_grad=True) for _ in range(2)]
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torchweld.compile(step)(*args)


def test_what_was_computed_outside_is_differentiated_through():
    def step(h):
        (h * 2).sum().backward()

    x = torch.randn(3, requires_grad=True)
    torchweld.compile(step)(x * 3)
    assert x.grad.tolist() == [6, 6, 6]


def test_gradient_with_respect_to_what_was_computed_outside():
    def step(h):
        return torch.autograd.grad((h * h).sum(), h)[0]

    h = torch.randn(3, requires_grad=True) * 3
    torch.testing.assert_close(compiled(step)(h), 2 * h.detach())
    assert_one_graph()


@pytest.mark.parametrize("register", [
    lambda p, hook: p.register_hook(hook),
    lambda p, hook: p.register_post_accumulate_grad_hook(lambda p: hook(p.grad)),
])  # fmt: skip
def test_hooks_of_parameters_run_and_are_noticed(register):
    def step(x):
        model(x).square().mean().backward()

    model, (x, y) = mlp(), batches(2)
    seen = []
    fast = compiled(step)
    fast(x)
    handle = register(model[0].weight, lambda g: seen.append(g.shape))
    fast(y)
    assert len(seen) == 1
    handle.remove()
    fast(y)
    assert len(seen) == 1


def test_a_hook_of_a_parameter_that_is_registered_in_the_step_is_called():
    def make(model):
        def step(x):
            handle = model[0].weight.register_hook(lambda g: g * 0.5)
            model(x).square().mean().backward()
            handle.remove()

        return step

    run(make, batches(2))


def test_what_hooks_of_modules_do_is_seen_behind_the_backward():
    def make(model):
        def count(module, given, results):
            module.calls = getattr(module, "calls", 0) + 1

        model[1].register_full_backward_hook(count)

        def step(x):
            model(x).square().mean().backward()
            return torch.tensor(model[1].calls)

        return step

    run(make, batches(3))


def test_hooks_of_results_that_only_compute_are_part_of_the_graph():
    def make(model):
        def step(x):
            out = model(x)
            out.register_hook(lambda g: g.clamp(-0.01, 0.01))
            out.square().mean().backward()
            descend(model)
            model.zero_grad()

        return step

    run(make, batches(2))
    assert_one_graph()


def test_a_parameter_that_is_changed_before_its_backward_raises_eagers_error():
    def step(x):
        loss = model(x).square().mean()
        with torch.no_grad():
            model[2].weight.mul_(2)
        loss.backward()

    model, (x,) = mlp(), batches(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torchweld.compile(step)(x)


def test_frozen_and_tied_parameters():
    def tied():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 7, bias=False))
        model[2].weight = model[0].weight
        model[1].bias.requires_grad_(False)
        return model

    def make(model):
        def step(x):
            loss = F.cross_entropy(model(x), x)
            loss.backward()
            descend(model)
            return loss.detach()

        return step

    ids = [torch.arange(5), torch.arange(5) + 2, torch.arange(5)]
    run(make, ids, tied)
    assert_one_graph(2)


def test_sparse_gradients_are_left_to_eager():
    def make(model):
        def step(x):
            model(x).sum().backward()
            return model.weight.grad.to_dense()

        return step

    def sparse():
        torch.manual_seed(2)
        return nn.Embedding(7, 6, sparse=True)

    model = sparse()
    step = torchweld.compile(make(model))
    assert torch.equal(step(torch.tensor([1, 1, 3])), make(sparse())(torch.tensor([1, 1, 3])))


def test_gradients_under_autocast_with_a_scaler():
    def make(model):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(x):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad / 8, alpha=0.1)
            model.zero_grad()
            return loss.detach()

        return step

    run(make, batches(3), rtol=2e-2, atol=2e-2)
    assert STATISTICS.counts()["aten_graphs"] == 0


def test_dropout_and_batch_norm_in_a_step():
    def noisy():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def make(model):
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            descend(model)
            model.zero_grad()
            return loss.detach()

        return step

    run(make, batches(3), noisy)
    assert_one_graph()


def test_what_is_checkpointed_is_not_kept_for_the_backward():
    def blocks():
        torch.manual_seed(1)
        return nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
                             for _ in range(4))  # fmt: skip

    def make_with(again):
        def make(model):
            def step(x):
                for block in model:
                    x = checkpoint(block, x, use_reentrant=False) if again else block(x)
                loss = x.square().mean()
                loss.backward()
                descend(model)
                model.zero_grad()
                return loss.detach()

            return step

        return make

    sizes = []
    for again in (False, True):
        run(make_with(again), batches(2, 500, 6), blocks)
        assert_one_graph()
        sizes.append(STATISTICS.compiled[-1].executable.program.arena_bytes)
    assert sizes[1] < 0.75 * sizes[0]


def test_a_break_between_forward_and_backward():
    def make(model):
        def step(x):
            loss = model(x).square().mean()
            torchweld.graph_break()
            loss.backward()
            descend(model)
            model.zero_grad()
            return loss.detach()

        return step

    run(make, batches(3))


def test_a_break_behind_the_backward_leaves_the_gradients():
    def make(model):
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            torchweld.graph_break()
            descend(model)
            model.zero_grad()
            return loss.detach()

        return step

    run(make, batches(3))
    assert STATISTICS.counts()["breaks"] == 1


def test_old_gradients_that_are_dropped_are_no_inputs_and_free_while_the_graph_runs():
    def step(x):
        for p in model.parameters():
            p.grad = None
        loss = probe(model(x)).square().mean()
        loss.backward()
        return loss.detach()

    alive = []

    def probe(x):
        return x

    def backend(graph, inputs):
        def call(*args):
            alive.append([p.grad for p in model.parameters()])
            assert len(args) == len(inputs) == 5
            return graph(*args)

        return call

    model, (x,) = mlp(), batches(1)
    fast = torchweld.compile(step, backend=backend)
    fast(x)
    fast(x)
    assert alive == [[None] * 4] * 2


def test_whether_a_gradient_is_there_is_all_that_is_guarded_of_one_that_is_dropped():
    def step(x):
        if model.weight.grad is not None:
            model.weight.grad = None
        model(x).sum().backward()

    model = nn.Linear(3, 3)
    fast = compiled(step)
    fast(torch.ones(2, 3))
    fast(torch.ones(2, 3))
    with torch.no_grad():
        model.weight.grad = torch.ones(3, 3).t()
    fast(torch.ones(2, 3))
    assert model.weight.grad.tolist() == [[2.0] * 3] * 3
    assert STATISTICS.counts()["captures"] == 2


@pytest.mark.parametrize("none", [True, False])
def test_zero_grad_of_an_optimizer(none):
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad(set_to_none=none)
            model(x).square().mean().backward()

        return step

    run(make, batches(3))
    assert_one_graph(2)
