"""Constants keep their types beside tensors, in the interpreter and in the compiler."""

import pytest
from tests.codegen.kernels import inputs_for
from tests.codegen.tile_plans import agree, check_graph, one_kernel
from tests.codegen.tile_runs import TileRun, ptx_of

from torchweld.codegen.run import generate
from torchweld.ir.dtype import DType
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.rounding import convert

FLOAT = [
    "max(x[i], 0.0{s})", "min(0.5{s}, x[i])", "x[i] / 3.0{s}", "1.0{s} / x[i]",
    "pow(abs(x[i]), 2.5{s})", "pow(2.0{s}, x[i])", "where(x[i] > 0.1{s}, x[i], 0.1{s})",
    "where(x[i] > 0.0{s}, 1.0{s}, -0.0{s})", "fma(x[i], 2.0{s}, 0.1{s})", "x[i] * 0.1{s} - -0.0{s}",
    "copysign(0.1{s}, x[i])", "atan2(1.0{s}, x[i])", "fmod(x[i], 0.3{s})", "exp(1.0{s}) + x[i]",
    "x[i] + nan{s}", "max(x[i], -inf{s})", "floor_div(x[i], 0.3{s})", "mod(x[i], -0.3{s})",
]  # fmt: skip
INTEGER = [
    "max(x[i], 3{s})", "min(2{s}, x[i])", "floor_div(x[i], 3{s})", "mod(7{s}, max(x[i], 2{s}))",
    "where(x[i] > 1{s}, x[i], 100{s})", "where(x[i] > 1{s}, 3{s}, 7{s})", "x[i] * 100{s}",
    "shl(x[i], 3{s})", "shr(100{s}, x[i])", "bit_and(x[i], 15{s})", "ipow(x[i], 3{s})",
    "trunc_div(x[i], 2{s})", "ipow(3{s}, x[i])",
]  # fmt: skip


def text(dtype, bodies):
    suffix = {"f32": "", "i64": ""}.get(dtype, f":{dtype}")
    lines = [f"x: {dtype}[40] input", *(f"y{k}: {dtype}[40]" for k in range(len(bodies))), ""]
    lines += [f"y{k}[i] = {b.format(s=suffix)}  for i:40" for k, b in enumerate(bodies)]
    return "\n".join([*lines, "", "return " + ", ".join(f"y{k}" for k in range(len(bodies)))])


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8"])
def test_constants(dtype):
    g = parse(text(dtype, FLOAT if dtype[0] in "fb" else INTEGER))
    plan = one_kernel(g)
    inputs = inputs_for(plan, {})
    program = generate(plan)
    got = TileRun(program, g, [list(x) for x in inputs]).outputs
    agree(g, program, got, evaluate(g, [list(x) for x in inputs]), inputs, inputs)
    assert ptx_of(program.artifacts[0])


def test_constants_beside_bools_and_constants():
    check_graph("""
x: f32[40] input
b: bool[40]
y: i64[40]
z: f32[40]

b[i] = and(x[i] > 0.0, true)  for i:40
y[i] = where(or(b[i], false), 3, -4)  for i:40
z[i] = 2.0 * 0.5 + f32(3)  for i:40

return b, y, z
""")


@pytest.mark.parametrize(("dtype", "constant", "near"), [
    ("f64", 0.7, 0.699999988079071),  # what f32 makes of it
    ("f32", 1e-40, 1e-40), ("f32", 1e-40, 2e-40),  # not a normal number of f32
])  # fmt: skip
@pytest.mark.parametrize("op", ["<", "<=", "==", "!=", ">", ">="])
def test_a_comparison_takes_the_constant_as_it_is(op, dtype, constant, near):
    g = parse(f"""
x: {dtype}[1] input
b: bool[1]
y: {dtype}[1]

b[i] = x[i] {op} {constant}:{dtype}  for i:1
y[i] = where(b[i], {constant}:{dtype}, 0.0:{dtype})  for i:1

return b, y
""")
    x = [convert(near, DType(dtype))]
    assert TileRun(generate(one_kernel(g)), g, [x]).outputs == evaluate(g, [x])
