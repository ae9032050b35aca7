"""Every operator on every dtype in Triton's interpreter, and compiled for two GPUs."""

import dataclasses
import itertools

import pytest
from tests.codegen.kernels import close
from tests.codegen.test_ops import LOOSE, VALUES, defined, letter, plan_for, rows_for
from tests.codegen.tile_runs import TileRun, ptx_of

from torchweld.codegen.run import generate
from torchweld.ir.dtype import DType
from torchweld.ir.loop_ops import BOOL, LOGIC
from torchweld.ir.op_value import op_value
from torchweld.ir.plan import Kernel, Stage, Tile
from torchweld.ir.rounding import convert

DTYPES = [DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64, DType.I32, DType.I16, DType.I8,
          DType.U8, DType.BOOL]  # fmt: skip


def one_kernel(dtype, n):
    """All operators as the nests of one kernel."""
    plan = plan_for(dtype, n, vector=True)
    nests = tuple(m for k in plan.steps for s in k.stages for m in s.nests)
    args = tuple(dict.fromkeys(b for k in plan.steps for b in k.args))
    lanes = plan.steps[0].lanes
    k = Kernel("ops", (), lanes, (Stage((), nests),), (), args, tile=Tile(64))
    return dataclasses.replace(plan, steps=(k,))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)
def test_every_operator_in_the_interpreter(dtype):
    values = [convert(v, dtype) for v in VALUES[letter(dtype)]]
    pairs = list(itertools.product(values, values))
    columns = [[a for a, _ in pairs], [b for _, b in pairs], [a for a, _ in pairs[::-1]]]
    plan = one_kernel(dtype, len(pairs))
    run = TileRun(generate(plan), plan.graph, [list(c) for c in columns])
    for row, got in zip(rows_for(dtype), run.outputs, strict=True):
        result = DType.BOOL if row.rule in (BOOL, LOGIC) else dtype
        for k, args in enumerate(zip(*columns[: row.arity], strict=True)):
            if not defined(row, args, dtype):
                continue
            want = op_value(row.name, args, result)
            loose = LOOSE.get(row.name, 0) if dtype.is_float else 0
            if row.name in ("max", "min"):  # NumPy does not tell zeros apart; the GPU does
                got[k], want = got[k] + 0, want + 0
            near = loose and abs(got[k] - want) <= loose * max(1, abs(want))
            assert near or close(got[k], want, result), (row.name, args, got[k], want)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)
def test_every_operator_compiles(dtype):
    (artifact,) = generate(one_kernel(dtype, 1000)).artifacts
    assert ".visible .entry" in ptx_of(artifact, 80 if dtype is DType.BF16 else 90)
