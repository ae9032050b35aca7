"""Half-precision formats and bools in memory."""

import math
import random
import struct

import pytest
from tests.codegen.kernels import check, run

CAST = """
x: {source}[{n}] input
y: {target}[{n}]
return y
plan
kernel k0 lanes l:{n} args x, y
  stage
    y[l] = {target}(x[l])  for l:{n}
fresh y
arena 0
"""


def patterns(n):
    """Floats of every exponent, halfway cases of both formats among them."""
    rng = random.Random(5)
    bits = [rng.getrandbits(32) for _ in range(n // 4)]
    bits += [b & ~0x7FFF | 0x8000 for b in bits]  # halfway between two bf16
    bits += [(b & ~0x1FFF | 0x1000) % (1 << 27) + (0x33 << 24) for b in bits[: n // 2]]  # f16
    return [struct.unpack("<f", struct.pack("<I", b))[0] for b in bits][:n]


@pytest.mark.parametrize("march", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("target", ["bf16", "f16"])
def test_f32_rounds_to_nearest_even(target, march):
    check(CAST.format(source="f32", target=target, n=4000), march=march, x=patterns(4000))


@pytest.mark.parametrize("march", ["native", "x86-64"])
@pytest.mark.parametrize(("source", "form"), [("f16", "<e"), ("bf16", None)])
def test_every_half_is_read_exactly(source, form, march):
    def value(bits):
        if form:
            return struct.unpack(form, struct.pack("<H", bits))[0]
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]

    x = [value(b) for b in range(1 << 16)]
    (y,) = run(CAST.format(source=source, target="f32", n=1 << 16), march=march, x=x)
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(x, y, strict=True))


def test_bool_arithmetic_and_order():
    check("""
x: bool[40] input
z: bool[40] input
y: bool[40]
w: f32[40]
return y, w
plan
kernel k0 lanes l:40 args x, z, y, w
  stage
    y[l] = xor(x[l] < z[l], not(x[l] >= z[l]))  for l:40
    w[l] = f32(and(x[l], z[l])) - f32(max(x[l], z[l]))  for l:40
fresh y, w
arena 0
""")
