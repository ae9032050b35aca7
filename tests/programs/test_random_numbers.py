"""Random numbers of Python and NumPy in a compiled function: eager's numbers, eager's states."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from eager_twin import Twins, outcome

import torchweld

OWN = random.Random(5)
LEGACY = np.random.RandomState(3)
MODERN = np.random.default_rng(4)
X = torch.arange(4.0)


def states() -> tuple[Any, ...]:
    return (random.getstate(), OWN.getstate(), str(np.random.get_state()),
            str(LEGACY.get_state()), str(MODERN.bit_generator.state))  # fmt: skip


def seed(n: int) -> None:
    random.seed(n)
    OWN.seed(n + 1)
    np.random.seed(n + 2)
    LEGACY.seed(n + 3)
    MODERN.bit_generator.state = np.random.PCG64(n).state


def run(fn: Callable[..., Any], n: int) -> tuple[Any, ...]:
    """What a call gives, prints, and leaves in the generators."""
    seed(n)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        result = outcome(fn, (X, n))
    return result, shown.getvalue(), states()


def check(fn: Callable[..., Any], graphs: int = 1, breaks: int = 0) -> None:
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for n in (1, 2, 3, 1, 7):
        Twins().equal(run(fn, n), run(compiled, n))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"]) == (graphs, breaks)
    assert counts["internal_errors"] == 0


PROGRAMS: dict[str, Callable[..., Any]] = {
    "random": lambda x, n: x * random.random(),
    "twice": lambda x, n: x * random.random() + random.random(),
    "uniform": lambda x, n: x + random.uniform(2, b=5),
    "randint": lambda x, n: (x + random.randint(0, 10), random.randrange(5)),
    "gauss": lambda x, n: x * random.gauss(0, 1) + random.gauss(0, 1),
    "rejected": lambda x, n: x * random.betavariate(0.4, 0.5),
    "choice": lambda x, n: x + random.choice([1, 2, 30]),
    "bits": lambda x, n: x + random.getrandbits(8),
    "own": lambda x, n: x * OWN.random() - OWN.uniform(1, 2),
    "returned": lambda x, n: (x + 1, [random.random(), OWN.random()]),
    "legacy": lambda x, n: x * np.random.rand() + np.random.randint(0, 5) - np.random.normal(),
    "legacy_own": lambda x, n: x * LEGACY.uniform(low=0, high=2),
    "modern": lambda x, n: x * MODERN.random() + MODERN.normal(1.0),
    "mixed": lambda x, n: x * random.random() + np.random.rand() - OWN.random(),
}


@pytest.mark.parametrize("fn", PROGRAMS.values(), ids=PROGRAMS)
def test_numbers_are_drawn_in_each_call(fn: Callable[..., Any]) -> None:
    check(fn)


def test_arithmetic_with_drawn_numbers_stays_in_the_graph() -> None:
    def mix(x: torch.Tensor, n: int) -> torch.Tensor:
        weight = random.betavariate(1.0, 1.0)
        weight = max(weight, 1 - weight)
        return x * weight + (1 - weight) * x.flip(0)

    check(mix)


def test_draws_in_a_loop_keep_their_order() -> None:
    def loop(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(3):
            x = x * random.random() + OWN.random()
        return x

    check(loop)


def test_what_is_drawn_may_be_printed() -> None:
    def show(x: torch.Tensor, n: int) -> torch.Tensor:
        r = random.random()
        print("drawn", r, f"{r:.3f}")
        return x * r

    check(show)


def test_after_a_seed_numbers_are_known() -> None:
    def seeded(x: torch.Tensor, n: int) -> torch.Tensor:
        random.seed(4)
        np.random.seed(5)
        return x + 1 if random.random() < 0.5 and np.random.rand() < 0.5 else x - 1

    check(seeded)


def test_a_branch_on_a_drawn_number_is_one_break() -> None:
    def branch(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x.exp().log1p().sin().cos()
        if random.random() < 0.5:
            return x.exp().log1p().sin().cos()
        return x.exp().log1p().sin().tan()

    check(branch, graphs=3, breaks=1)


@pytest.mark.parametrize("draw", [
    lambda: random.shuffle([1, "a", 3]), lambda: random.sample([len, abs], 1),
    lambda: random.choices([1, "a"], k=3), lambda: np.random.bytes(3),
    lambda: random.choice([len, abs]),
])  # fmt: skip
def test_draws_of_objects_are_one_break(draw: Callable[[], Any]) -> None:
    def fn(x: torch.Tensor, n: int) -> Any:
        x = x.exp().log1p().sin().cos()
        drawn = draw()
        return x, drawn

    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for n in (1, 2, 3):
        Twins().equal(run(fn, n), run(compiled, n))
    assert torchweld.statistics()["breaks"] == 1


def test_a_failing_computation_leaves_the_draws_to_eager() -> None:
    def inverse(x: torch.Tensor, n: int) -> Any:
        k = random.randint(0, 1)
        try:
            return x + 1 / k
        except ZeroDivisionError:
            return x

    torchweld.reset()
    compiled = torchweld.compile(inverse, backend="eager")
    for n in range(8):
        Twins().equal(run(inverse, n), run(compiled, n))


def test_a_failing_graph_leaves_the_draws_to_eager() -> None:
    def index(x: torch.Tensor, n: int) -> Any:
        at = torch.tensor([n])
        scale = random.random()
        try:
            return (x * scale)[at]
        except IndexError:
            return x * scale

    torchweld.reset()
    compiled = torchweld.compile(index)
    for n in (1, 9, 2, 9):
        Twins().equal(run(index, n), run(compiled, n))


def test_the_own_random_of_a_subclass_is_asked() -> None:
    class Constant(random.Random):
        def random(self) -> float:
            return 0.25

    generator = Constant()

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * generator.uniform(0, n)

    check(fn, graphs=2)


def test_errors_of_a_draw_are_raised() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        try:
            return x + random.randint(5, 2)
        except ValueError:
            return x - 1

    check(fn)


def test_a_draw_in_a_function_that_torch_may_run_again_is_refused() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * random.random()

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    Twins().equal(run(fn, 1), run(compiled, 1))


class Dropping(torch.nn.Module):
    """Layers that training leaves out with some probability."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in (2, 3):
            if torch.rand([]) < self.probability:
                continue
            x = torch.nn.functional.dropout(x * scale)
        return x


@pytest.mark.parametrize(("probability", "breaks"), [(0.0, 0), (1.0, 0), (0.5, 1)])
def test_a_draw_that_cannot_decide_otherwise_is_no_break(probability: float, breaks: int) -> None:
    model = Dropping(probability)
    torchweld.reset()
    compiled = torchweld.compile(model, backend="eager")
    rows = []
    for fn in (model, compiled):
        torch.manual_seed(2)
        rows.append((fn(X), torch.get_rng_state()))
    torch.testing.assert_close(*rows, rtol=0, atol=0)
    assert min(torchweld.statistics()["breaks"], 1) == breaks


def test_a_draw_that_is_written_to_decides_for_itself() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        draw = torch.rand([])
        draw.sub_(2)
        return x + 1 if draw < 0.0 else x - 1

    compiled = torchweld.compile(fn, backend="eager")
    assert compiled(X).equal(X + 1)
