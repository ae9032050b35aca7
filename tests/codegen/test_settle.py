"""What bounds decide before a kernel is printed."""

from torchweld.codegen.cpp_index import lane_step
from torchweld.codegen.run import generate
from torchweld.ir.expr import as_expr, index_symbol
from torchweld.ir.plan_text import parse

MASK = """
x: f32[64, 48] input
y: f32[64, 48]
return y
plan
kernel k0 grid i:64 args x, y
  stage j:48
    y[i, j] = {body}  for i:64, j:48
fresh y
arena 0
"""


def source(body):
    return generate(parse(MASK.format(body=body))).artifacts[0].source


def test_a_proven_index_is_not_checked_and_stays_contiguous():
    text = source("x[i, <check_index(where(index(j) < 0, index(j) + 48, index(j)), 48) in 0..47>]")
    assert "load(t0 + g * 48 + c0, k)" in text
    assert "bad" not in text


def test_a_causal_mask_is_computed_on_narrow_integers():
    text = source("where(index(j) <= index(i) + 1, x[i, j], 0.0)")
    assert "row<lanes<4>, 48>" in text
    assert "iota(i32(c0), i32(1), k)" in text and "i64(" not in text


def test_indices_too_large_for_32_bits_stay_wide():
    text = source("where(index(j * 100000000) < 2000000000 * index(i), x[i, j], 0.0)")
    assert "row<lanes<8>, 48>" in text


def test_lane_steps():
    i, j = index_symbol("i", as_expr(64)), index_symbol("j", as_expr(512))
    steps = [lane_step(e, j) for e in (
        i * 3, j * 5 + i, j // 32, j % 32, j // 32 % 4 + j % 32, (j + 16 * i) % 64, j // 8,
        (j + i) % 64, j * j, j // 16 * j)]  # fmt: skip
    assert steps == [0, 5, 0, 1, 1, 1, None, None, None, None]
