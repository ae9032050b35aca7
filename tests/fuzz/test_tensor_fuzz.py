"""Random tensor programs, compiled and in eager: results, layouts, aliases, writes, gradients."""

from __future__ import annotations

import ast

import pytest
import torch
from tests.fuzz.tensor_inputs import Traits, arguments
from tests.fuzz.tensor_maker import make_program
from tests.fuzz.tensor_outcome import difference, outcome
from tests.fuzz.tensor_run import check, function

import torchweld

PROGRAMS, PARTS = 40, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(part: int) -> None:
    graphs = 0
    for seed in range(part, PROGRAMS, PARTS):
        found = check(seed)
        assert not found, f"{found}\n{make_program(seed, Traits.drawn(seed))}"
        graphs += int(torchweld.statistics()["graphs"])
    assert graphs >= PROGRAMS // PARTS


@pytest.mark.parametrize("part", range(PARTS // 2))
def test_wide_programs(part: int) -> None:
    for seed in range(part, PROGRAMS // 2, PARTS // 2):
        found = check(seed, wide=True)
        assert not found, f"{found}\n{make_program(seed, Traits.drawn(seed, wide=True))}"


@pytest.mark.parametrize("part", range(PARTS // 5))
def test_rare_programs(part: int) -> None:
    for seed in range(20000 + part, 20000 + PROGRAMS // 4, PARTS // 5):
        found = check(seed, wide=True, rare=True)
        assert not found, f"{found}\n{make_program(seed, Traits.drawn(seed, None, True, True))}"


def test_programs_are_the_same_for_a_seed_and_run_at_all_sizes() -> None:
    varying = [seed for seed in range(30) if Traits.drawn(seed).varying]
    assert 5 < len(varying) < 25
    for seed, wide in ((seed, seed % 2 > 0) for seed in range(30)):
        traits = Traits.drawn(seed, wide=wide)
        source = make_program(seed, traits)
        assert make_program(seed, traits) == source and ast.parse(source)
        for call in range(len(traits.sizes)):
            assert "error" not in outcome(function(source), seed, call, traits)


CHANGES = {
    "a number": "t.mul_(1.01)", "an argument": "a[0] += 1",
    "a stride": "t = t.t().contiguous().t()", "an object": "t = t.view(t.shape)",
    "memory": "v = t[1:].clone()", "an error": "a.view(-7)", "a gradient": "t = t.detach()",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_an_outcome_tells_tensor_programs_apart(name: str) -> None:
    seed = next(s for s in range(900) if (t := Traits.drawn(s, False)).trained[:1] == (0,)
                and t.dtypes[0] is torch.float32 and t.layouts[0] == "plain" and not t.leaves
                and t.sizes[0]["r"] > 2 and t.sizes[0]["q"] > 2)  # fmt: skip
    traits = Traits.drawn(seed, False)
    text = "def f(a, b, c, d, i, k, s):\n    t = a * 1\n    v = t[1:]\n    u = t\n    {}\n"
    text += "    return t, v, u\n"
    plain, changed = (function(text.format(line)) for line in ("pass", CHANGES[name]))
    want, got = outcome(plain, seed, 0, traits), outcome(changed, seed, 0, traits)
    again = outcome(plain, seed, 0, traits)
    assert difference(got, want, lambda: want)
    assert not difference(again, want, lambda: want)
    assert arguments(seed, 0, traits)[1]
