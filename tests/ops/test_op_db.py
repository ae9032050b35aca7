"""A fixed sample of torch's operator database; `python tests/ops/op_db_run.py` runs all of it."""

from __future__ import annotations

import zlib

import pytest
import torch
from op_db import Sample, _nearer, check, entries

OPERATORS = 60
CHUNK = 10
SAMPLES = 3
COMPILED_SHARE = 0.6


def chosen():
    """Operators and dtypes in an order that is arbitrary but never changes."""
    by_name = {}
    for op, dtype in entries():
        by_name.setdefault(op.formatted_name, []).append((op, dtype))
    names = sorted(by_name, key=lambda name: zlib.crc32(name.encode()))[:OPERATORS]
    return [by_name[name][i % len(by_name[name])] for i, name in enumerate(names)]


@pytest.mark.parametrize("first", range(0, OPERATORS, CHUNK))
def test_operators_equal_eager_and_most_are_compiled(first):
    found = [check(op, dtype, SAMPLES) for op, dtype in chosen()[first : first + CHUNK]]
    assert {f"{f.op} {f.dtype}": f.wrong for f in found if f.wrong} == {}
    matched, samples = sum(f.matched for f in found), sum(f.samples for f in found)
    assert matched >= COMPILED_SHARE * samples, [f.reasons for f in found if f.reasons]


@pytest.mark.parametrize(("got", "accepted"), [(-0.0, True), (1.0, False), (float("nan"), False)])
def test_only_a_result_nearer_to_f64_may_differ_from_eager(got, accepted):
    """What eager's vectors give for fmod of -8.4 by 1e-38 is NaN; f64 says -0."""
    x = torch.tensor([-8.4375, 7.0], dtype=torch.bfloat16)
    y = torch.tensor([1.1754943508222875e-38, 4.0], dtype=torch.bfloat16)
    want = torch.tensor([1.0 if got != got else float("nan"), 3.0], dtype=torch.bfloat16)
    mine = torch.tensor([got, 3.0], dtype=torch.bfloat16)
    assert _nearer(torch.fmod, Sample((x, y), {}), mine, want) == accepted


def test_other_dtypes_have_no_second_opinion():
    x = torch.full((4,), 3.0)
    assert not _nearer(torch.exp, Sample((x,), {}), x.exp(), x.exp() + 1)
