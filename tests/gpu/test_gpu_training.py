"""Training on a GPU: gradients of layers and models as eager's, forward and backward generated."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from models import ZOO, make

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import tensors
from torchweld.workbench.suites import to_device

pytestmark = pytest.mark.gpu
STEPS = 5  # warm-up, recording, and replays

LAYERS = {
    "linear": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "layer_norm": lambda x, w, b: F.layer_norm(x @ w, (64,), b, b * 2),
    "rms_norm": lambda x, w, b: F.rms_norm(x @ w, (64,), b),
    "softmax": lambda x, w, b: F.softmax(x @ w, -1) * b,
    "cross_entropy": lambda x, w, b: F.cross_entropy(x @ w, torch.arange(32, device="cuda")),
    "attention": lambda x, w, b: F.scaled_dot_product_attention(
        x.view(1, 1, 32, 64), w[:32].view(1, 1, 32, 64), x.view(1, 1, 32, 64), is_causal=True),
    "batch_norm": lambda x, w, b: F.batch_norm(x @ w, None, None, b, b * 2, training=True),
}  # fmt: skip


def leaf(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer_has_eagers_gradients(name, dtype):
    fn = LAYERS[name]
    torchweld.reset()
    compiled = torchweld.compile(fn)
    inputs = [leaf(32, 64, dtype=dtype), leaf(64, 64, dtype=dtype), leaf(64, dtype=dtype)]
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float32 else {"rtol": 0.1, "atol": 0.1}
    for _ in range(STEPS):
        got = torch.autograd.grad(compiled(*inputs).float().square().sum(), inputs,
                                  allow_unused=True)  # fmt: skip
        want = torch.autograd.grad(fn(*inputs).float().square().sum(), inputs, allow_unused=True)
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None)
            if g is not None:
                torch.testing.assert_close(g, w, **close)
    (made,) = STATISTICS.compiled
    assert made.refusal is None and made.backwards and STATISTICS.internal_errors == 0


def test_dropout_draws_eagers_numbers():
    def run(f):
        torch.manual_seed(3)
        x = torch.ones(1000, device="cuda", requires_grad=True)
        f(x).sum().backward()
        return x.grad

    fn = lambda x: F.dropout(x * 2, 0.5)
    compiled = torchweld.compile(fn)
    for _ in range(STEPS):
        assert torch.equal(run(compiled), run(fn))


def test_results_of_several_forwards_wait_for_their_backwards():
    fn = lambda x: (x * 2).exp() * x
    compiled = torchweld.compile(fn)
    xs = [leaf(128, dtype=torch.float32) for _ in range(STEPS)]
    outs = [compiled(x) for x in xs]
    for out, x in reversed(list(zip(outs, xs, strict=True))):
        (got,) = torch.autograd.grad(out.sum(), x)
        (want,) = torch.autograd.grad(fn(x).sum(), x)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", sorted(set(ZOO) - {"whisper", "clip"}))
def test_model_trains_as_in_eager(name):
    work = to_device(make(name), "cuda")
    model, kwargs = work.fn.train(), work.kwargs
    ours = copy.deepcopy(model)
    torchweld.reset()
    curves = []
    for run, owner in ((torchweld.compile(ours), ours), (model, model)):
        optimizer = torch.optim.SGD(owner.parameters(), lr=1e-3)
        curve = []
        for _ in range(STEPS):
            torch.manual_seed(5)
            optimizer.zero_grad()
            outs = list(run(**copy.deepcopy(kwargs)).values())
            loss = sum(t.float().square().mean() for t in tensors(outs) if t.requires_grad)
            loss.backward()
            optimizer.step()
            curve.append(loss.detach())
        curves.append(torch.stack(curve))
    torch.testing.assert_close(curves[0], curves[1], rtol=5e-3, atol=1e-3)
    assert (STATISTICS.graphs, STATISTICS.breaks, STATISTICS.aten_graphs) == (1, 0, 0)
    assert STATISTICS.internal_errors == 0


# ---------------------------------------------------------------- CUDA graphs
def block(x, w, v):
    return (F.gelu(x @ w) @ v).softmax(-1)


def weights():
    torch.manual_seed(4)
    return [leaf(512, 512, dtype=torch.float32) for _ in range(3)]


def executables():
    (made,) = STATISTICS.compiled
    return made.executable, *made.backwards


def expect(got, *inputs):
    want = torch.autograd.grad(block(*inputs).square().sum(), inputs)
    for g, w in zip(got, want, strict=True):
        assert near(g, w)


def near(got, want):
    """Rounding aside: what another call left in the same memory is far away."""
    return (got - want).norm() <= 1e-3 * want.norm()


def test_forward_and_backward_are_one_graph_each_without_copies_of_what_is_saved():
    torchweld.reset()
    compiled, (x, w, v) = torchweld.compile(block), weights()
    for _ in range(STEPS):
        expect(torch.autograd.grad(compiled(x, w, v).square().sum(), (x, w, v)), x, w, v)
    forward, backward = executables()
    assert len(forward.graphs) == len(backward.graphs) == 1
    assert forward.graphs[0][4] > 0 and forward.graphs[0][5] >= 3 <= backward.graphs[0][5]


def test_forwards_that_wait_are_not_overwritten():
    torchweld.reset()
    compiled, (x, w, v) = torchweld.compile(block), weights()
    for _ in range(STEPS):
        xs = [leaf(512, 512, dtype=torch.float32) for _ in range(5)]
        outs = [compiled(x, w, v).square().sum() for x in xs]
        for i in (3, 0, 4, 1, 2):
            expect(torch.autograd.grad(outs[i], (xs[i], w, v)), xs[i], w, v)


def test_a_retained_graph_is_not_overwritten():
    torchweld.reset()
    compiled, (x, w, v) = torchweld.compile(block), weights()
    first = None
    for _ in range(STEPS):
        out = compiled(x, w, v).square().sum()
        first = out if first is None else first
        expect(torch.autograd.grad(out, (x, w, v), retain_graph=out is first), x, w, v)
    other = leaf(512, 512, dtype=torch.float32)
    for _ in range(3):
        compiled(other, w, v)
        expect(torch.autograd.grad(first, (x, w, v), retain_graph=True), x, w, v)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_the_users_to_keep_and_to_accumulate(set_to_none):
    torchweld.reset()
    compiled, leaves = torchweld.compile(block), weights()
    twins = [x.detach().clone().requires_grad_() for x in leaves]
    kept = []
    for step in range(2 * STEPS):
        if step % 3 == 0:
            for x in (*leaves, *twins):
                kept += [(x.grad, x.grad.clone())] if set_to_none and x.grad is not None else []
                if x.grad is not None:
                    x.grad = None if set_to_none else x.grad.zero_()
        compiled(*leaves).square().sum().backward()
        block(*twins).square().sum().backward()
        for x, twin in zip(leaves, twins, strict=True):
            assert near(x.grad, twin.grad)
    assert all(torch.equal(now, then) for now, then in kept)


def test_hooks_that_keep_what_is_saved_keep_its_values():
    torchweld.reset()
    compiled, (x, w, v) = torchweld.compile(block), weights()
    for _ in range(3):
        expect(torch.autograd.grad(compiled(x, w, v).square().sum(), (x, w, v)), x, w, v)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append((t, t.clone())) or t, lambda t: t
    ):
        out = compiled(x, w, v).square().sum()
    expect(torch.autograd.grad(out, (x, w, v)), x, w, v)
    for _ in range(3):
        compiled(leaf(512, 512, dtype=torch.float32), w, v).square().sum().backward()
    assert kept and all(torch.equal(now, then) for now, then in kept)


def test_steps_on_streams_of_their_own():
    torchweld.reset()
    compiled, (x, w, v) = torchweld.compile(block), weights()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for i in range(2 * STEPS):
        with torch.cuda.stream(streams[i % 2]):
            out = compiled(x, w, v).square().sum()
            got = torch.autograd.grad(out, (x, w, v))
        torch.cuda.synchronize()
        expect(got, x, w, v)
