"""Programs with Triton kernels of their own, for test_gpu_user_kernels.py.

A module of its own: whoever only collects the tests need not import Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

N = 1000


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask) + tl.load(y_ptr + i, mask), mask)


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 256)], key=["n"]
)
@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n) * 2, i < n)


@torch.library.triton_op("torchweld_gpu_tests::add", mutates_args={})
def add_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(triton.cdiv(N, 128),)](x, y, out, N, BLOCK=128)
    return out


def fills(x, y):
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](x * 2, y, out, N, BLOCK=128)
    return out.relu() + 1


def in_place(x, y):
    add[(triton.cdiv(N, 128),)](x, y, x, N, BLOCK=128)
    return x * 2


def by_tuning(x, y):
    out = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + y


def by_operator(x, y):
    return add_op(x, y * 2) + 1
