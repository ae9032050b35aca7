"""Plans in text form, and what they compute as C++ against what plan_eval says."""

from __future__ import annotations

import copy
import math
import random

from tests.codegen.launcher import Run, compile_program

from torchweld.codegen.run import generate
from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.loop_eval import Storage
from torchweld.ir.plan_eval import evaluate_plan
from torchweld.ir.plan_text import parse
from torchweld.ir.rounding import convert

TOLERANCE = {DType.F64: 1e-12, DType.F32: 4e-6, DType.BF16: 1e-2, DType.F16: 2e-3,
             **dict.fromkeys(FLOAT8, 0.0)}  # fmt: skip


def sample(dtype, n, seed=0):
    """`n` ordinary values of a dtype, the same ones each time."""
    rng = random.Random(seed)
    if dtype is DType.BOOL:
        return [rng.random() < 0.5 for _ in range(n)]
    if dtype.is_float:
        return [convert(rng.uniform(-2, 2), dtype) for _ in range(n)]
    return [rng.randrange(0 if dtype is DType.U8 else -9, 10) for _ in range(n)]


def inputs_for(plan, given):
    """One flat list per input: what `given` says by name, else sample values."""
    return [
        list(given[b.name]) if b.name in given else sample(b.dtype, Storage(b, {}).extent, i)
        for i, b in enumerate(plan.graph.inputs)
    ]


def close(a, b, dtype):
    """Equal, or within the rounding of a float dtype; NaN equals NaN, signed zeros differ."""
    if not dtype.is_float:
        return a == b
    if a != a or b != b:
        return a != a and b != b
    if a == 0 and b == 0:
        return math.copysign(1, a) == math.copysign(1, b)
    if math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= TOLERANCE[dtype] * max(abs(a), abs(b), 1e-2)


def run(text, march="native", chunks=3, **given):
    """The outputs of a Plan run as C++."""
    plan = parse(text)
    program = generate(plan)
    functions = compile_program(program, march)
    return Run(program, functions, plan.graph, inputs_for(plan, given), chunks=chunks).outputs


def check(text, march="native", chunks=3, **given):
    """C++ and plan_eval agree on outputs and on inputs that were written; the C++ text."""
    plan = parse(text)
    inputs = inputs_for(plan, given)
    mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    program = generate(plan)
    got = Run(program, compile_program(program, march), plan.graph, mine, chunks=chunks).outputs
    want = evaluate_plan(plan, theirs)
    views = [v.buffer.dtype for v in plan.graph.outputs]
    for a, b, dtype in zip(got, want, views, strict=True):
        assert len(a) == len(b)
        wrong = [(i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))
                 if not close(x, y, dtype)]  # fmt: skip
        assert not wrong, (wrong[:5], program.artifacts[0].source)
    assert all(
        close(x, y, b.dtype)
        for b, p, q in zip(plan.graph.inputs, mine, theirs, strict=True)
        for x, y in zip(p, q, strict=True)
    )
    return program.artifacts[0].source
