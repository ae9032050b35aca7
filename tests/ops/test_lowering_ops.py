"""Every row of lowering_rows, for each dtype and shape, against eager."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "lower"))
from lower_harness import check, check_by_meaning, externs
from lowering_rows import ROWS, Row, inputs

# Eager rounds to the narrow dtype inside of some operators where the lowering computes in f32
# throughout; sums and statistics may differ by a few steps of the narrow dtype.
TOLERANCE = {torch.bfloat16: (2e-2, 1e-2), torch.float16: (3e-3, 1e-3)}
CASES = [(r, d) for r in ROWS for d in r.dtypes]


@pytest.mark.parametrize(("r", "dtype"), CASES,
                         ids=[f"{r.name}-{str(d)[6:]}" for r, d in CASES])  # fmt: skip
def test_lowered_operator_equals_eager(r: Row, dtype: torch.dtype) -> None:
    for shape in r.shapes:
        args = inputs(r, dtype, shape)
        g = check(r.f, *args, tol=TOLERANCE.get(dtype), exact_layout=r.layout)
        assert not externs(g)


SLOW = [(r, d) for r, d in CASES if d in (torch.float32, torch.int32)]


@pytest.mark.parametrize(("r", "dtype"), SLOW,
                         ids=[f"{r.name}-{str(d)[6:]}" for r, d in SLOW])  # fmt: skip
def test_meaning_of_the_loop_graph_equals_eager(r: Row, dtype: torch.dtype) -> None:
    """The slow interpreter, which defines the scalar operators, agrees as well."""
    args = inputs(r, dtype, r.shapes[-1])
    check_by_meaning(r.f, *args, tol=TOLERANCE.get(dtype))
