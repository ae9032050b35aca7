"""Operators on lists of tensors: one operator per tensor, which fusion then sees.

What they compute is what the operator of one tensor computes, as on a CPU, where torch itself takes
the lists apart. One launch for many tensors is what fusion makes of small kernels (docs/fuse.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchweld.graph.decomps.table import OWN, decomposes

aten = torch.ops.aten

UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "max", "neg", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
# name of the operator on lists: what to call for two tensors, and for a tensor and a number
BINARY: dict[str, tuple[OpOverload, OpOverload]] = {
    "add": (aten.add.Tensor, aten.add.Scalar),
    "sub": (aten.sub.Tensor, aten.sub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Scalar),
    "div": (aten.div.Tensor, aten.div.Scalar),
    "pow": (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar),
    "maximum": (aten.maximum.default, aten.clamp_min.default),
    "minimum": (aten.minimum.default, aten.clamp_max.default),
    "clamp_min": (aten.maximum.default, aten.clamp_min.default),
    "clamp_max": (aten.minimum.default, aten.clamp_max.default),
}


def _register(name: str, overload: str, rule: Callable[..., Any]) -> None:
    """Add a rule, if this torch has the operator."""
    packet = getattr(aten, f"_foreach_{name}", None)
    if packet is not None and overload in packet.overloads():
        OWN.register(getattr(packet, overload))(rule)


def _each(op: OpOverload) -> Callable[..., Any]:
    """`op` for every tensor of a list."""

    def decomposed(self: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
        return [op(x, *args, **kwargs) for x in self]

    return decomposed


def _zipped(op: OpOverload, lists: int) -> Callable[..., Any]:
    """`op` for the tensors of one list with their partners in so many other ones."""

    def decomposed(self: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        others: Iterable[tuple[Any, ...]] = zip(*args[:lists], strict=True)
        if any(len(a) != len(self) for a in args[:lists]):
            return NotImplemented
        return [op(x, *y, *args[lists:], **kwargs) for x, y in zip(self, others, strict=True)]

    return decomposed


def _with_number_tensor(op: OpOverload) -> Callable[..., Any]:
    """`op` for every tensor with the one number that the other tensor holds."""

    def decomposed(self: Sequence[Tensor], other: Tensor, **kwargs: Any) -> Any:
        if other.dim() != 0:
            return NotImplemented
        return [op(x, other, **kwargs) for x in self]

    return decomposed


for _name in UNARY:
    _register(_name, "default", _each(getattr(aten, _name).default))
for _name, (_two, _number) in BINARY.items():
    _register(_name, "List", _zipped(_two, 1))
    _register(_name, "Scalar", _each(_number))
    _register(_name, "ScalarList", _zipped(_number, 1))
    _register(_name, "Tensor", _with_number_tensor(_two))
_register("lerp", "List", _zipped(aten.lerp.Tensor, 2))
_register("lerp", "Scalar", _zipped(aten.lerp.Scalar, 1))
_register("lerp", "ScalarList", _zipped(aten.lerp.Scalar, 2))


def _number_last(op: OpOverload) -> Callable[..., Any]:
    """addcmul and addcdiv: their number is a keyword."""

    def decomposed(self: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor],
                   value: Any = 1) -> Any:  # fmt: skip
        values = value if isinstance(value, (list, tuple)) else [value] * len(self)
        if not len(self) == len(first) == len(second) == len(values):
            return NotImplemented
        rows = zip(self, first, second, values, strict=True)
        return [op(x, a, b, value=v) for x, a, b, v in rows]

    return decomposed


for _name in ("addcmul", "addcdiv"):
    for _overload in ("Scalar", "ScalarList"):
        _register(_name, _overload, _number_last(getattr(aten, _name).default))


@decomposes(aten._foreach_pow.ScalarAndTensor)
def power_of_number(self: Any, exponent: Sequence[Tensor]) -> list[Tensor]:
    return [aten.pow.Scalar(self, x) for x in exponent]


@decomposes(aten._foreach_norm.Scalar)
def norm(self: Sequence[Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [aten.linalg_vector_norm.default(x, ord, dtype=dtype) for x in self]


@decomposes(aten._foreach_zero.default)
def zero(self: Sequence[Tensor]) -> list[Tensor]:
    return [aten.zeros_like.default(x) for x in self]


@decomposes(aten._foreach_copy.default)
def copy(self: Sequence[Tensor], src: Sequence[Tensor], non_blocking: bool = False) -> Any:
    if len(self) != len(src):
        return NotImplemented
    return [aten.copy.default(x, y, non_blocking) for x, y in zip(self, src, strict=True)]
