"""Runs a program and its backward in eager and compiled, and compares everything that is left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchweld
from torchweld.pipeline import STATISTICS, Compiled

CLOSE = {"rtol": 2e-5, "atol": 2e-5, "equal_nan": True}


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random tensor that requires grad."""
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def copied(x: Tensor) -> Tensor:
    """The same tensor as a leaf with memory of its own."""
    own = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return own.copy_(x.detach()).requires_grad_(x.requires_grad)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def total(outs: Any) -> Tensor:
    """One number that depends on every result that requires grad."""
    parts = [t.double().square().sum() + t.double().sum() for t in tensors(outs)
             if t.requires_grad]  # fmt: skip
    return sum(parts[1:], parts[0])


def step(fn: Callable[..., Any], inputs: list[Tensor],
         loss: Callable[[Any], Tensor] = total) -> list[Tensor | None]:  # fmt: skip
    """The results of `fn`, the loss, and the gradients of the inputs, after one backward."""
    torch.manual_seed(5)
    outs = fn(*inputs)
    value = loss(outs)
    value.backward()
    return [*tensors(outs), value, *(x.grad for x in inputs), *inputs]


def assert_same(got: list[Tensor | None], want: list[Tensor | None], **close: Any) -> None:
    assert [g is None for g in got] == [w is None for w in want]
    for g, w in zip(got, want, strict=True):
        if g is not None and w is not None:
            assert g.requires_grad == w.requires_grad
            torch.testing.assert_close(g.detach(), w.detach(), **{**CLOSE, **close})


def check(fn: Callable[..., Any], *inputs: Tensor, loss: Callable[[Any], Tensor] = total,
          **close: Any) -> Compiled:  # fmt: skip
    """Assert that the compiled function, and its backward, leave what eager leaves, twice."""
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for _ in range(2):
        mine, theirs = [copied(x) for x in inputs], [copied(x) for x in inputs]
        assert_same(step(compiled, mine, loss), step(fn, theirs, loss), **close)
    return newest()


def newest() -> Compiled:
    """The graph that was compiled last."""
    return STATISTICS.compiled[-1]


def assert_generated(compiled: Compiled) -> None:
    """Forward and backward have a generated kernel each, and autograd does not run in ATen."""
    assert compiled.refusal is None, compiled.refusal.text()
    assert compiled.differentiable
    assert STATISTICS.aten_graphs == 0 and STATISTICS.internal_errors == 0
    for executable in (compiled.executable, *compiled.backwards):
        assert any(a.lang in ("cpp", "triton") for a in executable.program.artifacts)
    assert compiled.backwards


def check_module(module: torch.nn.Module, *args: Any, loss: Callable[[Any], Tensor] = total,
                 **close: Any) -> Compiled:  # fmt: skip
    """As `check`, of a module's parameters and buffers."""
    torchweld.reset()
    ours = copy.deepcopy(module)
    compiled = torchweld.compile(ours)
    results = []
    for run, owner in ((module, module), (compiled, ours)):
        torch.manual_seed(5)
        outs = run(*args)
        value = loss(outs)
        value.backward()
        results.append([*tensors(outs), value, *(p.grad for p in owner.parameters()),
                        *owner.buffers()])  # fmt: skip
    assert_same(results[1], results[0], **close)
    return newest()
