"""Sums of one-hot rows: the element is picked, no row is gone through."""

from __future__ import annotations

import pytest
from loop_programs import agreeing, kernels

HIT = """
x: f32[{m}, {n}] input
t: i64[{m}] input
g: f32[] input
total: f32[{m}, 1]
y: f32[{m}, {n}]

total[i0, 0] = sum over r0:{n} of where({hit}, {value}, 0.0)  for i0:{m}
y[i0, i1] = where({hit1}, g[], 0.0) - exp(x[i0, i1]) * total[i0, 0]  for i0:{m}, i1:{n}

return y
"""


def program(hit: str, value: str = "g[]") -> str:
    return HIT.format(m=5, n=7, hit=hit.replace("AT", "r0"), value=value,
                      hit1=hit.replace("AT", "i1"))  # fmt: skip


@pytest.mark.parametrize("hit", [
    "index(AT) == t[i0]", "t[i0] == index(AT)", "and(index(AT) == t[i0], t[i0] != -100)",
    "and(t[i0] != 3, and(g[] > 0.0, index(AT) == t[i0]))",
])  # fmt: skip
def test_a_one_hot_row_is_not_summed(hit: str) -> None:
    plan = agreeing(program(hit))
    assert not any(n.reduce for k in kernels(plan) for s in k.stages for n in s.nests)


@pytest.mark.parametrize(("hit", "value"), [
    ("index(AT) == t[i0]", "x[i0, r0]"), ("and(index(AT) == t[i0], x[i0, AT] > 0.0)", "g[]"),
    ("index(AT) > t[i0]", "g[]"),
])  # fmt: skip
def test_all_other_sums_are_sums(hit: str, value: str) -> None:
    plan = agreeing(program(hit, value))
    assert any(n.reduce for k in kernels(plan) for s in k.stages for n in s.nests)


def test_a_row_of_another_dtype_is_picked_from_too() -> None:
    source = program("index(AT) == t[i0]", "h[]").replace("g: f32[]", "h: bf16[] input\ng: f32[]")
    source = source.replace("where(index(r0) == t[i0], h[], 0.0)",
                            "f32(where(index(r0) == t[i0], h[], 0.0:bf16))")  # fmt: skip
    plan = agreeing(source)
    assert not any(n.reduce for k in kernels(plan) for s in k.stages for n in s.nests)


def test_a_place_outside_of_the_row_picks_nothing() -> None:
    agreeing(program("index(AT) == t[i0] + 3"))
