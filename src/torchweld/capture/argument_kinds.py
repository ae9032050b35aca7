"""Which Python values are arguments of a node as they are."""

from __future__ import annotations

import torch

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
         torch.memory_format)  # fmt: skip
ARGUMENT = (*PLAIN, slice, type(Ellipsis), range)
# what torch takes for a dtype
DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64,
                                   complex: torch.complex128}  # fmt: skip


def is_function(obj: object) -> bool:
    """A function of torch or a dtype-like class may be an argument (activation=F.relu)."""
    return callable(obj) and str(getattr(obj, "__module__", "")).split(".")[0] in ("torch", "math")
