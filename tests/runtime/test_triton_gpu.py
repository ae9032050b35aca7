"""Compiled kernels on a real GPU, launched by the reference driver."""

from __future__ import annotations

import pytest
import torch
from launch_lists import row_major
from triton_texts import add, kernel, softmax

from torchweld.base.config import override
from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Call, GridLaunch, Program, TensorArg, TensorSpec
from torchweld.runtime.executable import make_executable

pytestmark = pytest.mark.gpu


def spec(place, sizes, dtype=DType.F32, index=0, device="cuda:0"):
    return TensorSpec(place, index, dtype, sizes, row_major(sizes), 0, device)


def made(artifacts, tensors, steps, outputs, arena=0):
    n = sum(t.place == "input" for t in tensors)
    program = Program(tuple(artifacts), tensors, steps, n, outputs, arena, arena_device="cuda:0")
    with override(driver="python", verify=True) as cfg:
        return make_executable(program, cfg, None)


def add_program(**options):
    return made([add(**options)],
                (spec("input", (40,)), spec("input", (), index=1, device="cpu"),
                 spec("fresh", (40,))),
                (Alloc(2), GridLaunch("add", (0, 2, 1), 2)), (2,))  # fmt: skip


def test_a_row_kernel_through_the_arena_equals_eager():
    shape = (300, 1024)
    bf16 = DType.BF16
    run = made([softmax()], (spec("input", shape, bf16), spec("arena", shape, bf16, 512),
                             spec("extern", shape, bf16)),
               (GridLaunch("softmax", (0, 1), 300),
                Call("aten.neg.default", (TensorArg(1),), (), (2,))),
               (2,), 512 + 300 * 2048)  # fmt: skip
    x = torch.randn(shape, device="cuda").bfloat16()
    torch.testing.assert_close(run(x)[0], -x.softmax(-1))


def test_a_number_on_the_cpu_is_passed_by_value():
    x = torch.arange(40.0, device="cuda")
    assert torch.equal(add_program()(x, torch.tensor(2.5))[0], x + 2.5)


def test_a_tensor_that_is_not_aligned_is_copied():
    x = torch.arange(41.0, device="cuda")[1:]
    assert torch.equal(add_program(aligned=":16")(x, torch.tensor(1.0))[0], x + 1)


def test_a_kernel_runs_on_the_current_stream():
    run = add_program()
    x, a = torch.arange(40.0, device="cuda"), torch.tensor(1.0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        y = x + 1
        (z,) = run(y, a)
    stream.synchronize()
    assert torch.equal(z, torch.arange(40.0, device="cuda") + 2)


WIDE = """
@triton.jit
def NAME(x, y):
    i = tl.arange(0, 128)[:, None]
    j = tl.arange(0, 256)[None, :]
    v = tl.load(x + i * 256 + j)
    tl.store(y + j * 128 + i, v)
"""


def test_a_kernel_with_much_shared_memory_runs():
    run = made([kernel("turn", WIDE, "*fp32:16 *fp32:16", num_warps=8)],
               (spec("input", (128, 256)), spec("fresh", (256, 128))),
               (Alloc(1), GridLaunch("turn", (0, 1), 1)), (1,))  # fmt: skip
    x = torch.randn(128, 256, device="cuda")
    assert torch.equal(run(x)[0], x.t().contiguous())


def test_another_thread_can_launch_too():
    import threading

    run = add_program()
    x, a, got = torch.arange(40.0, device="cuda"), torch.tensor(1.0), []
    thread = threading.Thread(target=lambda: got.append(run(x, a)[0]))
    thread.start()
    thread.join()
    assert torch.equal(got[0], x + 1)
