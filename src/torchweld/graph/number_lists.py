"""Operators on lists of tensors and numbers that are known when the graph runs, one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchweld.base.errors import Unsupported

PREFIX = "_foreach_"
HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALF)
_ATEN = torch.ops.aten


class Number:
    """A number in the place of a value of the captured graph. places: names of the inputs of the
    graph that it is made of."""

    __slots__ = ("places", "tensor")

    def __init__(self, tensor: Tensor, places: frozenset[str] = frozenset()) -> None:
        self.tensor = tensor
        self.places = places


def _one(row: Callable[..., Any], in_place: bool, *args: Any, **kwargs: Any) -> Any:
    """One operator on tensors of one dtype, which computes in f32 where that is narrower."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    floats = {x.dtype for x in tensors if x.dtype is not torch.bool}
    if not floats or not floats <= set(FLOATS) or not set(kwargs) <= _NAMES:
        raise Unsupported("W202", "a Python number that changes, and tensors that are no floats")
    wide = {x.dtype for x in tensors if x.dim()} & floats  # a mask has no say in the dtype
    dtype = functools.reduce(torch.promote_types, wide or floats)
    like = next((x for x in tensors if x.dim()), tensors[0])
    given = [_operand(x, like, dtype) for x in args]
    out = row(*given, **{k: _operand(x, like, dtype) for k, x in kwargs.items()})
    if out.dtype is not torch.bool:
        out = out.to(dtype)
    return args[0].copy_(out) if in_place else out


_NAMES = {"alpha", "value", "min", "max", "other", "weight", "exponent"}


def _operand(x: Any, like: Tensor, dtype: torch.dtype) -> Any:
    """A number as a tensor that is promoted as the number is."""
    wide = torch.float32 if dtype in HALF else dtype
    if isinstance(x, Number):
        return x.tensor if like.dim() else x.tensor.to(wide)
    return x.to(wide) if isinstance(x, Tensor) and x.dtype is not torch.bool else x


def refused(why: str) -> Unsupported:
    """The error of who cannot do with a number that changes."""
    return Unsupported("W208", why)


def run_on_lists(name: str, captured: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator on lists (`_foreach_add_`): what it does to each tensor. captured: its result.

    Errors: Unsupported W202.
    """
    in_place, plain = name.endswith("_"), name.removesuffix("_")
    row = _ROWS.get(plain.removeprefix(PREFIX))
    if row is None:
        raise Unsupported("W202", f"{name} takes a Python number that changes")
    positional = [*args, *(v for k, v in kwargs.items() if k in ("scalar", "scalars", "weights"))]
    named = {k: v for k, v in kwargs.items() if k in ("alpha", "value", "exponent")}
    if len(positional) + len(named) != len(args) + len(kwargs):
        raise Unsupported("W202", "an operator on lists that takes a Python number that changes")
    count = max(len(x) for x in positional if isinstance(x, (tuple, list)))
    rows = zip(*(_repeated(x, count) for x in positional), strict=True)
    made = [_one(row, in_place, *items, **named) for items in rows]
    return None if captured is None else made


def _repeated(x: Any, count: int) -> Iterable[Any]:
    return x if isinstance(x, (tuple, list)) else [x] * count


def _add(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    """x + alpha * y, rounded once where a fused multiplication is, as in eager."""
    return torch.addcmul(x, y, alpha) if isinstance(alpha, Tensor) else torch.add(x, y, alpha=alpha)


def _sub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return _add(x, y, -alpha)


def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    return torch.addcmul(x, a * value, b)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    return torch.addcdiv(x, a * value, b)


def _lerp(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return _ATEN.lerp.Tensor(x, y, weight.to(x.dtype))  # type: ignore[no-any-return]


def _at_least(x: Tensor, least: Tensor) -> Tensor:
    return torch.clamp_min(x, least)


def _at_most(x: Tensor, most: Tensor) -> Tensor:
    return torch.clamp_max(x, most)


_ROWS: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "addcmul": _addcmul, "addcdiv": _addcdiv, "lerp": _lerp, "maximum": _at_least,
    "clamp_min": _at_least, "minimum": _at_most, "clamp_max": _at_most,
}  # fmt: skip
