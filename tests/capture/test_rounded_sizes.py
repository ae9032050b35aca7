"""Sizes that are rounded floats, as crops and scales are: computed when a call begins."""

import math

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.entries import guards_of
from torchweld.frame.program import Postfix
from torchweld.pipeline import STATISTICS

SIZES = (10, 16, 25, 7, 33, 64, 5, 4, 3, 2, 100, 101)
PROGRAMS = {
    "product": lambda x: x[: int(x.shape[0] * 0.7)] * 2 + 1,
    "crop": lambda x: x[int(x.shape[0] * 0.1) : int(x.shape[0] * 0.9)].cos() * 2,
    "power": lambda x: x[: int(x.shape[0] ** 0.5)] * 2 + 1,
    "root": lambda x: torch.zeros(int(math.sqrt(x.shape[0])) + 1, 3) + x.sum(),
    "logarithm": lambda x: x * torch.arange(math.floor(math.log2(x.shape[0])) + 2).sum(),
    "ceil": lambda x: x[: math.ceil(x.shape[0] * 0.3)] + 1,
    "round": lambda x: x[: round(x.shape[0] * 0.35)] + 1,
    "returned": lambda x: (x + 1, int(x.shape[0] * 0.7), round(x.shape[0] * 0.3) * 2),
    "resized": lambda x: F.interpolate(x[None, None], scale_factor=0.7) + 1,
    "two sizes": lambda x: x[: int((x.shape[0] + x.shape[1]) * 0.3)] * 2,
    "padded": lambda x: F.pad(x, (0, 0, 0, math.ceil(x.shape[0] * 1.3) - x.shape[0])) + 1,
    "nested": lambda x: x[: int(int(x.shape[0] * 0.7) * 0.9)] + 1,
    "reshaped": lambda x: x[: int(math.sqrt(x.shape[0])) ** 2].reshape(
        int(math.sqrt(x.shape[0])), -1, x.shape[1]).cos() * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rounded_size_is_compiled_once_for_all(name):
    fn = PROGRAMS[name]
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    for n in SIZES:
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    counts = STATISTICS.counts()
    assert counts["graphs"] <= 4  # for one size, any, and those that are rounded to 0 and 1
    assert counts["aten_graphs"] == 0


def test_an_argument_that_is_rounded_is_compiled_once_for_all():
    def fn(x, n):
        return x[: int(n * 0.7)] * 2, x[: int(n**0.5)] + 1

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    for n in SIZES:
        x = torch.randn(101, 4)
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    assert STATISTICS.counts()["graphs"] <= 4


def test_gradients_go_through_rounded_sizes():
    fn = PROGRAMS["crop"]
    compiled = torchweld.compile(fn, fullgraph=True)
    for n in (10, 25, 33, 47):
        x = torch.randn(n, 4)
        found = []
        for run in (fn, compiled):
            leaf = x.clone().requires_grad_()
            run(leaf).square().sum().backward()
            found.append(leaf.grad)
        torch.testing.assert_close(found[1], found[0])


def test_what_is_decided_by_a_rounded_size_is_guarded():
    def fn(x):
        n = int(x.shape[0] * 0.29)
        return x[:n] + 1 if n > 5 else x * 2

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    for n in (100, 30, 20, 21, 19, 24, 90, 17):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    assert STATISTICS.counts()["graphs"] == 3
    said = {g.text() for e in compiled.entries for g in guards_of(e.info.region)}
    assert "sizes         6 <= int(x.shape[0] * 0.29)" in said


def test_guards_compute_floats_as_python_does():
    """Each of these is decided by the last bit of a float."""
    for fn in (lambda n: int(n * 0.29), lambda n: int(n / 3 * 3), lambda n: math.floor(n**0.5),
               lambda n: round(n * 0.5 + n * 0.25), lambda n: math.ceil(math.log2(n)),
               lambda n: int((n - 0.1) * 1.1), lambda n: math.floor(-n * 0.7)):  # fmt: skip

        def decided(x, fn=fn):
            return x + 1 if fn(x.shape[0]) % 2 else x * 2

        torchweld.reset()
        compiled = torchweld.compile(decided, options={"recompile_limit": 200})
        for n in (*range(2, 130, 3), 100, 49, 64, 81):
            x = torch.ones(n)
            assert torch.equal(compiled(x), decided(x)), n


def test_every_code_of_a_relation_has_a_number_of_its_own():
    assert [code.value for code in Postfix] == list(range(len(Postfix)))
