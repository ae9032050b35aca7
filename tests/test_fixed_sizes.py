"""Sizes that come very often, from the user's side: what is compiled for them alone is not seen."""

import copy

import pytest
import torch

import torchweld
from torchweld import fixing
from torchweld.base import config
from torchweld.base.errors import UsageTypeError
from torchweld.ir.lengthen import ORIGIN
from torchweld.pipeline import STATISTICS
from torchweld.runtime import sized, trial
from torchweld.runtime.background import BACKGROUND

OFTEN = 4
CALLS = OFTEN + trial.WARM + 2 * trial.PAIRS + 6


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Sizes come often soon, and what is compiled for them is fast enough."""
    monkeypatch.setattr(sized, "OFTEN", OFTEN)
    monkeypatch.setattr(trial, "PART", 1e9)
    monkeypatch.setattr(trial, "MOST_PAIRS", 0)
    monkeypatch.setattr(fixing, "in_another_process", fixing.answer)
    torchweld.reset()
    yield
    torchweld.reset()


def call_often(compiled, eager, make, check=torch.testing.assert_close):
    """Two sizes, then many calls of the second one, each compared with eager."""
    for i in range(CALLS):
        x = make(6 if i == 0 else 9)
        check(compiled(x), eager(x))
        if i > OFTEN:
            assert BACKGROUND.wait()


def softmax(x):
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True), x.sum(0)


def rows(n):
    return torch.randn(5, n)


def test_a_size_that_comes_very_often_is_compiled_and_is_no_recompilation():
    call_often(torchweld.compile(softmax), softmax, rows)
    counts = torchweld.statistics()
    assert (counts["fixed_sizes"], counts["graphs"], counts["recompiles"]) == (1, 2, 1)
    (report,) = torchweld.memory_report().sizes
    assert report.values == (9,) and report.text().endswith("compiled for them alone")
    assert STATISTICS.compiled[-1].text().endswith("for a range of sizes, 1 of them compiled alone")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_nothing_is_compiled_where_the_user_wants_none(how):
    options = {"fixed_sizes": 0} if how == "option" else {}
    with config.override(fixed_sizes=0 if how == "variable" else 4):
        call_often(torchweld.compile(softmax, options=options), softmax, rows)
    assert torchweld.statistics()["fixed_sizes"] == 0


def test_the_option_is_a_number():
    with pytest.raises(UsageTypeError, match="fixed_sizes"):
        torchweld.compile(softmax, options={"fixed_sizes": "all"})


def test_gradients_of_forwards_and_backwards_of_any_kind_are_right():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(7), torch.nn.Linear(7, 5), torch.nn.GELU())

    def step(m):
        def run(x):
            x = x.clone().requires_grad_()
            m.zero_grad()
            softmax(m(x).t())[0].square().sum().backward()
            return [x.grad, *(p.grad.clone() for p in m.parameters())]

        return run

    plain = copy.deepcopy(model)
    compiled = torchweld.compile(lambda x: softmax(model(x).t())[0].square().sum())

    def trained(x):
        x = x.clone().requires_grad_()
        model.zero_grad()
        compiled(x).backward()
        return [x.grad, *(p.grad.clone() for p in model.parameters())]

    call_often(trained, step(plain), lambda n: torch.randn(n, 7))
    assert torchweld.statistics()["fixed_sizes"] == 2
    (newest,) = [c for c in STATISTICS.compiled if c.text().count("compiled alone")]
    assert newest.text().count("compiled alone") == 2


def test_buffers_are_written_once_per_call():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).train()
    plain = copy.deepcopy(model)
    with torch.no_grad():
        call_often(torchweld.compile(model), plain, lambda n: torch.randn(2, 3, n, n))
    assert torchweld.statistics()["fixed_sizes"] == 1
    assert model[1].num_batches_tracked == CALLS
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.inner(self.norm(x)))


@pytest.mark.parametrize("grad", [False, True])
def test_a_model_of_equal_layers_is_made_of_a_few_of_them(grad):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(Layer() for _ in range(9)))
    with torch.set_grad_enabled(grad):
        call_often(torchweld.compile(model), model, lambda n: torch.randn(n, 8))
    (run,) = [c for c in STATISTICS.compiled if c.executable.program.sizes]
    origin = run.executable.program.meta[ORIGIN]
    assert run.executable.fixed() == [(9,)] and origin.inputs.more > 0


def test_numbers_that_vary_stay_numbers():
    def scaled(x, k):
        return x * k + x.sum(0)

    compiled = torchweld.compile(scaled)
    for i in range(CALLS):
        x, k = rows(6 if i == 0 else 9), 2.5 if i == 0 else i + 0.5
        torch.testing.assert_close(compiled(x, k), scaled(x, k))
        if i > OFTEN:
            assert BACKGROUND.wait()
    assert torchweld.statistics()["fixed_sizes"] == 1
