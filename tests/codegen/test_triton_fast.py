"""Fast functions stand where eager's result is rounded to 16 bits, and nowhere else."""

import struct

import pytest
from tests.codegen.tile_plans import check_tiles, plain_tiles
from tests.codegen.tile_runs import TileRun

from torchweld.codegen.run import generate
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.plan import Tile

MAP = """
x: {dtype}[{n}] input
y: {dtype}[{n}]

y[i] = {body}  for i:{n}

return y
"""


def source(dtype, body):
    (artifact,) = generate(plain_tiles(parse(MAP.format(dtype=dtype, n=40, body=body)))).artifacts
    return artifact.source


@pytest.mark.parametrize(("dtype", "body", "fast"), [
    ("bf16", "bf16(exp(f32(x[i])))", True),
    ("f16", "f16(sigmoid(f32(x[i])) * 2.0)", True),
    ("f32", "exp(x[i])", False),
    ("bf16", "bf16(exp(f32(x[i])) - 1.0)", False),  # a difference magnifies the error
    ("bf16", "bf16(f32(x[i]) * (erf(f32(x[i])) + 1.0))", True),
    ("bf16", "bf16(f32(x[i]) / (exp(-1.0 * f32(x[i])) + 1.0))", True),
    ("bf16", "bf16(erf(f32(x[i])))", False),  # small near zero, and exact there
])  # fmt: skip
def test_fast_functions_need_a_rounding(dtype, body, fast):
    assert ("weld.fast_" in source(dtype, body)) is fast


def test_a_value_that_is_also_stored_exactly_is_not_fast():
    g = parse("""
x: f32[40] input
e: f32[40]
y: bf16[40]

e[i] = exp(x[i])  for i:40
y[i] = bf16(e[i])  for i:40

return e, y
""")
    assert all("fast_" not in a.source for a in generate(plain_tiles(g)).artifacts)


def every_bf16(low, high):
    found = []
    for bits in range(1 << 16):
        (v,) = struct.unpack("<f", struct.pack("<I", bits << 16))
        if low <= v <= high:
            found.append(v)
    return found


@pytest.mark.parametrize("body", [
    "f32(x[i]) * 0.5 * (erf(f32(x[i]) * 0.70710678) + 1.0)",
    "sigmoid(f32(x[i]))",
    "f32(x[i]) / (exp(f32(x[i]) * -1.0) + 1.0)",
    "exp(f32(x[i]))",
])
def test_every_bf16_is_within_its_precision(body):
    x = every_bf16(1e-3, 8)[::5] + every_bf16(-90, -1e-3)[::11]
    text = MAP.format(dtype="bf16", n=len(x), body=f"bf16({body})")
    g = parse(text)
    program = generate(plain_tiles(g, Tile(1024)))
    assert "weld.fast_" in program.artifacts[0].source
    (got,) = TileRun(program, g, [list(x)]).outputs
    (want,) = evaluate(g, [list(x)])
    wrong = [(x, a, b) for x, a, b in zip(x, got, want, strict=True)
             if abs(a - b) > 1e-5 + 0.008 * abs(b)]  # fmt: skip
    assert not wrong, wrong[:5]


QUOTIENTS = [
    [1e-30, 3.0, -2.0], [1e30, 3.0, 1e38], [0.0, 0.0, -1.0], [float("inf"), 1.0, float("inf")],
    [float("nan"), 1.0, 0.0], [1e-42, 1e-40, -1e-41],
]  # fmt: skip


def test_a_quotient_by_one_value_per_row():
    (artifact,) = check_tiles("""
x: f32[6, 3] input
d: f32[6] input
y: bf16[6, 3]
return y
plan
kernel k0 grid i:6 tile 2 4 warps 4 args x, d, y
  stage j:3
    y[i, j] = bf16(x[i, j] / d[i])  for i:6, j:3
fresh y
arena 0
""", x=[v for row in QUOTIENTS for v in row], d=[row[0] for row in QUOTIENTS])  # fmt: skip
    assert "weld.quotient" in artifact.source
