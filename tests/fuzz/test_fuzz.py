"""Random programs, compiled and in eager: the same results, aliases, mutations, output, errors."""

from __future__ import annotations

import ast

import pytest
from tests.fuzz.outcome import arguments, difference, function, outcome
from tests.fuzz.programs import make
from tests.fuzz.run import check

import torchweld

PROGRAMS, PARTS = 500, 20


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(part: int) -> None:
    graphs = 0
    for seed in range(part, PROGRAMS, PARTS):
        found = check(seed)
        assert not found, f"{found}\n{make(seed)}"
        graphs += int(torchweld.statistics()["graphs"])
    assert graphs > PROGRAMS // PARTS // 2


def test_programs_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    assert make(3) == make(3) != make(4)
    assert all(ast.parse(make(seed)) for seed in range(300))


@pytest.mark.parametrize(("change", "seen"), [
    ("items.append(x)", True), ("print('')", True), ("box.count += 1", True),
    ("x.add_(1)", True), ("x = x.clone()", True), ("raise KeyError", True),
])  # fmt: skip
def test_an_outcome_tells_programs_apart(change: str, seen: bool) -> None:
    ends = "    return x, y, items\n"
    head = "def f(x, y, n, s, items, table, box):\n"
    plain, log = function(f"{head}{ends}")
    changed, other_log = function(f"{head}    {change}\n{ends}")
    a = outcome(plain, log, arguments(0, 0))
    b = outcome(changed, other_log, arguments(0, 0))
    assert bool(difference(a, b)) is seen
