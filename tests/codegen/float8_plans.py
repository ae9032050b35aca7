"""Plans with 8-bit floats and the numbers that try them: for C++ and for Triton."""

from __future__ import annotations

import random
import struct

from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.rounding import Number, convert, float8_value

NAMES = sorted(d.value for d in FLOAT8)

CAST = """
x: {source}[{n}] input
y: {target}[{n}]
return y
plan
kernel k0 {loop} args x, y
  stage
    y[l] = {target}(x[l])  for l:{n}
fresh y
arena 0
"""

# quantised rows: what is stored is codes, what is reduced and scaled is f32
QUANTISE = """
x: bf16[{rows}, {n}] input
top: f32[{rows}]
scale: f32[{rows}]
y: {target}[{rows}, {n}]
return y, scale
plan
kernel k0 grid i:{rows} {tile}args x, scale, y
  scalar top
  stage j:{n}
    top[i] = max over j:{n} of abs(f32(x[i, j]))  for i:{rows}
  stage
    scale[i] = max(top[i], 1e-12) / 448.0  for i:{rows}
  stage j:{n}
    y[i, j] = {target}(max(min(f32(x[i, j]) / scale[i], 448.0), -448.0))  for i:{rows}, j:{n}
fresh scale, y
arena 0
"""

# of two tensors and a constant, by an index: nothing is decoded
MOVE = """
x: {dtype}[40] input
z: {dtype}[40] input
at: i64[40] input
y: {dtype}[40]
return y
plan
kernel k0 {loop} args x, z, at, y
  stage
    y[l] = where(at[l] < 20, x[<check_index(at[l], 40) in 0..39>], where(at[l] < 30, z[l], {fill}))  for l:40
fresh y
arena 0
"""  # noqa: E501


def floats(n: int) -> list[float]:
    """f32 of every exponent, ties of both mantissas and their neighbours among them."""
    rng = random.Random(7)
    bits = [rng.getrandbits(32) for _ in range(n // 8)]
    for keep in (20, 21):  # bits behind a mantissa
        near = [rng.randrange(0x35000000, 0x48800000) >> keep << keep for _ in range(n // 8)]
        bits += [b | 1 << (keep - 1) for b in near]
        bits += [b + (1 << (keep - 1)) + rng.choice((-1, 1)) for b in near]
    subnormal = [(rng.randrange(1, 64) + 0.5) * 2.0**e for e in (-18, -17, -16, -10, -9)]
    found = [struct.unpack("<f", struct.pack("<I", b))[0] for b in bits] + subnormal
    found += [448.0, 464.0, 465.0, 57344.0, 61440.0, 240.0, 248.0, 0.0, float("inf")]
    return [s * x for x in found for s in (1.0, -1.0)][:n]


def numbers(name: str) -> list[Number]:
    """Values of another type that round to codes."""
    dtype = DType(name)
    if dtype.is_float:
        return [convert(x, dtype) for x in floats(300)]
    large = [(1 << 24) + 1, -(1 << 30) - 1, 464, -465, 61439, 61440]
    return [convert(n, dtype) for n in [*range(100), *large]]


def codes(name: str) -> list[float]:
    """The values of all 256 codes."""
    return [float8_value(c, DType(name)) for c in range(256)]
