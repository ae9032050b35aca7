"""What training loops do: accumulation, clipping, scaling, master weights, hooks, kinds of layers.

Each compiled step leaves what eager leaves, with generated kernels in forward and backward.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_twin import assert_generated, assert_same, check, check_module, leaf

import torchweld
from torchweld.pipeline import STATISTICS

Loop = Callable[[Callable[..., Any], nn.Module], list[Tensor | None]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.norm(self.a(x))))


def loop_equals_eager(loop: Loop, module: nn.Module | None = None, graphs: int = 1,
                      **close: Any) -> None:  # fmt: skip
    """Run a loop with a compiled copy of a module and with the module: all is left alike.

    graphs: how many graphs are captured.
    """
    torch.manual_seed(3)
    torchweld.reset()
    leaves_the_same(loop, Net() if module is None else module, **close)
    assert STATISTICS.graphs == graphs and STATISTICS.breaks == 0
    for made in STATISTICS.compiled:
        assert_generated(made)


def leaves_the_same(loop: Loop, theirs: nn.Module, **close: Any) -> None:
    """Run a loop with a compiled copy of a module and with the module, whatever was compiled."""
    ours = copy.deepcopy(theirs)
    results = []
    for run, owner in ((torchweld.compile(ours), ours), (theirs, theirs)):
        torch.manual_seed(5)
        left = loop(run, owner)
        state = [*owner.parameters(), *(p.grad for p in owner.parameters()), *owner.buffers()]
        results.append([*left, *state])
    assert_same(*results, **close)


def batches(n: int = 3) -> list[Tensor]:
    return [torch.randn(4, 6) for _ in range(n)]


# ---------------------------------------------------------------- around the compiled function
def test_gradients_of_micro_batches_accumulate():
    def loop(run, net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            for x in batches(2):
                (run(x).square().mean() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        run(batches(1)[0]).sum().backward()
        return []

    loop_equals_eager(loop)


def test_two_forwards_before_their_backwards():
    def loop(run, net):
        a, b = (run(x) for x in batches(2))
        (a.exp().sum() + (b * a).sum()).backward()
        return [a, b]

    loop_equals_eager(loop)


def test_backwards_in_the_opposite_order_and_retained():
    def loop(run, net):
        a, b = (run(x).sum() for x in batches(2))
        b.backward(retain_graph=True)
        a.backward()
        b.backward()
        return []

    loop_equals_eager(loop)


@pytest.mark.parametrize("zero", [True, False])
def test_gradients_are_set_to_zero(zero):
    def loop(run, net):
        for x in batches():
            net.zero_grad(set_to_none=zero)
            run(x).square().sum().backward()
        return []

    loop_equals_eager(loop)


@pytest.mark.parametrize("clip", [
    lambda p: nn.utils.clip_grad_norm_(p, 0.1), lambda p: nn.utils.clip_grad_value_(p, 0.01),
    lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=float("inf"))])  # fmt: skip
def test_gradients_are_clipped(clip):
    def loop(run, net):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        norms = []
        for x in batches():
            optimizer.zero_grad()
            run(x).square().sum().backward()
            norms.append(clip(net.parameters()))
            optimizer.step()
        return [n for n in norms if n is not None]

    loop_equals_eager(loop)


def test_scaler_skips_a_step_whose_gradients_overflow():
    def loop(run, net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        scales = []
        for k, x in enumerate(batches(4)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = run(x).float().square().mean()
            scaler.scale(loss * (float("inf") if k == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(torch.tensor(scaler.get_scale()))
        return scales

    loop_equals_eager(loop, rtol=2e-2, atol=2e-2)


def test_master_weights():
    def loop(run, net):
        masters = [p.detach().float().requires_grad_() for p in net.parameters()]
        optimizer = torch.optim.AdamW(masters, lr=0.01)
        for x in batches():
            run(x.bfloat16()).float().square().sum().backward()
            for p, m in zip(net.parameters(), masters, strict=True):
                m.grad, p.grad = p.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for p, m in zip(net.parameters(), masters, strict=True):
                    p.copy_(m)
        return masters

    torch.manual_seed(3)
    loop_equals_eager(loop, Net().bfloat16(), rtol=5e-2, atol=5e-2)


def test_frozen_part_gets_no_gradient():
    def loop(run, net):
        for p in net.a.parameters():
            p.requires_grad_(False)
        run(batches(1)[0]).sum().backward()
        return []

    loop_equals_eager(loop)


def test_part_is_frozen_later():
    def loop(run, net):
        for freeze in (False, True):
            net.zero_grad()
            net.b.weight.requires_grad_(not freeze)
            run(batches(1)[0]).square().sum().backward()
        return []

    loop_equals_eager(loop, graphs=2)


def test_hooks_on_parameters_run_once_each_backward():
    def loop(run, net):
        seen = []
        for name, p in net.named_parameters():
            p.register_hook(lambda g, name=name: seen.append(name) or g * 2)
            p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
        for x in batches(2):
            run(x).sum().backward()
        order = [s for s in seen if isinstance(s, str)]
        assert sorted(order) == sorted([n for n, _ in net.named_parameters()] * 2)
        return sorted((s.detach() for s in seen if isinstance(s, Tensor)), key=float)

    loop_equals_eager(loop)


def into_bucket(p: Tensor, view: Tensor, *_: Any) -> None:
    view.copy_(p.grad)
    p.grad = view


def test_reducer_that_replaces_gradients():
    """As DistributedDataParallel does: hooks of the accumulating nodes write into buckets."""

    def loop(run, net):
        bucket = torch.zeros(sum(p.numel() for p in net.parameters()))
        kept, at = [], 0
        for p in net.parameters():
            view = bucket[at : at + p.numel()].view_as(p)
            node = p.view_as(p).grad_fn.next_functions[0][0]
            node.register_hook(functools.partial(into_bucket, p, view))
            kept.append(node)
            at += p.numel()
        for x in batches(2):
            net.zero_grad()
            bucket.zero_()
            run(x).square().sum().backward()
        return [bucket]

    loop_equals_eager(loop)


def test_gradient_penalty():
    def loop(run, net):
        x = batches(1)[0].requires_grad_()
        (g,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        ((g.norm(2, dim=1) - 1) ** 2).mean().backward()
        return [x.grad]

    torch.manual_seed(3)
    leaves_the_same(loop, Net())


def test_gradients_of_inputs_only():
    def loop(run, net):
        x = batches(1)[0].requires_grad_()
        (g,) = torch.autograd.grad(run(x).sum(), x)
        return [g]

    loop_equals_eager(loop)


def test_averaged_model():
    def loop(run, net):
        averaged = torch.optim.swa_utils.AveragedModel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in batches():
            optimizer.zero_grad()
            run(x).square().sum().backward()
            optimizer.step()
            averaged.update_parameters(net)
        return list(averaged.parameters())

    loop_equals_eager(loop)


def test_evaluation_in_between():
    def loop(run, net):
        outs = []
        for x in batches(2):
            with torch.no_grad():
                outs.append(run(x))
            run(x).square().sum().backward()
        return outs

    torch.manual_seed(3)
    leaves_the_same(loop, Net())


# ---------------------------------------------------------------- inside of it
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).tanh())


IDS = torch.tensor([[1, 2, 3], [2, 2, 10]])


def test_tied_weights():
    assert_generated(check_module(Tied(), IDS))


@pytest.mark.parametrize("options", [
    {}, {"padding_idx": 2}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embedding(options):
    made = check_module(nn.Sequential(nn.Embedding(11, 6, **options), nn.Tanh()), IDS)
    assert_generated(made)


def test_sparse_gradient_of_an_embedding():
    def run(f, m):
        f(IDS).exp().sum().backward()
        return m[0].weight.grad

    theirs = nn.Sequential(nn.Embedding(11, 6, sparse=True), nn.Tanh())
    ours = copy.deepcopy(theirs)
    got, want = run(torchweld.compile(ours), ours), run(theirs, theirs)
    assert got.layout == want.layout == torch.sparse_coo
    torch.testing.assert_close(got.to_dense(), want.to_dense())


def test_images_in_channels_last():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                        nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)  # fmt: skip
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert_generated(check_module(net, x, rtol=1e-4, atol=1e-4))


def test_complex_numbers():
    def fn(x, w):
        return torch.view_as_real(torch.fft.rfft(x @ w)).square().sum(-1)

    check(fn, leaf(4, 6), leaf(6, 6))


class Average(nn.Module):
    """Subtracts a running mean that each call moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.no_grad():
            self.mean.lerp_(y.mean(0), 0.1)
        return y - self.mean


class Clamped(nn.Module):
    """data: whether the weight is changed as `.data`, or under no_grad."""

    def __init__(self, data: bool) -> None:
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.data = data

    def forward(self, x: Tensor) -> Tensor:
        if self.data:
            self.a.weight.data.clamp_(-0.1, 0.1)
        else:
            with torch.no_grad():
                self.a.weight.clamp_(-0.1, 0.1)
        return self.a(x).tanh()


CHANGING = {
    "running mean": Average,
    "clamped data": lambda: Clamped(True),
    "clamped weight": lambda: Clamped(False),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)),
    "spectral norm of old": lambda: nn.utils.spectral_norm(nn.Linear(6, 4)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_module_that_changes_its_state(name):
    torch.manual_seed(2)
    made = check_module(CHANGING[name](), torch.randn(8, 6), rtol=1e-4, atol=1e-4)
    assert_generated(made)


def test_dropout_draws_eagers_numbers():
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3))
    assert_generated(check_module(net, torch.randn(4, 6)))


def test_loss_inside_with_ignored_targets():
    target = torch.tensor([1, -100, 2, 0])

    def fn(x, w):
        return F.cross_entropy(x @ w, target, ignore_index=-100, label_smoothing=0.1)

    assert_generated(check(fn, leaf(4, 5), leaf(5, 3)))


def test_attention_with_a_mask():
    mask = torch.ones(5, 5, dtype=torch.bool).tril()

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    x = [leaf(2, 3, 5, 8) for _ in range(3)]
    assert_generated(check(lambda q, k, v: fn(q, k, v) * 2, *x, rtol=1e-4, atol=1e-4))


def test_recurrence():
    def fn(x, h, w, u):
        outs = []
        for t in range(4):
            h = torch.tanh(x[t] @ w + h @ u)
            outs.append(h)
        return torch.stack(outs), h

    assert_generated(check(fn, leaf(4, 2, 3), leaf(2, 3), leaf(3, 3), leaf(3, 3)))


def test_autocast_with_parameters():
    class Net2(Net):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    assert_generated(check_module(Net2(), torch.randn(4, 6), rtol=2e-2, atol=2e-2))


def test_bfloat16_parameters():
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    assert_generated(check_module(Net().bfloat16(), x, rtol=5e-2, atol=5e-2))


def test_straight_through_estimator():
    assert_generated(check(lambda x: (x + (x.round() - x).detach()) * 2, leaf(4, 5)))


def test_result_that_is_a_gradient_less_number():
    def fn(x):
        y = x.exp()
        return y, y.detach().mean(), y.argmax()

    assert_generated(check(fn, leaf(4, 5)))
