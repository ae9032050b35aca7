"""Steps of an optimizer, eager and compiled, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchweld
from torchweld import pipeline

STEPS = 10
SHAPES = ((3, 5), (7,), (4, 4), (2, 3, 2))
Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in SHAPES]


def gradients(params: list[Tensor]) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]
            for _ in range(STEPS)]  # fmt: skip


def drive(optimizer: torch.optim.Optimizer, step: Callable[[], Any], params: list[Tensor]) -> None:
    """STEPS steps with new gradients, and another learning rate in each."""
    first = copy.deepcopy([group["lr"] for group in optimizer.param_groups])
    for i, row in enumerate(gradients(params)):
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            if isinstance(lr, Tensor):
                group["lr"].fill_(float(lr) / (i + 1))
            else:
                group["lr"] = lr / (i + 1)
        for p, g in zip(params, row, strict=True):
            p.grad = g.clone()
        step()


def check_steps(make: Make, captures: int = 2, exact: bool = False,
                dtype: torch.dtype = torch.float32) -> dict[str, int]:  # fmt: skip
    """Compiled steps change parameters and state as eager ones do. Returns what was counted.

    captures: how often the step may be captured. exact: whether all bits are equal; they are not
    where eager takes a square root, which its library rounds in another way.
    """
    torchweld.reset()
    want, got = parameters(dtype), parameters(dtype)
    plain, compiled = make(want), make(got)
    drive(plain, plain.step, want)
    drive(compiled, torchweld.compile(compiled.step, fullgraph=True), got)
    counts = pipeline.STATISTICS.counts()
    assert counts["captures"] <= captures, pipeline.STATISTICS.refusals
    assert counts["graphs"] == counts["captures"]
    assert counts["breaks"] == counts["aten_graphs"] == counts["internal_errors"] == 0
    for x, y in zip(want, got, strict=True):
        alike(x, y, exact)
        for name, value in plain.state[x].items():
            alike(value, compiled.state[y][name], exact)
    return counts


def alike(x: Any, y: Any, exact: bool) -> None:
    assert type(x) is type(y)
    if not isinstance(x, Tensor):
        assert x == y
    elif exact:
        assert torch.equal(x, y)
    else:
        rtol, atol = (2e-6, 1e-7) if x.dtype is torch.float32 else (1.6e-2, 1e-2)
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)
