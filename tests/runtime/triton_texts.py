"""Kernel texts, and artifacts of them, for the tests of Triton's compiler and launches."""

from __future__ import annotations

from torchweld.ir.program import Artifact

HEAD = "import triton\nimport triton.language as tl\n"

ADD = """
@triton.jit
def NAME(x, y, a):
    i = tl.program_id(0) * 32 + tl.arange(0, 32)
    tl.store(y + i, tl.load(x + i, i < 40) + a, i < 40)
"""

SOFTMAX = """
@triton.jit
def NAME(x, y):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    v = tl.load(x + i).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + i, (e / tl.sum(e, 0)).to(tl.bfloat16))
"""

CHECKED = """
@triton.jit
def NAME(x, at, y):
    i = tl.arange(0, 4)
    j = tl.load(at + i)
    good = (j >= 0) & (j < 8)
    tl.device_assert(good, "index out of range")
    tl.store(y + i, tl.load(x + j, good, 0.0))
"""

# A LoopGraph that becomes one kernel of two stages.
SHIFTED = """
x: f32[6, 40] input
m: f32[6]
y: f32[6, 40]
m[i] = max over r:40 of x[i, r]  for i:6
y[i, r] = exp(x[i, r] - m[i])  for i:6, r:40
return y
"""

# What happens while a text is imported happens while it is compiled.
CRASH = "import os, signal\nos.write(2, b'a last word')\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANG = "import time\ntime.sleep(600)\n"
EXIT = "import os\nos._exit(3)\n"


def kernel(name: str, body: str, signature: str, **options: int) -> Artifact:
    """body: the function NAME, or code that runs at import."""
    given = (("signature", signature), *options.items())
    return Artifact("triton", HEAD + body.replace("NAME", name), (name,), given)


def add(name: str = "add", aligned: str = "") -> Artifact:
    """y = x + a over 40 numbers in 2 blocks, a by value."""
    return kernel(name, ADD, f"*fp32{aligned} *fp32{aligned} fp32", num_warps=1)


def softmax(name: str = "softmax") -> Artifact:
    return kernel(name, SOFTMAX, "*bf16:16 *bf16:16", num_warps=4, num_stages=1)


def checked(name: str = "take") -> Artifact:
    return kernel(name, CHECKED, "*fp32 *i64 *fp32", num_warps=1, debug=1)
