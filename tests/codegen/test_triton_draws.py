"""Random words and what is made of them, in Triton kernels: interpreted, and compiled for a GPU."""

import re

import pytest
from tests.codegen.tile_runs import TileRun, ptx_of

from torchweld.base.config import Config
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.philox import word

SEED, BLOCK = -0x61C8864680B583EB, (3 << 32) - 2
STATE = "seed: i64[] input\nblock: i64[] input\n"
WORDS = STATE + """y: i64[200]

y[i] = philox(seed[], block[] + index(i//100), index(i*7919), index(i%4))  for i:200

return y
"""
# as lower/random_draws.py writes a normal number
NORMAL = STATE + """y: f32[200]

y[i] = fma(v2, 1.0, 0.0)  for i:200
  with w0 = f32(philox(seed[], block[], index(i), 0))
  with w1 = f32(philox(seed[], block[], index(i), 1))
  with v0 = w0 * 2.3283064365386963e-10 + 1.1641532182693481e-10
  with v1 = fma(w1, 1.462918119976564e-09, 7.31459059988282e-10)
  with v2 = where(index(i) < 100, fast_sin(v1), fast_cos(v1)) * sqrt(log(v0) * -2.0)

return y
"""
DOUBLE = STATE + """y: f64[200]

y[i] = where(index(i) < 100, sinpi(v0), cospi(v0))  for i:200
  with w0 = philox(seed[], block[], index(i), 2)
  with w1 = philox(seed[], block[], index(i), 3)
  with v0 = f64(bit_xor(w0, shl(w1, 21))) * 2.220446049250313e-16:f64

return y
"""


def interpreted(text):
    g = parse(text)
    program = generate(fuse(g, Config(interpret=True)))
    return TileRun(program, g, [[SEED], [BLOCK]]).outputs[0]


def compiled(text):
    """PTX for sm_90, where the state comes by value."""
    on_gpu = re.sub(r"^(y: .*)$", r'\1 on "cuda:0"', text, flags=re.MULTILINE)
    (artifact,) = generate(fuse(parse(on_gpu), Config())).artifacts
    assert dict(artifact.options)["signature"].split()[:2] == ["i64", "i64"]
    return ptx_of(artifact)


def test_words_are_those_of_the_reference():
    wanted = [word(SEED, BLOCK + i // 100, i * 7919, i % 4) for i in range(200)]
    assert interpreted(WORDS) == wanted
    assert evaluate(parse(WORDS), [[SEED], [BLOCK]]) == [wanted]


@pytest.mark.parametrize(("text", "near"), [(NORMAL, 1e-5), (DOUBLE, 1e-12)])
def test_numbers_are_those_of_the_reference(text, near):
    (wanted,) = evaluate(parse(text), [[SEED], [BLOCK]])
    got = interpreted(text)
    assert got == pytest.approx(wanted, rel=near, abs=near)


def test_a_block_is_computed_once_for_two_of_its_words():
    one, two = compiled(WORDS.replace("i%4", "i*0")), compiled(NORMAL)
    assert "sin.approx.f32" in two and "cos.approx.f32" in two
    products = r"mul\.(wide|hi)\.u32|mad\.wide\.u32|mul\.lo\.s64"
    assert len(re.findall(products, two)) <= len(re.findall(products, one)) + 2


def test_a_kernel_of_doubles_compiles():
    assert ".visible .entry" in compiled(DOUBLE)


def test_kernels_that_draw_nothing_do_not_define_how():
    text = "x: f32[8] input\ny: f32[8]\n\ny[i] = x[i] + 1.0  for i:8\n\nreturn y\n"
    (artifact,) = generate(fuse(parse(text), Config(interpret=True))).artifacts
    assert "def philox" not in artifact.source
