"""Which Python values are arguments of a node as they are, and which tensors are inputs."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchweld.ir.nested import lost_history

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
         torch.memory_format)  # fmt: skip
ARGUMENT = (*PLAIN, slice, type(Ellipsis), range)
# what torch takes for a dtype
DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64,
                                   complex: torch.complex128}  # fmt: skip


def is_function(obj: object) -> bool:
    """A function of torch or a dtype-like class may be an argument (activation=F.relu)."""
    return callable(obj) and str(getattr(obj, "__module__", "")).split(".")[0] in ("torch", "math")


_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def oddity(x: torch.Tensor) -> str | None:
    """What keeps a tensor from being an input of a graph, in words; None if nothing does."""
    if type(x) not in _KINDS:
        return f"is a {type(x).__name__}"
    if isinstance(x, FakeTensor) or x.layout != torch.strided or x.is_quantized:
        return "is quantized" if x.is_quantized else f"has layout {x.layout}"
    if x.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "is nested or wrapped by a transform"
    if lost_history(x):
        return "is a view of no_grad, written since"
    if x.is_neg() or x.is_conj():
        return "has the negative or conjugate bit set"
    if x.device.type not in ("cpu", "cuda"):
        return f"is on {x.device}"
    if x.requires_grad and not (x.is_floating_point() or x.is_complex()):
        return "has integers and a gradient"
    return None
