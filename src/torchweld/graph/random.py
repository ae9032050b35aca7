"""Random calls that have to be told apart before they become one operator.

`x.bernoulli_(p)` and `torch.bernoulli(x, p)` are the same operator in functional form, but number
the elements of a strided tensor differently. The first is what the operator is taken to mean, so
the second runs on a contiguous tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def bernoulli(input: Tensor, p: float | None = None, **options: Any) -> Tensor:
    """torch.bernoulli."""
    if p is None or options.get("out") is not None:
        return torch.bernoulli(input, **options)
    target = torch.empty_like(input, memory_format=torch.contiguous_format)
    drawn: Tensor = aten.bernoulli.p(target, p, generator=options.get("generator"))
    return drawn


RANDOM: dict[Any, Callable[..., Any]] = {torch.bernoulli: bernoulli}
RANDOM_METHODS: dict[str, Callable[..., Any]] = {"bernoulli": bernoulli}
