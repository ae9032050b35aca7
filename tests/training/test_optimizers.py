"""A compiled step of an optimizer: one graph, compiled twice at most, and eager's result."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from optimizer_twin import SHAPES, check_steps, drive, parameters

import torchweld
from torchweld import pipeline

pytestmark = pytest.mark.usefixtures("at_once")

SGD = (
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.1, "foreach": True}, {"maximize": True, "weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1, "fused": True},
)  # fmt: skip
ADAM = (
    {}, {"foreach": True}, {"foreach": False, "amsgrad": True, "maximize": True},
    {"foreach": True, "amsgrad": True, "weight_decay": 0.1}, {"fused": True},
    {"fused": True, "amsgrad": True, "weight_decay": 0.1, "maximize": True},
)  # fmt: skip
OTHERS = (
    ("RMSprop", {}), ("RMSprop", {"foreach": True, "momentum": 0.9, "centered": True}),
    ("Adagrad", {"lr_decay": 0.1}), ("Adagrad", {"foreach": True, "weight_decay": 0.1}),
    ("Adagrad", {"fused": True}), ("NAdam", {}), ("NAdam", {"foreach": True, "weight_decay": 0.1}),
    ("Adadelta", {}), ("Adadelta", {"foreach": True}), ("Adamax", {}),
    ("Adamax", {"foreach": True}), ("ASGD", {}), ("ASGD", {"foreach": True}), ("Rprop", {}),
    ("Rprop", {"foreach": True}), ("Adafactor", {}), ("Adafactor", {"foreach": True}),
)  # fmt: skip


@pytest.mark.parametrize("options", SGD)
def test_sgd_equals_eager_bit_by_bit(options):
    check_steps(lambda p: torch.optim.SGD(p, lr=0.1, **options), exact=not options.get("fused"))


@pytest.mark.parametrize("options", ADAM)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(kind, options):
    check_steps(lambda p: kind(p, lr=0.01, **options))


@pytest.mark.parametrize(("name", "options"), OTHERS)
def test_other_optimizers(name, options):
    check_steps(lambda p: getattr(torch.optim, name)(p, lr=0.01, **options))


@pytest.mark.parametrize("foreach", [False, True])
def test_radam_is_compiled_once_more_when_it_begins_to_rectify(foreach):
    check_steps(lambda p: torch.optim.RAdam(p, lr=0.01, foreach=foreach), captures=3)


def test_a_learning_rate_that_is_a_tensor():
    check_steps(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)))


def test_groups_of_parameters_have_learning_rates_of_their_own():
    check_steps(lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}]))


def test_bfloat16_parameters():
    check_steps(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), dtype=torch.bfloat16)


class Lion(torch.optim.Optimizer):
    """An optimizer as users write them."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                average = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = (average * beta1 + p.grad * (1 - beta1)).sign_()
                p.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def test_an_optimizer_of_the_users_own():
    check_steps(Lion, exact=True)


def test_a_scheduler_changes_the_rate_without_another_compilation():
    torchweld.reset()
    params = parameters()
    optimizer = torch.optim.AdamW(params)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    step = torchweld.compile(optimizer.step)
    for _ in range(6):
        for p in params:
            p.grad = torch.ones_like(p)
        step()
        scheduler.step()
    assert pipeline.STATISTICS.captures == 2


def test_a_step_inside_of_a_compiled_function():
    def train(optimizer, params, grads):
        for p, g in zip(params, grads, strict=True):
            p.grad.copy_(g)
        optimizer.step()
        return params[0] * 2

    torchweld.reset()
    compiled, results = torchweld.compile(train, fullgraph=True), []
    for fn in (train, compiled):
        params = parameters()
        optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        for p in params:
            p.grad = torch.zeros_like(p)
        grads = [torch.ones_like(p) for p in params]
        results.append([fn(optimizer, params, grads) for _ in range(3)])
    assert torch.equal(torch.stack(results[0]), torch.stack(results[1]))


def test_a_parameter_without_gradient_is_left_alone():
    torchweld.reset()
    params = parameters()
    optimizer = torch.optim.Adam(params)
    for p in params[1:]:
        p.grad = torch.ones_like(p)
    before = params[0].clone()
    torchweld.compile(optimizer.step, fullgraph=True)()
    assert torch.equal(params[0], before)
    assert set(optimizer.state) == set(params[1:])


def test_another_tensor_in_the_place_of_a_parameter_has_its_own_state():
    torchweld.reset()
    params, others = parameters(), parameters()
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    step = torchweld.compile(optimizer.step)
    drive(optimizer, step, params)
    optimizer.param_groups[0]["params"][0] = others[0]
    others[0].grad = torch.ones_like(others[0])
    expected = others[0] - 0.01 * torch.ones_like(others[0])
    step()
    assert torch.equal(optimizer.state[others[0]]["momentum_buffer"], others[0].grad)
    torch.testing.assert_close(others[0], expected)


def test_one_kernel_for_each_parameter_and_one_for_all_counters():
    counts = check_steps(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True))
    assert counts["kernels"] == 2 * (len(SHAPES) + 1)


def whole_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def test_a_whole_step_with_a_scheduler_is_one_graph():
    torchweld.reset()
    torch.manual_seed(0)
    x, y, results = torch.randn(5, 8), torch.randn(5, 4), []
    for fn in (whole_step, torchweld.compile(whole_step, fullgraph=True)):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        losses = []
        for _ in range(6):
            losses.append(fn(model, optimizer, x, y))
            scheduler.step()
        results.append((losses, [p.detach() for p in model.parameters()]))
    assert pipeline.STATISTICS.captures == 2
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_skips_a_step_with_an_infinite_gradient(fused):
    results = []
    for compiles in (False, True):
        torchweld.reset()
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        if compiles:
            optimizer.step = torchweld.compile(optimizer.step)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        for i in range(5):
            x = torch.randn(5, 8)
            x[0, 0] = float("inf") if i == 2 else 0.0
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append([model.weight.detach(), torch.tensor(scaler.get_scale()),
                        *(state["step"] for state in optimizer.state.values())])  # fmt: skip
    assert pipeline.STATISTICS.breaks == 0
    torch.testing.assert_close(results[1], results[0])


def test_a_step_with_a_closure():
    results = []
    for compiles in (False, True):
        torchweld.reset()
        torch.manual_seed(0)
        model, x = torch.nn.Linear(8, 4), torch.randn(5, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def closure(model=model, x=x, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        step = torchweld.compile(optimizer.step) if compiles else optimizer.step
        results.append([*(step(closure).detach() for _ in range(4)), model.weight.detach()])
    assert pipeline.STATISTICS.breaks == 0
    torch.testing.assert_close(results[1], results[0])


def test_a_number_of_a_tensor_stays_in_the_graph_and_can_be_returned():
    def fn(x):
        total = (x * 2).sum().item()
        x += 1
        return x * total, total, total / 2 + 1

    torchweld.reset()
    want = fn(torch.arange(4.0))
    got = torchweld.compile(fn, fullgraph=True)(torch.arange(4.0))
    assert torch.equal(got[0], want[0])
    assert got[1:] == want[1:]
    assert pipeline.STATISTICS.graphs == 1


def test_a_division_by_a_number_that_is_zero_raises_as_in_eager():
    def fn(x):
        return x * (1.0 / x.sum().item())

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    assert torch.equal(compiled(torch.ones(4)), fn(torch.ones(4)))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.zeros(4))
    assert pipeline.STATISTICS.graphs == 1


def test_what_torch_marks_in_its_optimizers_does_not_count():
    source = """
import torch, torchweld
import torch._dynamo
torch._dynamo.eval_frame.TorchPatcher.patch()
for options in ({"foreach": True}, {"fused": True}):
    p = torch.ones(4, requires_grad=True)
    opt = torch.optim.SGD([p], lr=0.5, **options)
    p.grad = torch.ones(4)
    torchweld.compile(opt.step, fullgraph=True)()
    assert p.tolist() == [0.5] * 4
print(torchweld.statistics()["breaks"])
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True,
                          check=False)
    assert done.stdout == "0\n", done.stderr
