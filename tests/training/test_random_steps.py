"""Whole training steps made at random leave what eager leaves, after each of five steps.

`python tests/training/test_random_steps.py 100 300` runs the steps of these seeds.
"""

import sys
import traceback

import pytest
import torch
from step_maker import Made, Recipe, batches

import torchweld
from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")


def compare(got, want, close, at):
    """Assert that two states are equal, containers and numbers included."""
    assert type(got) is type(want), at
    if isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, want, **close, equal_nan=True, msg=lambda m: f"{at}: {m}")
    elif isinstance(got, dict):
        assert got.keys() == want.keys(), at
        for k in got:
            compare(got[k], want[k], close, f"{at}.{k}")
    elif isinstance(got, list | tuple):
        assert len(got) == len(want), at
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            compare(a, b, close, f"{at}[{i}]")
    elif isinstance(got, float):
        assert got == pytest.approx(want, rel=1e-6), at
    elif not callable(got):
        assert got == want, at


def run(seed):
    """Errors: AssertionError with the recipe."""
    recipe = Recipe.drawn(seed)
    mine, theirs = Made(recipe), Made(recipe)
    close = {"rtol": 1e-6, "atol": 1e-8}
    if recipe.amp != "none":
        # a gradient that is zero but for rounding (of a bias in front of a normalization) moves its
        # parameter by the learning rate, 0.01, in either direction
        close = {"rtol": 0.1, "atol": 0.12}
    torchweld.reset()
    step = torchweld.compile(mine.step)
    for i, (x, y) in enumerate(batches()):
        x = x.to(recipe.dtype)
        torch.manual_seed(i)
        got = step(x, y)
        torch.manual_seed(i)
        want = theirs.step(x, y)
        at = f"seed {seed}, step {i}, {recipe}"
        compare(got, want, close, at)
        compare(mine.state(), theirs.state(), close, at)
    counts = STATISTICS.counts()
    assert counts["graphs"] > 0, (counts, recipe)
    assert counts["internal_errors"] == 0, (counts, recipe)
    return counts


@pytest.mark.parametrize("seed", range(20))
def test_a_random_step_leaves_what_eager_leaves(seed):
    run(seed)


def main(first, last):
    for seed in range(first, last):
        try:
            print(seed, run(seed), flush=True)
        except Exception:
            traceback.print_exc()
            print(seed, "FAILED", Recipe.drawn(seed), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:3]))
