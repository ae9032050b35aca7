"""Attention, odd products and gelu on a GPU: as near to f64 as eager, with what was rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.ir.program import Call, Program, TensorArg
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import seen_strides

pytestmark = pytest.mark.gpu
HALVES = (torch.bfloat16, torch.float16)
SDPA = "aten.scaled_dot_product_attention.default"


def program_of(fn: Callable[..., Tensor], *args: Tensor) -> Program:
    """The program of `fn`, after its results of several calls were compared."""
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    with torch.no_grad():
        eager, found = fn(*args), [compiled(*args) for _ in range(4)]
        exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    for x in found:
        assert (x.dtype, x.shape) == (eager.dtype, eager.shape)
        assert seen_strides(x) == seen_strides(eager)
        own, theirs = ((y.double() - exact).abs().max() for y in (x, eager))
        assert own <= 1.5 * theirs + 1e-5
    (compiled_graph,) = STATISTICS.compiled
    assert compiled_graph.executable is not None
    return compiled_graph.executable.program


def operands(program: Program, op: str = SDPA) -> list[list[tuple[int, ...]]]:
    """The shapes of the tensors that each call of `op` takes."""
    return [[program.tensors[a.tensor].sizes for a in s.args if isinstance(a, TensorArg)]
            for s in program.steps if isinstance(s, Call) and s.op == op]  # fmt: skip


def rand(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(4, dim=1) for x in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


@pytest.mark.parametrize("dtype", HALVES)
def test_keys_that_heads_share_are_read_where_they_lie(dtype: torch.dtype) -> None:
    q, k, v = (rand(2, 128, n, 64, dtype=dtype).transpose(1, 2) for n in (8, 2, 2))
    program = program_of(shared, q, k, v)
    assert operands(program) == [[(2, 8, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64)]]
    assert not [s for s in program.steps if type(s).__name__ == "GridLaunch"]


def decoded(q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(4, dim=1) for x in (k, v))
    seen = torch.arange(k.shape[2], device=k.device) <= position
    scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(~seen[None, None, None], -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
def test_one_token_reads_the_cache_where_it_lies(dtype: torch.dtype) -> None:
    q, k, v = (rand(1, n, m, 64, dtype=dtype) for n, m in ((8, 1), (2, 256), (2, 256)))
    (shapes,) = operands(program_of(decoded, q, k, v, torch.tensor(100, device="cuda")))
    assert shapes[1:3] == [(1, 2, 256, 64)] * 2


def least(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    mask = torch.zeros(64, 64, device=q.device, dtype=q.dtype)
    mask = mask.masked_fill(hidden, torch.finfo(q.dtype).min)
    return (q @ k.transpose(-1, -2) * 0.125 + mask).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_hidden_by_the_least_number_is_a_mean(dtype: torch.dtype) -> None:
    hidden = torch.rand(64, 64, device="cuda") > 0.5
    hidden[3] = True
    q, k, v = (rand(2, 4, 64, 64, dtype=dtype) for _ in range(3))
    assert len(operands(program_of(least, q, k, v, hidden))) == 1


@pytest.mark.parametrize("dtype", HALVES)
def test_long_odd_rows_of_a_product(dtype: torch.dtype) -> None:
    x, w, b = rand(512, 256, dtype=dtype), rand(4099, 256, dtype=dtype), rand(4099, dtype=dtype)
    assert len(operands(program_of(F.linear, x, w, b), "aten.addmm.default")) == 2
    assert len(operands(program_of(F.linear, x, w), "aten.mm.default")) == 2


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
def test_a_product_of_inner_size_1_is_a_kernel(dtype: torch.dtype) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x.bmm(y)

    x, y = rand(2, 64, 1, dtype=dtype), rand(2, 1, 100, dtype=dtype)
    assert not operands(program_of(fn, x, y), "aten.bmm.default")


@pytest.mark.parametrize("dtype", HALVES)
def test_gelu_written_out_is_an_epilogue(dtype: torch.dtype) -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.linear(x, w, b)
        return 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))))

    x, w, b = (rand(*s, dtype=dtype) for s in ((64, 128), (256, 128), (256,)))
    found: Any = operands(program_of(fn, x, w * 0.1, b), "aten._addmm_activation.default")
    assert len(found) == 1
