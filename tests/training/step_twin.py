"""Runs training steps in eager and compiled, and compares everything that is left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchweld
from torchweld.pipeline import STATISTICS

Step = Callable[..., Any]
_alive: list[Any] = []  # what was compiled last: its statistics die with it


def mlp() -> nn.Module:
    """A small model; the same numbers on every call."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def batches(count: int, *shape: int) -> list[Tensor]:
    """Inputs; the same on every call."""
    torch.manual_seed(4)
    return [torch.randn(*shape or (5, 6)) for _ in range(count)]


def state(owner: nn.Module) -> list[Tensor | None]:
    """Parameters, buffers and gradients."""
    found: list[Tensor | None] = [*owner.parameters(), *owner.buffers()]
    return found + [p.grad for p in owner.parameters()]


def assert_left(mine: nn.Module, theirs: nn.Module, **close: float) -> None:
    """Both modules hold the same, gradients laid out alike."""
    for a, b in zip(state(mine), state(theirs), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, **{"rtol": 2e-5, "atol": 2e-6, **close})
            assert a.stride() == b.stride() and a.requires_grad == b.requires_grad


def compiled(fn: Step) -> Step:
    """The compiled function; nothing else is compiled, and it lives until the next call."""
    torchweld.reset()
    _alive[:] = [torchweld.compile(fn)]
    made: Step = _alive[0]
    return made


def run(make_step: Callable[[nn.Module], Step], inputs: list[Any],
        make: Callable[[], nn.Module] = mlp, **close: float) -> list[Any]:  # fmt: skip
    """Assert that the compiled step leaves what eager leaves, after each input; its results."""
    theirs = make()
    mine = copy.deepcopy(theirs)
    step, eager = compiled(make_step(mine)), make_step(theirs)
    results = []
    for x in inputs:
        torch.manual_seed(9)
        got = step(x)
        torch.manual_seed(9)
        want = eager(x)
        torch.testing.assert_close(got, want, **{"rtol": 2e-5, "atol": 2e-6, **close})
        assert_left(mine, theirs, **close)
        results.append(got)
    return results


def assert_one_graph(entries: int = 1, passing: int = 0) -> None:
    """Everything is one generated graph, which was captured once for each of so many states.

    passing: how many of these ended themselves and did not come again, so were not compiled.
    """
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"]) == (entries, 0), STATISTICS.refusals
    assert (counts["aten_graphs"], counts["internal_errors"]) == (0, 0)
    assert len(STATISTICS.compiled) == entries
    ended = [m for m in STATISTICS.compiled if m.refusal is not None and m.refusal.code == "W121"]
    assert len(ended) == passing
    for made in STATISTICS.compiled:
        if made in ended:
            continue
        assert made.refusal is None and not made.differentiable
        assert any(a.lang in ("cpp", "triton") for a in made.executable.program.artifacts)


def descend(module: nn.Module, rate: float = 0.1) -> None:
    """One step of gradient descent."""
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=rate)
