"""Numbers that are known when the graph runs: tensors without dimensions that act as numbers.

A captured graph may take Python floats, read them of tensors with `item()` and compute with them.
They are f64 here, on the device where they come from, and what an operator does to a number and
tensors is written with tensors only: a number has no say in the dtype of a result, and is rounded
to the type in which the operator computes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.base.errors import Unsupported
from torchweld.ir.graph import NUMBER, VAL


class Number:
    """A number in the place of a value of the captured graph."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


_HALF = (torch.float16, torch.bfloat16)
_TYPES = (torch.float32, torch.float64, *_HALF)
_ATEN = torch.ops.aten


def is_number_node(node: Node) -> bool:
    """Whether a node of a captured graph is a number that is known when the graph runs."""
    return bool(node.meta.get(NUMBER)) or (
        node.op.startswith("call") and type(node.meta.get(VAL)) is float)  # fmt: skip


def takes_numbers(args: Any) -> bool:
    """Whether there are numbers among arguments."""
    if isinstance(args, (tuple, list)):
        return any(map(takes_numbers, args))
    return isinstance(args, Number)


def run_with_numbers(node: Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of a captured call some of whose arguments are numbers, or that gives one.

    Errors: Unsupported W202 for an operator that has no row here.
    """
    if node.target == "item":
        return Number(args[0].detach().reshape(()).to(torch.float64))
    if is_number_node(node):
        return Number(_arithmetic(node.target, args))
    if node.target in _MAKERS:
        return _made(args[0], **kwargs)
    name = _name(node.target)
    if name == "where" and node.op == "call_method":
        x, cond, *rest = args
        args = cond, x, *rest
    if name in _BY_NAME:
        return _BY_NAME[name](*args, **kwargs)
    in_place = name.endswith("_")
    name = name.removesuffix("_")
    each = name.startswith("_foreach_")
    row = _ROWS.get(name.removeprefix("_foreach_"))
    if row is None or (in_place and isinstance(args[0], Number)):
        raise Unsupported("W202", f"{_name(node.target)} takes a Python number that changes")
    if each:
        return _lists(row, in_place, node.meta.get(VAL), *args, **kwargs)
    return _one(row, in_place, *args, **kwargs)


_MAKERS = (torch.tensor, torch.as_tensor)


def _made(x: Number, dtype: torch.dtype | None = None, device: Any = None,
          requires_grad: bool = False) -> Tensor:  # fmt: skip
    """torch.tensor of a number."""
    if requires_grad:
        raise Unsupported("W202", "a tensor made of a number that requires grad")
    kind = torch.get_default_dtype() if x.tensor.is_floating_point() else torch.int64
    return x.tensor.to(device=device, dtype=dtype or kind, copy=True)


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target
    return _INFIX.get(target) or str(getattr(target, "__name__", target))


_INFIX: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div",
    operator.pow: "pow", operator.iadd: "add_", operator.isub: "sub_", operator.imul: "mul_",
    operator.itruediv: "div_", operator.lt: "lt", operator.le: "le", operator.gt: "gt",
    operator.ge: "ge", operator.eq: "eq", operator.ne: "ne",
}  # fmt: skip


# ------------------------------------------------------------------- numbers and numbers
def _arithmetic(fn: Any, args: Any) -> Tensor:
    values = [a.tensor if isinstance(a, Number) else a for a in args]
    return _NUMBERS[fn](*values)


def _extreme(better: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    """min or max as Python has them: a later one wins if it is better."""

    def run(first: Any, *others: Any) -> Tensor:
        best = first
        for x in others:
            best = torch.where(better(x, best), x, best)
        return best  # type: ignore[no-any-return]

    return run


def _power(a: Any, b: Any) -> Tensor:
    """As the C library does it: torch takes shortcuts for some exponents that are numbers."""
    if not isinstance(b, Tensor):
        b = torch.full_like(a, b)
    return torch.pow(a, b)


_NUMBERS: dict[Any, Callable[..., Tensor]] = {
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul,
    operator.truediv: operator.truediv, operator.pow: _power, operator.neg: torch.neg,
    abs: torch.abs, math.sqrt: torch.sqrt, min: _extreme(operator.lt), max: _extreme(operator.gt),
}  # fmt: skip


# ------------------------------------------------------------------- numbers and tensors
def _one(row: Callable[..., Any], in_place: bool, *args: Any, **kwargs: Any) -> Any:
    """One operator on tensors of one dtype, which computes in f32 where that is narrower."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    floats = {x.dtype for x in tensors if x.dtype is not torch.bool}
    if not floats or not floats <= set(_TYPES) or not set(kwargs) <= _NAMES:
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
    wide = torch.float32 if dtype in _HALF else dtype
    if isinstance(x, Number):
        return x.tensor if like.dim() else x.tensor.to(wide)
    return x.to(wide) if isinstance(x, Tensor) and x.dtype is not torch.bool else x


def _lists(row: Callable[..., Any], in_place: bool, captured: Any, *args: Any,
           **kwargs: Any) -> Any:  # fmt: skip
    """An operator on lists: what it does to each tensor."""
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


def _fill(x: Tensor, value: Tensor) -> Tensor:
    return value.to(x.dtype).expand(x.shape)


def _masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return torch.where(mask, value.to(x.dtype), x)


def _at_least(x: Tensor, least: Tensor) -> Tensor:
    return torch.clamp(x, min=least)


def _at_most(x: Tensor, most: Tensor) -> Tensor:
    return torch.clamp(x, max=most)


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """The upper bound wins."""
    x = x if min is None else torch.clamp(x, min=min)
    return x if max is None else torch.clamp(x, max=max)


def _leaky_relu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * slope)


def _threshold(x: Tensor, threshold: Any, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        value = value.to(x.dtype)
    return torch.where(x <= threshold, value, x)


# ------------------------------------------------------------------- what only a number fills
def _where(cond: Tensor, a: Any, b: Any) -> Tensor:
    """torch.where of a condition and tensors or numbers."""
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    if not isinstance(cond, Tensor):
        raise Unsupported("W202", "a condition that is no tensor")
    whole = all(not x.tensor.is_floating_point() if isinstance(x, Number) else isinstance(x, int)
                for x in (a, b) if not isinstance(x, Tensor))  # fmt: skip
    kind = torch.int64 if whole else torch.get_default_dtype()
    dtype = torch.result_type(tensors[0], 1 if whole else 1.0) if tensors else kind
    first, second = (x.tensor.to(dtype) if isinstance(x, Number) else x for x in (a, b))
    return torch.where(cond, first, second)


def _full(size: Any, fill_value: Number, dtype: torch.dtype | None = None,
          **options: Any) -> Tensor:  # fmt: skip
    kind = torch.get_default_dtype() if fill_value.tensor.is_floating_point() else torch.int64
    return torch.empty(size, dtype=dtype or kind, **options).copy_(fill_value.tensor)


def _full_like(x: Tensor, fill_value: Number, **options: Any) -> Tensor:
    return torch.empty_like(x, **options).copy_(fill_value.tensor)


def _new_full(x: Tensor, size: Any, fill_value: Number, **options: Any) -> Tensor:
    return x.new_empty(size, **options).copy_(fill_value.tensor)


def _layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None,
                eps: Number, cudnn: bool = True) -> Tensor:  # fmt: skip
    wide = _wide(x)
    dims = tuple(range(-len(shape), 0))
    centred = wide - wide.mean(dims, keepdim=True)
    variance = (centred * centred).mean(dims, keepdim=True)
    out = centred * torch.rsqrt(variance + eps.tensor)
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).to(x.dtype)


def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: Number) -> Tensor:
    wide = _wide(x)
    squares = (wide * wide).mean(tuple(range(-len(shape), 0)), keepdim=True)
    out = wide * torch.rsqrt(squares + eps.tensor)
    return (out if weight is None else out * weight).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """A tensor in the type in which norms compute."""
    if x.dtype not in _TYPES:
        raise Unsupported("W202", "a norm of numbers that are no floats")
    return x.float() if x.dtype in _HALF else x


_BY_NAME: dict[str, Callable[..., Any]] = {
    "where": _where, "full": _full, "full_like": _full_like, "new_full": _new_full,
    "layer_norm": _layer_norm, "rms_norm": _rms_norm,
}  # fmt: skip
_ROWS: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "mul": torch.mul, "div": torch.div, "true_divide": torch.div,
    "pow": torch.pow, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "addcmul": _addcmul, "addcdiv": _addcdiv, "lerp": _lerp, "fill": _fill,
    "masked_fill": _masked_fill, "clamp": _clamp, "hardtanh": _clamp, "maximum": _at_least,
    "eq": torch.eq, "ne": torch.ne, "leaky_relu": _leaky_relu, "threshold": _threshold,
    "clamp_min": _at_least, "minimum": _at_most, "clamp_max": _at_most,
}  # fmt: skip
