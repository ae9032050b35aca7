"""Masks of attention that no input decides, at lengths that vary."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.ir.program import Call, TensorArg
from torchweld.pipeline import STATISTICS

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
LENGTHS = (24, 2, 7, 33)
LOW = torch.finfo(torch.float32).min


def ranges(x: Tensor) -> tuple[Tensor, Tensor]:
    at = torch.arange(x.shape[-2])
    return at[None, None, :, None], at[None, None, None, :]


def ones(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(x.shape[-2], x.shape[-2], dtype=dtype)


def packed(x: Tensor) -> Tensor:
    """One document, found by the steps between positions, as in transformers."""
    at = torch.arange(x.shape[-2])[None]
    steps = torch.diff(at, prepend=at[:, :1] - 1, dim=-1)
    document = (steps != 1).cumsum(-1)
    batch = torch.arange(1)[:, None, None, None]
    query, key = ranges(x)
    return (key <= query) & (document[batch, query] == document[batch, key])


def two_documents(x: Tensor) -> Tensor:
    """Where the second document begins, a step is another."""
    at = torch.arange(x.shape[-2])[None]
    at = torch.cat([at[:, :1] + 5, at], -1)[:, : x.shape[-2]]
    steps = torch.diff(at, prepend=at[:, :1] - 1, dim=-1)
    document = (steps != 1).cumsum(-1)
    query, key = ranges(x)
    return (key <= query) & (document[:, :, None] == document[:, None, :])


CAUSAL: dict[str, Callable[[Tensor], Tensor]] = {
    "compared": lambda x: ranges(x)[1] <= ranges(x)[0],
    "the other way": lambda x: ranges(x)[0] >= ranges(x)[1],
    "strictly": lambda x: ~(ranges(x)[0] < ranges(x)[1]),
    "shifted": lambda x: ranges(x)[1] + 3 < ranges(x)[0] + 4,
    "triangle": lambda x: ones(x, torch.bool).tril(),
    "triangle of numbers": lambda x: ones(x).tril() != 0,
    "filled triangle": lambda x: torch.zeros_like(ones(x)).masked_fill(ones(x).tril() == 0, LOW),
    "added": lambda x: torch.full_like(ones(x), -math.inf).triu(1),
    "multiplied": lambda x: (1.0 - ones(x).tril()) * LOW,
    "chosen": lambda x: torch.where(ranges(x)[1] <= ranges(x)[0], 0.0, -math.inf),
    "for each of the batch": lambda x: ones(x, torch.bool).tril().expand(x.shape[0], 1, -1, -1),
    "packed": packed,
    "and all": lambda x: ones(x, torch.bool).tril() & ones(x, torch.bool),
    "or none": lambda x: ones(x, torch.bool).tril() | torch.zeros_like(ones(x, torch.bool)),
}

SHOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: x.new_zeros(x.shape[0], 1, 1, x.shape[-2]),
    "all": lambda x: ones(x, torch.bool),
    "never behind the end": lambda x: ranges(x)[1] - ranges(x)[1] <= ranges(x)[0],
}

READ: dict[str, Callable[[Tensor], Tensor]] = {
    "window": lambda x: (ranges(x)[1] <= ranges(x)[0]) & (ranges(x)[1] > ranges(x)[0] - 5),
    "long window": lambda x: (ranges(x)[1] <= ranges(x)[0]) & (ranges(x)[1] > ranges(x)[0] - 30),
    "one more": lambda x: ranges(x)[1] <= ranges(x)[0] + 1,
    "one less or the first": lambda x: (ranges(x)[1] < ranges(x)[0]) | (ranges(x)[1] == 0),
    "later only": lambda x: ones(x, torch.bool).triu(),
    "transposed": lambda x: (ranges(x)[1] <= ranges(x)[0]).transpose(-1, -2),
    "small bias": lambda x: (ranges(x)[1] - ranges(x)[0]).to(x.dtype) * 0.01,
    "not low enough": lambda x: (1.0 - ones(x).tril()) * -100.0,
    "two documents": two_documents,
    "of the input": lambda x: (ranges(x)[1] <= ranges(x)[0]) | (x[:, :1, :, :1] > 1e9),
    "strided": lambda x: ones(x, torch.bool).tril(-1) | torch.eye(x.shape[-2]).bool(),
}


def reads_mask(mask: Callable[[Tensor], Tensor]) -> tuple[bool, bool]:
    """Whether the operator that is compiled for all lengths reads its mask, and is causal."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q))

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        q, k, v = (torch.randn(2, 4, length, 16) for _ in range(3))
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=1e-5, atol=1e-6)
    (made,) = STATISTICS.compiled
    assert made.executable is not None
    (call,) = [s for s in made.executable.program.steps
               if isinstance(s, Call) and s.op == ATTENTION]  # fmt: skip
    kwargs = dict(call.kwargs)
    causal = call.args[4:] == (True,) or bool(kwargs.get("is_causal"))
    return isinstance(kwargs.get("attn_mask"), TensorArg), causal


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_the_flag(name: str) -> None:
    assert reads_mask(CAUSAL[name]) == (False, True)


@pytest.mark.parametrize("name", SHOWN)
def test_a_mask_that_hides_nothing_is_left_out(name: str) -> None:
    assert reads_mask(SHOWN[name]) == (False, False)


@pytest.mark.parametrize("name", READ)
def test_every_other_mask_is_read(name: str) -> None:
    assert reads_mask(READ[name]) == (True, False)


def test_a_mask_of_more_keys_than_queries_is_read() -> None:
    def fn(q: Tensor, k: Tensor) -> Tensor:
        at, keys = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
        return F.scaled_dot_product_attention(q, k, k, attn_mask=keys[None] <= at[:, None])

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True, dynamic=True)
    for length, more in ((5, 7), (6, 9), (4, 4)):
        q, k = torch.randn(1, 2, length, 8), torch.randn(1, 2, more, 8)
        torch.testing.assert_close(compiled(q, k), fn(q, k), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["compared", "packed", "added"])
def test_the_backward_is_of_the_attention_without_a_mask(name: str) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL[name](q))

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        inputs = [torch.randn(2, 4, length, 16, requires_grad=True) for _ in range(3)]
        got = torch.autograd.grad(compiled(*inputs).sin().sum(), inputs)
        want = torch.autograd.grad(fn(*inputs).sin().sum(), inputs)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    (made,) = STATISTICS.compiled
    (backward,) = made.backwards
    (call,) = [s for s in backward.program.steps
               if isinstance(s, Call) and s.op.endswith("for_cpu_backward.default")]  # fmt: skip
    assert call.args[7] is True and dict(call.kwargs).get("attn_mask") is None
