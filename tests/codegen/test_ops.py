"""Every operator of loop_ops, on every dtype that it takes, as vectors and as scalars."""

import itertools
import math

import pytest
from tests.codegen.kernels import close
from tests.codegen.launcher import Run, compile_program

from torchweld.codegen.run import generate
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, as_expr
from torchweld.ir.loop import Buffer, Load, LoopGraph, Nest, Op, View, axis, contiguous
from torchweld.ir.loop_ops import BOOL, CHECKS, LOGIC, ON_GPUS, OPS
from torchweld.ir.op_value import op_value
from torchweld.ir.plan import Kernel, Plan, Stage
from torchweld.ir.rounding import convert

FLOATS = [0.0, -0.0, 1.0, -0.75, 2.5, -3.5, 1e-3, 100.25, math.inf, -math.inf, math.nan]
INTS = [0, 1, -1, 2, -3, 7, 63, 127, -128]
VALUES = {"f": FLOATS, "i": INTS, "b": [False, True]}
SPECIAL = {"where", "cast", *CHECKS, *ON_GPUS}  # tested as kernels
# eager's own answer is undefined or differs from the plain meaning only in its last places
LOOSE = {"lgamma": 1e-4, "erfinv": 1e-5, "tan": 1e-5}


def letter(dtype):
    return "f" if dtype.is_float else "b" if dtype is DType.BOOL else "i"


def rows_for(dtype):
    return [r for name, r in OPS.items() if name not in SPECIAL and letter(dtype) in r.kinds]


def defined(row, args, dtype):
    """Whether the table gives the operator a meaning on these arguments."""
    if row.name in ("trunc_div", "floor_div", "mod") and dtype.is_int:
        return args[1] != 0
    return True


def column(name, dtype, n):
    return Buffer.make(name, dtype, (as_expr(n),), contiguous((as_expr(n),)), ZERO,
                       "input" if name in "abc" else "temp", "cpu")  # fmt: skip


def plan_for(dtype, n, vector):
    """One kernel per operator, over lanes or over a plain grid."""
    inputs = [column(name, dtype, n) for name in "abc"]
    i = axis("i", n)
    kernels, outs = [], []
    for row in rows_for(dtype):
        result = DType.BOOL if row.rule in (BOOL, LOGIC) else dtype
        out = column(f"y_{row.name}", result, n)
        args = tuple(Load.make(b, (i.sym,)) for b in inputs[: row.arity])
        nest = Nest(out, (i,), (i.sym,), Op.make(row.name, args, result))
        memory = (*inputs[: row.arity], out)
        grid, lanes = ((), i) if vector else ((i,), None)
        kernels.append(Kernel(row.name, grid, lanes, (Stage((), (nest,)),), (), memory))
        outs.append(out)
    views = tuple(View(b, b.shape, b.strides, b.offset) for b in outs)
    return Plan(LoopGraph(tuple(inputs), (), views), tuple(kernels), (), tuple(outs), 0)


@pytest.mark.parametrize("vector", [True, False], ids=["vector", "scalar"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64,
                                   DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL],
                         ids=lambda d: d.value)  # fmt: skip
def test_every_operator(dtype, vector):
    values = [convert(v, dtype) for v in VALUES[letter(dtype)]]
    pairs = list(itertools.product(values, values))
    columns = [[a for a, _ in pairs], [b for _, b in pairs], [a for a, _ in pairs[::-1]]]
    plan = plan_for(dtype, len(pairs), vector)
    program = generate(plan)
    inputs = [list(c) for c in columns]
    outputs = Run(program, compile_program(program), plan.graph, inputs).outputs
    for row, got in zip(rows_for(dtype), outputs, strict=True):
        result = DType.BOOL if row.rule in (BOOL, LOGIC) else dtype
        for k, args in enumerate(zip(*columns[: row.arity], strict=True)):
            if not defined(row, args, dtype):
                continue
            want = op_value(row.name, args, result)
            loose = LOOSE.get(row.name, 0) if dtype.is_float else 0
            near = loose and abs(got[k] - want) <= loose * max(1, abs(want))
            assert near or close(got[k], want, result), (row.name, args, got[k], want)
