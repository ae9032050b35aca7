"""Masks of attention that no input decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.graph.rewrites.masks import hidden
from torchweld.ir.program import Call, TensorArg
from torchweld.pipeline import STATISTICS

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
LENGTH = 24


def ranges(x: Tensor) -> tuple[Tensor, Tensor]:
    at = torch.arange(x.shape[-2], device=x.device)
    return at[None, None, :, None], at[None, None, None, :]


def boolean(x: Tensor) -> Tensor:
    query, key = ranges(x)
    return key <= query


def additive(x: Tensor) -> Tensor:
    lowest = torch.finfo(x.dtype).min
    full = torch.full((x.shape[-2], x.shape[-2]), lowest, dtype=x.dtype, device=x.device)
    return torch.triu(full, 1)[None, None].expand(x.shape[0], 1, -1, -1)


def infinite(x: Tensor) -> Tensor:
    return torch.zeros_like(boolean(x), dtype=x.dtype).masked_fill(~boolean(x), float("-inf"))


def zeros(x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], 1, 1, x.shape[-2])


def all_true(x: Tensor) -> Tensor:
    query, key = ranges(x)
    return key - query < 1000


def window(x: Tensor) -> Tensor:
    query, key = ranges(x)
    return (key <= query) & (key > query - 5)


def later_only(x: Tensor) -> Tensor:
    query, key = ranges(x)
    return key >= query


def small_bias(x: Tensor) -> Tensor:
    query, key = ranges(x)
    return (key - query).to(x.dtype) * 0.01


def of_the_input(x: Tensor) -> Tensor:
    return boolean(x) | (x[:, :1, :, :1] > 1e9)


def random(x: Tensor) -> Tensor:
    return torch.rand(x.shape[-2], x.shape[-2]) >= 0


def attended(mask: Callable[[Tensor], Tensor]) -> tuple[Any, dict[str, Any]]:
    """The mask that the compiled operator reads, and its flags; its result is eager's."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q))

    q, k, v = (torch.randn(2, 4, LENGTH, 16) for _ in range(3))
    torchweld.reset()
    with torch.no_grad():
        found = torchweld.compile(fn, fullgraph=True)(q, k, v)
        torch.testing.assert_close(found, fn(q, k, v), rtol=1e-5, atol=1e-6)
    executable = STATISTICS.compiled[-1].executable
    assert executable is not None
    (call,) = [s for s in executable.program.steps if isinstance(s, Call) and s.op == ATTENTION]
    kwargs = dict(call.kwargs)
    return kwargs.get("attn_mask"), {"causal": call.args[4:] == (True,) or kwargs.get("is_causal")}


@pytest.mark.parametrize("mask", [boolean, additive, infinite])
def test_a_causal_mask_becomes_the_flag(mask: Callable[[Tensor], Tensor]) -> None:
    read, flags = attended(mask)
    assert read is None and flags["causal"] is True


@pytest.mark.parametrize("mask", [zeros, all_true])
def test_a_mask_that_hides_nothing_is_left_out(mask: Callable[[Tensor], Tensor]) -> None:
    read, flags = attended(mask)
    assert read is None and not flags["causal"]


@pytest.mark.parametrize("mask", [window, later_only, small_bias, of_the_input, random])
def test_every_other_mask_is_read(mask: Callable[[Tensor], Tensor]) -> None:
    read, flags = attended(mask)
    assert isinstance(read, TensorArg) and not flags["causal"]


@pytest.mark.parametrize(("mask", "causal"), [(boolean, True), (all_true, False)])
@pytest.mark.parametrize("positional", [True, False])
def test_the_backward_is_of_the_attention_without_a_mask(
    mask: Callable[[Tensor], Tensor], causal: bool, positional: bool
) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if positional:
            return F.scaled_dot_product_attention(q, k, v, mask(q))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q))

    inputs = [torch.randn(2, 4, LENGTH, 16, requires_grad=True) for _ in range(3)]
    torchweld.reset()
    got = torch.autograd.grad(torchweld.compile(fn, fullgraph=True)(*inputs).sin().sum(), inputs)
    want = torch.autograd.grad(fn(*inputs).sin().sum(), inputs)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    (made,) = STATISTICS.compiled
    (backward,) = made.backwards
    (call,) = [s for s in backward.program.steps
               if isinstance(s, Call) and s.op.endswith("for_cpu_backward.default")]  # fmt: skip
    assert call.args[7] is causal and dict(call.kwargs).get("attn_mask") is None


@pytest.mark.parametrize(("dtype", "value", "hides"), [
    (torch.bfloat16, -65504.0, "later"), (torch.float16, -65504.0, "later"),
    (torch.float32, -65504.0, None), (torch.float32, -math.inf, "later"),
    (torch.bfloat16, -1e4, None), (torch.float32, math.nan, None),
])  # fmt: skip
def test_what_an_added_mask_hides_with(dtype: torch.dtype, value: float, hides: Any) -> None:
    mask = torch.zeros(1, 1, 8, 8, dtype=dtype).masked_fill(torch.ones(8, 8).triu(1) > 0, value)
    assert hidden(mask, 8) == hides


def test_a_mask_of_fewer_queries_than_keys_is_not_the_causal_flag() -> None:
    assert hidden(torch.ones(4, 8, dtype=torch.bool).tril(), 4) is None
