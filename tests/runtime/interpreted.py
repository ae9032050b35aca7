"""Programs with kernels on CPU tensors in Triton's interpreter: run by test_triton_interpret.py.

A process of its own, because Triton decides once per process whether it interprets.
"""

from __future__ import annotations

import sys

import torch
from launch_lists import row_major
from triton_texts import SHIFTED, add, checked, softmax

import torchweld
from torchweld import pipeline
from torchweld.base.config import override
from torchweld.base.errors import BackendError
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.dtype import DType
from torchweld.ir.loop_parse import parse
from torchweld.ir.program import Alloc, Artifact, GridLaunch, Launch, Program, TensorSpec
from torchweld.pipeline import INCLUDE
from torchweld.runtime.calls import TORCH_DTYPE
from torchweld.runtime.executable import make_executable

SCALE = """
#include <cstdint>
extern "C" int32_t scale(void* const* t, int64_t b, int64_t e) {
    for (int64_t i = b; i < e; i++) ((float*)t[1])[i] = ((const float*)t[0])[i] * 3.0f;
    return 0;
}
"""


def spec(place, sizes, dtype=DType.F32, index=0):
    return TensorSpec(place, index, dtype, sizes, row_major(sizes), 0)


def made(artifacts, tensors, steps, outputs, arena=0):
    n = sum(t.place == "input" for t in tensors)
    program = Program(tuple(artifacts), tensors, steps, n, outputs, arena)
    with override(interpret=True, cache_dir="off", verify=True) as cfg:
        return make_executable(program, cfg, None)


def by_value():
    for dtype, kind in ((DType.F32, "fp32"), (DType.F64, "fp64"), (DType.BF16, "bf16"),
                        (DType.I64, "i64"), (DType.BOOL, "i1")):  # fmt: skip
        artifact = Artifact("triton", add().source, ("add",), (
            ("signature", f"*fp32 *fp32 {kind}"), ("num_warps", 1)))  # fmt: skip
        run = made([artifact], (spec("input", (40,)), spec("input", (), dtype, 1),
                                spec("fresh", (40,))),
                   (Alloc(2), GridLaunch("add", (0, 2, 1), 2)), (2,))  # fmt: skip
        x, a = torch.arange(40.0), torch.tensor(3).to(TORCH_DTYPE[dtype])
        torch.testing.assert_close(run(x, a)[0], x + a)
    return run.driver


def rows():
    shape = (3, 1024)
    run = made([softmax()], (spec("input", shape, DType.BF16), spec("fresh", shape, DType.BF16)),
               (Alloc(1), GridLaunch("softmax", (0, 1), 3)), (1,))  # fmt: skip
    x = torch.randn(shape).bfloat16()
    torch.testing.assert_close(run(x)[0], x.softmax(-1))
    return "equal"


def mixed():
    """A C++ kernel and an interpreted one in one launch list, through the arena."""
    run = made(
        [add(), Artifact("cpp", SCALE, ("scale",))],
        (spec("input", (40,)), spec("input", (), index=1), spec("arena", (40,), index=64),
         spec("fresh", (40,))),
        (Launch("scale", (0, 2), 40, 64), Alloc(3), GridLaunch("add", (2, 3, 1), 2)), (3,), 256,
    )  # fmt: skip
    x = torch.nn.Parameter(torch.arange(40.0))
    torch.testing.assert_close(run(x, torch.tensor(1.0))[0], x.detach() * 3 + 1)
    return "equal"


def index():
    run = made([checked()], (spec("input", (8,)), spec("input", (4,), DType.I64, 1),
                             spec("fresh", (4,))),
               (Alloc(2), GridLaunch("take", (0, 1, 2), 1)), (2,))  # fmt: skip
    x = torch.arange(8.0)
    assert run(x, torch.tensor([7, 0, 1, 2]))[0].tolist() == [7.0, 0.0, 1.0, 2.0]
    try:
        run(x, torch.tensor([8, 0, 1, 2]))
    except IndexError as error:
        return str(error)
    return "no error"


def graph():
    """From the text of a LoopGraph: fused, printed, run."""
    with override(interpret=True, cache_dir="off", verify=True) as cfg:
        run = make_executable(generate(fuse(parse(SHIFTED), cfg)), cfg, INCLUDE)
    x = torch.randn(6, 40)
    torch.testing.assert_close(run(x)[0], torch.exp(x - x.amax(-1, keepdim=True)))
    return [a.lang for a in run.program.artifacts]


def frame():
    """From a Python function, with TORCHWELD_INTERPRET=1 as the user sets it."""
    def f(x):
        return torch.nn.functional.gelu(x * 1.5).softmax(-1)

    x = torch.randn(5, 33)
    with torch.no_grad():
        torch.testing.assert_close(torchweld.compile(f)(x), f(x))
    (compiled,) = pipeline.STATISTICS.compiled
    return [a.lang for a in compiled.executable.program.artifacts]


def float8():
    """8-bit floats come from a kernel, and go into one."""
    def f(x, q):
        y = (x / x.abs().amax(-1, keepdim=True) * 448.0).to(torch.float8_e4m3fn)
        return y, q.to(torch.float32) * 2.0, torch.cat([q, y.to(q.dtype)])

    x, q = torch.randn(5, 33), torch.randn(2, 33).to(torch.float8_e5m2)
    with torch.no_grad():
        for a, b in zip(torchweld.compile(f)(x, q), f(x, q), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=0)
    compiled = pipeline.STATISTICS.compiled[-1]
    return sorted({a.lang for a in compiled.executable.program.artifacts})


def late():
    import triton  # noqa: F401

    try:
        rows()
    except BackendError as error:
        return f"{error.code} {error.why}"
    return "no error"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, globals()[name]())
