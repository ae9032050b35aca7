"""Small tensors that a program spells out (`torch.tensor([1, 2])`), as operators that make them.

So a graph holds no tensor: it is data, and its constants can be fused into their readers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchweld.base.errors import Unsupported
from torchweld.base.loc import Loc

aten = torch.ops.aten

_LONGEST = 128  # elements that are written one by one

# bool | int | float | complex
_Number = Any


def read_constant(value: Tensor, at: Loc) -> list[_Number]:
    """The elements of `value`; no mode that sees operators may be active.

    Errors: Unsupported W201 for a constant that is not a plain tensor with memory.
    """
    plain = type(value) is Tensor and value.layout == torch.strided
    if not plain or value.device.type == "meta":
        raise Unsupported("W201", "a constant that is not a plain tensor with memory", at=at)
    return value.flatten().tolist()


def write_constant(value: Tensor, numbers: list[_Number], at: Loc) -> Any:
    """Make `value`, whose elements are `numbers`, by operators in the mode that is active now.

    Errors: Unsupported W201 for a constant that is long and irregular.
    """
    kind = {"dtype": value.dtype, "device": value.device}
    shape = list(value.shape)
    if len({repr(x) for x in numbers}) <= 1:
        return aten.full.default(shape, numbers[0] if numbers else 0, **kind)
    step = _step(numbers)
    if step is not None:
        stop = numbers[0] + len(numbers) * step
        return aten.view.default(aten.arange.start_step(numbers[0], stop, step, **kind), shape)
    if len(numbers) > _LONGEST:
        raise Unsupported("W201", f"a constant of {len(numbers)} elements", at=at)
    parts = [aten.full.default([1], x, **kind) for x in numbers]
    return aten.view.default(aten.cat.default(parts), shape)


def _step(numbers: list[_Number]) -> int | None:
    """The difference of an integer progression of at least 3 terms, else None."""
    whole = [x for x in numbers if type(x) is int]
    if len(whole) < max(3, len(numbers)):
        return None
    step = whole[1] - whole[0]
    return step if step and all(b - a == step for a, b in pairwise(whole)) else None
