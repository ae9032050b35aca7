"""A fixed sample of torch's operator database; `python tests/ops/op_db_run.py` runs all of it."""

from __future__ import annotations

import zlib

import pytest
from op_db import check, entries

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
