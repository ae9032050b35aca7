"""What the text of a kernel with 8-bit floats defines before the kernel: casts to and from f32.

Registers hold the codes, as uint8: what only moves them computes nothing, on every GPU. Magnitudes
are int32. A GPU that has the conversion of f8e4m3fn or f8e5m2 as an instruction (sm_89 on) uses it
for two values at a time; its results differ from these only in the sign of NaN, and in what
f8e5m2 does with too large numbers, which is put right. It stands as assembly because Triton 3.6
rounds f32 to f16 before it on sm_89.
"""

from __future__ import annotations

import re

from torchweld.ir.dtype import FLOAT8

_HEAD = '''

@triton.jit
def magnitude_f8(i, bits: tl.constexpr, bias: tl.constexpr):
    """The f32 bits of a code without its sign, NaN and infinity aside."""
    t = (i & 0x7F) << (23 - bits)
    least: tl.constexpr = (128 - bias) << 23  # the least normal number: 1 mantissa less that 1
    small = (t + least).to(tl.float32, bitcast=True) - 2.0 ** (1 - bias)
    normal = t + ((127 - bias) << 23)
    return tl.where(t < (1 << 23), small.to(tl.int32, bitcast=True), normal)


@triton.jit
def through_half(i, scale: tl.constexpr, nan: tl.constexpr, of: tl.constexpr):
    """The value of a code with 4 bits of exponent: a half of the same bits, scaled."""
    half = (i + (i & 0x80)) << 7
    x = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * scale
    return tl.where((i & of) == nan, float("nan"), x)


@triton.jit
def rounded_f8(a, bits: tl.constexpr, bias: tl.constexpr):
    """The nearest code of the f32 bits of a magnitude, of two equally near ones the even."""
    magic: tl.constexpr = (151 - bias - bits) << 23  # its last bit is the step of the subnormals
    small = a.to(tl.float32, bitcast=True) + 2.0 ** (24 - bias - bits)
    odd = (a >> (23 - bits)) & 1
    normal = (a - ((127 - bias) << 23) + ((1 << (22 - bits)) - 1) + odd) >> (23 - bits)
    return tl.where(a < ((128 - bias) << 23), small.to(tl.int32, bitcast=True) - magic, normal)


if weld.INTERPRETED:

    def has_f8():
        return False
else:

    @tl.core.builtin
    def has_f8(_semantic=None):
        """Whether the GPU that this is compiled for converts 8-bit floats itself."""
        return tl.constexpr("fp8e4nv" in _semantic.builder.options.supported_fp8_dtypes)

    def f8_assembly(name, more=""):
        """Four codes at once: of two halves, the upper one is named first."""
        cvt = f"cvt.rn.satfinite.{name}x2.f32"
        return tl.constexpr(
            f"{{ .reg .b16 a, b; .reg .b32 u; .reg .f32 t; .reg .pred p; {cvt} a, $2, $1; "
            f"{cvt} b, $4, $3; mov.b32 u, {{a, b}}; {more}mov.b32 $0, u; }}"
        )

    E4M3 = f8_assembly("e4m3")
    # from 61440 on, infinity: the code behind that of 57344, which the instruction gives
    E5M2 = f8_assembly("e5m2", "".join(
        f"abs.f32 t, ${k + 1}; setp.ge.f32 p, t, 0f47700000; @p add.u32 u, u, {1 << 8 * k}; "
        for k in range(4)
    ))
'''

_FROM = {
    "f8e4m3fn": """
    if has_f8():
        return c.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        return through_half(c.to(tl.int32), 256.0, 0x7F, 0x7F)
""",
    "f8e5m2": """
    return (c.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
""",
    "f8e4m3fnuz": """
    return through_half(c.to(tl.int32), 128.0, 0x80, 0xFF)
""",
    "f8e5m2fnuz": """
    i = c.to(tl.int32)
    m = tl.where(i == 0x80, 0x7FC00000, magnitude_f8(i, 2, 16))
    return (m | ((i & 0x80) << 24)).to(tl.float32, bitcast=True)
""",
}

_FNUZ = """
    u = x.to(tl.int32, bitcast=True)
    r = rounded_f8(u & 0x7FFFFFFF, {bits}, {bias})
    signed = r | ((u >> 24) & 0x80)
    return tl.where(r > 0x7F, 0x80, tl.where(r == 0, 0, signed)).to(tl.uint8)
"""

# name: of the instruction's assembly; largest: the code that what is too large gets
_SIGNED = """
    if has_f8():
        return tl.inline_asm_elementwise({name}, "=r,f,f,f,f", [x], tl.uint8, True, 4)
    else:
        u = x.to(tl.int32, bitcast=True)
        a = u & 0x7FFFFFFF
        r = tl.minimum(rounded_f8(a, {bits}, {bias}), {largest})
        r = tl.where(a > 0x7F800000, 0x7F, r)
        return (r | ((u >> 24) & 0x80)).to(tl.uint8)
"""

_TO = {
    "f8e4m3fn": _SIGNED.format(name="E4M3", bits=3, bias=7, largest="0x7E"),
    "f8e5m2": _SIGNED.format(name="E5M2", bits=2, bias=15, largest="0x7C"),
    "f8e4m3fnuz": _FNUZ.format(bits=3, bias=8),
    "f8e5m2fnuz": _FNUZ.format(bits=2, bias=16),
}  # fmt: skip

_CALLS = re.compile(r"\b(?:from|to)_f8e\w+(?=\()")


def float8_text(kernel: str) -> str:
    """The functions that the text of a kernel calls, with what they call; empty for none."""
    called = sorted(set(_CALLS.findall(kernel)))
    return "".join([_HEAD, *(_TEXTS[name] for name in called)]) if called else ""


def _function(name: str, argument: str, body: str) -> str:
    return f"\n\n@triton.jit\ndef {name}({argument}):{body}"


_TEXTS = {
    name: _function(name, argument, bodies[d.value])
    for d in FLOAT8
    for name, argument, bodies in ((f"from_{d.value}", "c", _FROM), (f"to_{d.value}", "x", _TO))
}
