"""A capture that is made to stop before any instruction whatever leaves a frame that goes on."""

from __future__ import annotations

import contextlib

import pytest
import torch
from break_twin import X, outcome
from guard_twin import same
from torch import nn

import torchweld
from torchweld import frames
from torchweld.base.errors import Unsupported
from torchweld.capture.session import Capture


def closures(x):
    total = 0
    steps = []

    def add(y, k=2):
        nonlocal total
        total += k
        steps.append(y.shape[0])
        return y * total

    for i, part in enumerate((x, x + 1)):
        x = x + add(part, k=i + 1)
    return x, total, steps, [lambda y, i=i: y + i for i in range(2)][1](x)


class Note:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")

    def __exit__(self, *error):
        self.log.append(error[0])
        return error[0] is KeyError


@contextlib.contextmanager
def noted(log):
    log.append("in")
    yield len(log)
    log.append("out")


def blocks(x, log):
    with Note(log), torch.no_grad():
        x = x * 2
        with noted(log) as n:
            x = x + n
        try:
            x = x / len(log)
            raise KeyError("a") if n else ValueError
        except ValueError as error:
            x = x - len(str(error))
        finally:
            log.append("finally")
    return x, torch.is_grad_enabled()


def containers(x, box):
    box["list"].append(x * 2)
    pairs = {k: (v, [x]) for k, v in zip("ab", (x, x + 1), strict=True)}
    first, *others = [*pairs.values(), x]
    box["n"] += 1
    print("n", box["n"])
    text = f"{len(others)}-{box['n']:>3}"
    return pairs["a"][1] is first[1], first, others, text, {*text}, box


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.steps = 0

    @property
    def scale(self):
        return self.steps * 2

    def forward(self, x):
        self.steps += 1
        for layer in self.layers:
            x = layer(x).relu() if x.dim() < 3 else x
        return (x * self.scale if self.steps else x), self.steps




def stopped_at(monkeypatch, stop):
    """Captures of whole frames end before this instruction, if they can; says if one did."""
    real, done = frames._captured, []

    def captured(cap, fn, args, site):
        if cap.stop or site.owner is not None:
            return real(cap, fn, args, site)
        try:
            entry = real(Capture(site.varying(), stop), fn, args, site)
        except (Unsupported, frames.Round):
            return real(cap, fn, args, site)
        done.append(stop)
        return entry

    monkeypatch.setattr(frames, "_captured", captured)
    return done


def everywhere(monkeypatch, make, args, count):
    """The program gives what eager gives wherever its capture stops; at how many places it did."""
    places = 0
    for stop in range(1, count + 1):
        torchweld.reset()
        with monkeypatch.context() as patch:
            done = stopped_at(patch, stop)
            eager, compiled = make(), torchweld.compile(make(), backend="eager")
            for _ in range(2):
                want, got = outcome(eager, args), outcome(compiled, args)
                same(got[0], want[0])
                assert got[1:2] == want[1:2]
                same(got[2], want[2])
        assert torchweld.statistics()["internal_errors"] == 0
        places += bool(done)
    return places


@pytest.mark.parametrize(("program", "args", "count", "least"), [
    (closures, (X,), 120, 60), (blocks, (X, []), 90, 20),
    (containers, (X, {"list": [], "n": 0}), 90, 25),
])  # fmt: skip
def test_a_function_that_stops_anywhere_goes_on(monkeypatch, program, args, count, least):
    assert everywhere(monkeypatch, lambda: program, args, count) >= least


def test_a_module_that_stops_anywhere_goes_on(monkeypatch):
    def make():
        torch.manual_seed(0)
        return Net()

    with torch.no_grad():
        assert everywhere(monkeypatch, make, (X,), 110) >= 20
