"""What autograd promises around a compiled function: hooks, None gradients, errors, derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from training_twin import assert_generated, assert_same, check, copied, leaf, newest, step

import torchweld
from torchweld.base.errors import Unsupported
from torchweld.pipeline import STATISTICS


def two(x, w):
    return (x @ w).relu(), (x * 2).exp()


torch.manual_seed(0)
X, W = leaf(4, 5), leaf(5, 5)


def test_unused_result_leaves_no_gradient():
    made = check(lambda x, w: (x.exp(), w.sin()), X, W, loss=lambda outs: outs[0].sum())
    assert_generated(made)


def test_branch_without_gradient_is_not_multiplied_by_zero():
    def fn(x):
        return x * 2, x / torch.zeros(4, 5)

    check(fn, X, loss=lambda outs: outs[0].sum())


def test_result_used_later_has_its_own_backward():
    torchweld.reset()
    compiled = torchweld.compile(two)
    for use in (lambda o: o[0].sum(), lambda o: o[1].sum(), lambda o: o[0].sum() + o[1].sum()):
        mine, theirs = [copied(X), copied(W)], [copied(X), copied(W)]
        assert_same(step(compiled, mine, use), step(two, theirs, use))
    assert len(newest().backwards) == 3


def test_input_that_requires_no_grad_gets_none():
    assert_generated(check(lambda x, w: (x @ w).exp(), X.detach(), W))


def test_each_combination_of_inputs_that_require_grad():
    for a in (False, True):
        for b in (False, True):
            x, w = copied(X).requires_grad_(a), copied(W).requires_grad_(b)
            if a or b:
                assert_generated(check(lambda x, w: (x @ w).exp(), x, w))


def test_no_result_requires_grad():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: (x.detach() * 2, x.argmax(-1)))
    got = compiled(X)
    assert not got[0].requires_grad and torch.equal(got[1], X.argmax(-1))
    assert STATISTICS.aten_graphs == 0 and STATISTICS.kernels > 0


def test_gradients_accumulate():
    compiled = torchweld.compile(two)
    mine, theirs = [copied(X), copied(W)], [copied(X), copied(W)]
    for _ in range(3):
        step(compiled, mine), step(two, theirs)
    assert_same([x.grad for x in mine], [x.grad for x in theirs])


def test_autograd_grad():
    compiled = torchweld.compile(two)
    x, w = copied(X), copied(W)
    (got,) = torch.autograd.grad(compiled(x, w)[0].sum(), w)
    (want,) = torch.autograd.grad(two(x, w)[0].sum(), w)
    torch.testing.assert_close(got, want)


def test_retained_graph_runs_again():
    x = copied(X)
    out = torchweld.compile(lambda x: (x.exp() * 2).sum())(x)
    out.backward(retain_graph=True)
    once = x.grad.clone()
    out.backward()
    torch.testing.assert_close(x.grad, once * 2)


def test_second_backward_without_the_graph_is_an_error():
    out = torchweld.compile(lambda x: (x.exp() * 2).sum())(copied(X))
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_second_backward_of_what_saves_nothing_is_none():
    x = copied(X)
    out = torchweld.compile(lambda x: x * 2 + 1)(x)
    for _ in range(2):
        out.sum().backward()
    assert newest().backwards and torch.equal(x.grad, torch.full_like(x, 4.0))


def saving_node(out):
    """The node of a compiled forward."""
    node = out.grad_fn
    while not hasattr(node, "kept"):
        node = node.next_functions[0][0]
    return node


def test_a_backward_frees_what_was_saved_unless_the_graph_is_retained():
    x, w = copied(X), copied(W)
    out = torchweld.compile(lambda x, w: ((x @ w).sin() @ w).relu())(x, w).sum()
    node = saving_node(out)
    assert node.kept
    out.backward(retain_graph=True)
    assert node.kept
    out.backward()
    assert not node.kept


def test_an_input_that_a_transform_left_behind():
    left = []

    def leaking(x):
        left.append(x * 1)
        return (x * x).sum()

    torch.func.grad(leaking)(torch.randn(4, 5))
    w = copied(W)
    out = torchweld.compile(lambda x, w: (x @ w).exp())(left[0], w)
    out.sum().backward()
    torch.testing.assert_close(w.grad, torch.autograd.grad((left[0] @ w).exp().sum(), w)[0])


def test_second_derivative():
    def penalty(f):
        x, w = copied(X), copied(W)
        (g,) = torch.autograd.grad(f(x, w)[1].sum(), x, create_graph=True)
        (g.square().sum() + f(x, w)[0].sum()).backward()
        return [x.grad, w.grad]

    assert_same(penalty(torchweld.compile(two)), penalty(two))


def test_third_derivative():
    def third(f):
        x = copied(X)
        y = f(x).sum()
        for _ in range(2):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            y = g.sum()
        return torch.autograd.grad(y, x)[0]

    f = lambda x: x.sin() * x
    torch.testing.assert_close(third(torchweld.compile(f)), third(f))


def test_second_derivative_draws_the_same_numbers():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5).exp()

    def penalty(f):
        torch.manual_seed(3)
        x = copied(X)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        g.square().sum().backward()
        return [x.grad, torch.rand(1)]

    assert_same(penalty(torchweld.compile(fn)), penalty(fn))


def test_changed_parameter_is_noticed_by_a_second_derivative():
    x, b = copied(X), leaf(5)
    out = torchweld.compile(lambda x, b: (x + b).exp().sum())(x, b)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(out, x, create_graph=True)


def test_changed_saved_input_is_an_error():
    x, w = copied(X), copied(W)
    out = torchweld.compile(lambda x, w: (x @ w).sum())(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_changed_saved_result_is_an_error():
    out = torchweld.compile(lambda x: (x * 2).exp())(copied(X))
    out.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_changed_input_that_eager_does_not_keep_is_no_error():
    def run(f):
        x, b = copied(X), leaf(5).detach().zero_().requires_grad_()
        out = f(x, b)
        with torch.no_grad():
            b.add_(1)
        out.sum().backward()
        return [x.grad, b.grad]

    fn = lambda x, b: torch.nn.functional.gelu(x + b)
    assert_same(run(torchweld.compile(fn)), run(fn))


def test_changed_result_that_eager_does_not_keep_is_no_error():
    def run(f):
        x = copied(X)
        a, b = f(x)
        a.detach().zero_()
        b.sum().backward()
        return [x.grad]

    def fn(x):
        y = x + 1
        return y, (y + 1).relu()

    assert_same(run(torchweld.compile(fn)), run(fn))


def test_hooks_on_tensors():
    def run(f):
        seen = []
        x, w = copied(X), copied(W)
        x.register_hook(lambda g: g * 2)
        out = f(x, w)[0]
        out.register_hook(lambda g: seen.append(g.clone()))
        out.retain_grad()
        (out * out).sum().backward()
        return [x.grad, w.grad, out.grad, *seen]

    assert_same(run(torchweld.compile(two)), run(two))


def test_saved_tensor_hooks_see_what_is_saved():
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t

    x, w = copied(X), copied(W)
    compiled = torchweld.compile(two)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        compiled(x, w)[0].sum().backward()
    assert packed


def test_saved_tensor_hooks_may_replace_what_only_the_backward_reads():
    fn = lambda x, w: ((x @ w).sin() @ w).relu()
    compiled, seen = torchweld.compile(fn), []

    def run(f):
        x, w = copied(X), copied(W)
        f(x, w).sum().backward()
        return [x.grad, w.grad]

    want = run(compiled)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: seen.append(t) or t.numpy(force=True).copy(), torch.from_numpy
    ):
        got = run(compiled)
    assert_same(got, want)
    assert len(seen) > 2 and len({t.data_ptr() for t in seen}) == len(seen)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_a_compiled_function(reentrant):
    compiled = torchweld.compile(two)

    def run(f):
        x, w = copied(X), copied(W)
        checkpoint(f, x, w, use_reentrant=reentrant)[0].sum().backward()
        return [x.grad, w.grad]

    assert_same(run(compiled), run(two))


def test_gradient_with_other_strides():
    def run(f):
        x, w = copied(X), copied(W)
        out = f(x, w)[0]
        out.backward(torch.ones(5, 4).t())
        return [x.grad, w.grad]

    assert_same(run(torchweld.compile(two)), run(two))


@pytest.mark.parametrize("tangent", [
    lambda: torch._efficientzerotensor(4, 5),
    lambda: torch.complex(torch.ones(4, 5), torch.arange(20.0).view(4, 5)).conj().imag,
    lambda: torch.nn.Parameter(torch.ones(4, 5)),
    lambda: torch.ones(5).expand(4, 5),
], ids=["zero", "negative", "parameter", "expanded"])  # fmt: skip
def test_gradient_that_is_no_plain_memory(tangent):
    def run(f):
        x, w = copied(X), copied(W)
        outs = f(x, w)
        torch.autograd.backward([outs[0], outs[1]], [tangent(), torch.ones(4, 5)])
        return [x.grad, w.grad]

    assert_same(run(torchweld.compile(two)), run(two))


def test_given_gradient_is_not_shared_with_the_input():
    x, g = copied(X), torch.ones(4, 5)
    torchweld.compile(lambda x: x.clone() * 1.0)(x).backward(g)
    x.grad.zero_()
    assert torch.equal(g, torch.ones(4, 5))


def test_no_grad_island():
    def fn(x, w):
        with torch.no_grad():
            scale = (x * x).mean()
        return x * scale + w.sum()

    assert_generated(check(fn, X, W))


def test_autocast_island():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y.float().exp()

    assert_generated(check(fn, X, W, rtol=2e-2, atol=2e-2))


def test_autocast_around_the_call():
    def run(f):
        x, w = copied(X), copied(W)
        with torch.autocast("cpu", torch.bfloat16):
            out = f(x, w)[0]
        out.float().sum().backward()
        return [out, x.grad, w.grad]

    assert_same(run(torchweld.compile(two)), run(two), rtol=2e-2, atol=2e-2)


def test_detached_part():
    assert_generated(check(lambda x, w: x.detach() * w[:4] + x, X, W))


def test_call_in_a_thread():
    import threading

    compiled = torchweld.compile(two)
    x, w = copied(X), copied(W)
    out = compiled(x, w)[0].sum()
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    y, v = copied(X), copied(W)
    two(y, v)[0].sum().backward()
    assert_same([x.grad, w.grad], [y.grad, v.grad])


def test_backward_after_reset():
    x = copied(X)
    out = torchweld.compile(lambda x: x.sin() * x)(x)
    torchweld.reset()
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(g, x.sin() + x * x.cos())


def test_backward_that_cannot_be_compiled_runs_in_aten(monkeypatch):
    def refuse(*args):
        raise Unsupported("W201", "for the test")

    monkeypatch.setattr(torchweld.programs, "backward", refuse)

    def fn(x, w):
        return torch.nn.functional.dropout(x @ w, 0.5), x.exp()

    made = check(fn, X, W)
    assert made.differentiable and not made.backwards


def test_explanation_names_both_parts():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x.exp() * 2)
    out = compiled(copied(X))
    assert newest().text().endswith("backward: compiled when it first runs")
    out.sum().backward()
    assert newest().text() == (
        "1 generated kernel, 0 ATen calls; backward: 1 generated kernel, 0 ATen calls"
    )


def test_parameter_used_twice():
    assert_generated(check(lambda x, w: (x @ w).tanh() @ w + (x * 2) @ w.t(), X, W))


def test_checkpoint_inside_of_a_compiled_function():
    def fn(x, w):
        return checkpoint(two, x, w, use_reentrant=False)[0] * 2

    def run(f):
        x, w = copied(X), copied(W)
        f(x, w).sum().backward()
        return [x.grad, w.grad]

    assert_same(run(torchweld.compile(fn)), run(fn))


def test_custom_function_with_gradients_breaks_the_graph():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    def fn(x, w):
        return (Twice.apply(x @ w).exp() + x @ w).sin()

    def run(f):
        x, w = copied(X), copied(W)
        f(x, w).sum().backward()
        return [x.grad, w.grad]

    assert_same(run(torchweld.compile(fn)), run(fn))


def test_scaled_gradients_of_amp():
    def run(f):
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        x, w = copied(X), copied(W)
        optimizer = torch.optim.SGD([w], lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = f(x, w)[0].float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
        return [w, loss]

    assert_same(run(torchweld.compile(two)), run(two), rtol=2e-2, atol=2e-2)


def test_grad_mode_switched_on_inside():
    def fn(x, w):
        with torch.enable_grad():
            return (x @ w).exp()

    def run(f):
        x, w = copied(X), copied(W)
        with torch.no_grad():
            out = f(x, w)
        out.sum().backward()
        return [out, x.grad, w.grad]

    assert_same(run(torchweld.compile(fn)), run(fn))


def test_batch_of_gradients():
    def run(f):
        x = copied(X)
        y = f(x)
        return [torch.autograd.grad(y.sum(1), x, torch.eye(4), is_grads_batched=True)[0]]

    fn = lambda x: (x * x).exp()
    assert_same(run(torchweld.compile(fn)), run(fn))


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand_like(grad)


def test_numbers_drawn_for_a_gradient_are_drawn_in_the_backward():
    compiled = torchweld.compile(lambda x: NoisyGradient.apply(x.sin()).cos())
    found = []
    for fn in (compiled, lambda x: NoisyGradient.apply(x.sin()).cos()):
        x = copied(X)
        out = fn(x)
        torch.manual_seed(3)
        out.sum().backward()
        found.append((x.grad, torch.rand(2)))
    assert_same([*found[0]], [*found[1]])
    assert_generated(newest())
