"""Graphs that their own effects end run as they are, and are compiled when they are used again."""

import threading

import pytest
import torch
from torch import nn

import torchweld
from torchweld.base import config
from torchweld.pipeline import STATISTICS


def launched() -> list[bool]:
    """Of each graph in use, whether it is compiled; of the others the reason is checked."""
    found = STATISTICS.compiled
    assert all(c.refusal is None or c.refusal.code == "W121" for c in found)
    return [c.executable is not None for c in found]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.weight + self.calls


class Flag(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = True

    def forward(self, x):
        self.up = not self.up
        return x.sin() * 2 if self.up else x.cos() * 3


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def test_the_first_call_of_a_counter_is_not_compiled_and_the_second_is():
    model, x = Counter(), torch.randn(4)
    compiled = torchweld.compile(model)
    for i, want in enumerate(([False], [False, True], [False, True])):
        torch.testing.assert_close(compiled(x), x + i + 1)
        assert launched() == want
    assert model.calls == 3
    assert STATISTICS.counts()["graphs"] == 2


def test_flags_that_alternate_are_compiled_when_they_come_again():
    model, x = Flag(), torch.randn(4)
    compiled = torchweld.compile(model)
    seen = []
    for i in range(5):
        torch.testing.assert_close(compiled(x), x.cos() * 3 if i % 2 == 0 else x.sin() * 2)
        seen.append(sorted(launched()))
    assert seen == [[False], [False, False], [False, True], [True, True], [True, True]]
    assert STATISTICS.counts()["captures"] == 2


def test_what_only_writes_or_writes_the_same_is_compiled_at_once():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.on, self.last = True, torch.zeros(4)

        def forward(self, x):
            assert self.on
            self.on, self.last = True, x.exp()
            return self.last + 1

    compiled = torchweld.compile(Keeps())
    compiled(torch.randn(4))
    assert launched() == [True]


def test_a_list_that_is_an_argument_is_another_one_in_the_next_call():
    def step(x, seen):
        y = (x * 2).sin() + len(seen)
        seen.append(y)
        return y

    compiled = torchweld.compile(step)
    compiled(torch.randn(4), [])
    assert launched() == [True]


def test_the_first_step_of_an_optimizer_is_not_compiled_but_equals_the_next_compilation():
    def run(*skip):
        torchweld.reset()
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        @torchweld.compile(fullgraph=True)
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        with config.override(skip=skip):
            losses = [step(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(4)]
        return losses, list(model.parameters()), launched(), step

    losses, parameters, seen, _ = run()
    assert seen == [False, True]
    assert STATISTICS.counts()["kernels"] > 0 == STATISTICS.counts()["aten_graphs"]
    others, theirs, seen, _ = run("passing")
    assert seen == [True, True]
    torch.testing.assert_close(losses, others)
    torch.testing.assert_close(parameters, theirs)


def test_a_gradient_that_is_left_behind_ends_a_graph_until_somebody_drops_it():
    weight = nn.Parameter(torch.ones(4))

    @torchweld.compile
    def step(x):
        (weight * x).square().sum().backward()

    x = torch.randn(4)
    for want in ([False], [True]):
        weight.grad = None
        step(x)
        torch.testing.assert_close(weight.grad, 2 * x.square())
        assert launched() == want


def test_a_name_of_the_function_around_that_is_counted():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x.sin() + count

    compiled = torchweld.compile(step)
    for i in range(3):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + i + 1)
    assert launched() == [False, True]


def test_a_cache_that_grows_with_every_call():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = torch.zeros(1, 3)

        def forward(self, x):
            self.keys = torch.cat([self.keys, x * 2.0])
            return self.keys.sum(0) + x.sin()

    model, x = Cache(), torch.randn(1, 3)
    compiled = torchweld.compile(model)
    for i in range(4):
        want = 2.0 * (i + 1) * x[0] + x.sin()
        torch.testing.assert_close(compiled(x), want, rtol=1e-5, atol=1e-5)
    assert launched() == [False, True]


def test_explain_says_that_a_graph_runs_as_it_is_and_why():
    said = torchweld.explain(Counter(), backend="torchweld")(torch.randn(4)).text()
    assert "W121" in said
    assert "self.calls" in said
    assert "1 graph, 0 breaks" in said


def test_a_backend_of_the_users_gets_every_graph_at_once():
    got = []

    def backend(gm, inputs):
        got.append(gm)
        return gm.forward

    torchweld.compile(Counter(), backend=backend)(torch.randn(4))
    assert len(got) == 1


def test_one_of_many_threads_compiles_and_the_others_go_on():
    model, x = Flag(), torch.randn(4)
    compiled = torchweld.compile(model)
    compiled(x)
    model.up = True
    wrong = []

    def call():
        for _ in range(20):
            out = compiled(x)
            if not (torch.allclose(out, x.cos() * 3) or torch.allclose(out, x.sin() * 2)):
                wrong.append(out)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    compiled(x), compiled(x)
    assert any(launched())
    assert STATISTICS.counts()["internal_errors"] == 0


def test_what_was_compiled_later_dies_with_the_function():
    model = Flag()
    compiled = torchweld.compile(model)
    for _ in range(4):
        compiled(torch.randn(4))
    assert len(STATISTICS.compiled) == 2
    del compiled, model
    assert STATISTICS.compiled == []
