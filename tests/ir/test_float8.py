"""8-bit floats: every code has its value, and every value goes to the nearest code."""

import bisect
import itertools
import math
import random
import struct

import pytest

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.loop_text import parse, text
from torchweld.ir.loop_verify import verify
from torchweld.ir.rounding import (
    FLOAT8_FORMATS,
    convert,
    float8_bits,
    float8_value,
    pack,
    unpack,
)

E4, E5 = DType.F8E4M3FN, DType.F8E5M2
Z4, Z5 = DType.F8E4M3FNUZ, DType.F8E5M2FNUZ
KINDS = pytest.mark.parametrize("dtype", sorted(FLOAT8, key=str))


@pytest.mark.parametrize(("dtype", "code", "value"), [
    (E4, 0x7E, 448.0), (E4, 0x01, 2.0**-9), (E4, 0x08, 2.0**-6), (E4, 0x80, -0.0),
    (E5, 0x7B, 57344.0), (E5, 0x01, 2.0**-16), (E5, 0x7C, math.inf), (E5, 0xFC, -math.inf),
    (Z4, 0x7F, 240.0), (Z4, 0x01, 2.0**-10), (Z4, 0xFF, -240.0),
    (Z5, 0x7F, 57344.0), (Z5, 0x01, 2.0**-17), (Z5, 0x04, 2.0**-15),
])  # fmt: skip
def test_codes_at_the_corners(dtype, code, value):
    assert struct.pack("d", float8_value(code, dtype)) == struct.pack("d", value)
    assert float8_bits(value, dtype) == code


@pytest.mark.parametrize(("dtype", "codes"), [
    (E4, [0x7F, 0xFF]), (E5, [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]), (Z4, [0x80]), (Z5, [0x80]),
])  # fmt: skip
def test_which_codes_are_nan(dtype, codes):
    assert [c for c in range(256) if math.isnan(float8_value(c, dtype))] == codes


@pytest.mark.parametrize(("dtype", "x", "code"), [
    (E4, 464.0, 0x7E), (E4, 1e9, 0x7E), (E4, -math.inf, 0xFE),
    (E5, 61439.0, 0x7B), (E5, 61440.0, 0x7C), (E5, -1e9, 0xFC),
    (Z4, 247.9, 0x7F), (Z4, 248.0, 0x80), (Z4, -math.inf, 0x80), (Z4, -0.0, 0x00),
    (Z5, 61439.0, 0x7F), (Z5, 61440.0, 0x80), (Z5, -(2.0**-19), 0x00),
])  # fmt: skip
def test_what_is_too_large_or_too_small(dtype, x, code):
    assert float8_bits(x, dtype) == code


@KINDS
def test_every_code_is_its_own_rounding(dtype):
    for code in range(256):
        x = float8_value(code, dtype)
        assert math.isnan(x) or float8_bits(x, dtype) == code


@KINDS
def test_a_value_goes_to_the_nearest_code_and_a_tie_to_the_even_one(dtype):
    top = FLOAT8_FORMATS[dtype].top
    values = [float8_value(c, dtype) for c in range(top + 1)]
    rng = random.Random(3)
    between = [rng.uniform(0, values[-1]) for _ in range(2000)]
    ties = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    for x in [*between, *(rng.uniform(0, values[20]) for _ in range(500)), *ties]:
        below = bisect.bisect_right(values, x) - 1
        above = min(below + 1, top)
        near = min((below, above), key=lambda c: (abs(values[c] - x), c % 2))
        assert float8_bits(x, dtype) == near


@KINDS
def test_bytes_and_numbers_agree(dtype):
    for x in (0.0, 1.0, -1.5, 0.0625, 192.0):
        assert unpack(pack(x, dtype), dtype) == convert(x, dtype) == x
    assert convert(1.06, dtype) == 1.0


CAST = """\
x: f32[4] input
y: {dtype}[4]

y[i] = where(v0 < 0.5, 1.5:{dtype}, {dtype}(v0))  for i:4
  with v0 = x[i]

return y
"""


@KINDS
def test_graphs_may_choose_and_cast(dtype):
    given = CAST.format(dtype=dtype.value)
    verify(parse(given))
    assert text(parse(given)) == given


@pytest.mark.parametrize("body", ["x[i] + x[i]", "neg(x[i])", "x[i] < x[i]"])
def test_graphs_do_not_compute_in_them(body):
    out = "bool" if "<" in body else "f8e5m2"
    g = parse(f"x: f8e5m2[4] input\ny: {out}[4]\n\ny[i] = {body}  for i:4\n\nreturn y\n")
    with pytest.raises(InternalError, match="scalar_rules"):
        verify(g)


def test_graphs_do_not_reduce_them():
    g = parse("x: f8e5m2[4] input\ny: f8e5m2[]\n\ny[] = max over i:4 of x[i]\n\nreturn y\n")
    with pytest.raises(InternalError, match=r"reductions.*max of f8e5m2"):
        verify(g)
