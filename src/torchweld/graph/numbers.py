"""Numbers that are known when the graph runs: tensors without dimensions that act as numbers.

A captured graph may take Python floats, read them of tensors with `item()` and compute with them.
They are f64 here, on the device where they come from, and what an operator does to a number and
tensors is written with tensors only: a number has no say in the dtype of a result, and is rounded
to the type in which the operator computes.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.base.errors import Unsupported
from torchweld.graph.number_lists import FLOATS, HALF, PREFIX, Number, refused, run_on_lists
from torchweld.ir.graph import NUMBER, VAL
from torchweld.ir.run_time_float import run_time_float
from torchweld.ir.size_node import SizeNode
from torchweld.ir.size_values import Leaf, Loose


def is_number_node(node: Node) -> bool:
    """Whether a node of a captured graph is a number that is known when the graph runs."""
    return bool(node.meta.get(NUMBER)) or (
        node.op.startswith("call") and type(node.meta.get(VAL)) is float)  # fmt: skip


def takes_numbers(args: Any) -> bool:
    """Whether there are numbers among arguments."""
    if isinstance(args, (tuple, list)):
        return any(map(takes_numbers, args))
    return isinstance(args, Number)


def run_with_numbers(node: Node, args: Any, kwargs: dict[str, Any], recorder: Any,
                     asked: Callable[[frozenset[str]], object]) -> Any:  # fmt: skip
    """The result of a captured call some of whose arguments are numbers, or that gives one.

    recorder: what records the operators. asked: told of inputs of the graph that are numbers whose
    value an operator has to know. Errors: Unsupported W208 then.
    """
    if node.target == "item":
        return Number(args[0].detach().reshape(()).to(torch.float64))
    if is_number_node(node):
        places = [a.places for a in args if isinstance(a, Number)]
        return Number(_arithmetic(node.target, args), frozenset().union(*places))
    if node.target in _MAKERS:
        return _made(args[0], **kwargs)
    name = _name(node.target)
    if name == "where" and node.op == "call_method":
        x, cond, *rest = args
        args = cond, x, *rest
    if name in _BY_NAME:
        return _BY_NAME[name](*args, **kwargs)
    if name.startswith(PREFIX):
        return run_on_lists(name, node.meta.get(VAL), *args, **kwargs)
    return _with_symbols(node, args, kwargs, recorder, asked)


# ------------------------------------------------------------------- numbers in any operator
def _with_symbols(node: Node, args: Any, kwargs: dict[str, Any], recorder: Any,
                  asked: Callable[[frozenset[str]], object]) -> Any:  # fmt: skip
    """The operator itself, or its row, with symbolic floats in the place of numbers. The recorder
    makes operands of them (`tensor_of`). Errors: Unsupported W208."""
    name = _name(node.target)
    used: list[Number] = []

    def ask() -> None:
        asked(frozenset().union(*(x.places for x in used)))
        raise refused(f"{name} needs the value of a number that changes")

    def given(x: Any) -> Any:
        if not isinstance(x, Number):
            return type(x)(map(given, x)) if isinstance(x, (tuple, list)) else x
        used.append(x)
        if not x.tensor.is_floating_point() and not among_floats:
            ask()
        return run_time_float(x.tensor.to(torch.float64), _SAMPLE, ask)

    among_floats = _of_floats(args, kwargs)
    args, kwargs = given(args), {k: given(x) for k, x in kwargs.items()}
    try:
        return _by_row(name, node, recorder, args, kwargs)
    except Unsupported as error:
        if error.code == "W208":
            asked(frozenset().union(*(x.places for x in used)))
        raise


# loaded for the first such number
_ROWS, _DRAWS = "torchweld.graph.number_rows", "torchweld.graph.number_draws"
_SAMPLE = 0.5  # of such a number, for operators on fakes


def _by_row(name: str, node: Node, recorder: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    draws: dict[str, Any] = importlib.import_module(_DRAWS).DRAWS
    if name in draws:
        return draws[name](recorder, *args, **kwargs)
    plain, known = name.removesuffix("_"), importlib.import_module(_ROWS)
    rows = {**known.ROWS, **known.DIFFERENTIABLE} if _needs_grad(args) else known.ROWS
    row = draws.get(plain)
    if row is not None or plain in rows:
        made = row(recorder, *args, **kwargs) if row is not None else rows[plain](*args, **kwargs)
        return made if plain == name else args[0].copy_(made)
    target: Any = node.target
    try:
        if node.op == "call_method":
            return getattr(args[0], str(target))(*args[1:], **kwargs)
        return target(*args, **kwargs)
    except Unsupported as error:
        twin = getattr(torch.Tensor, plain, None)
        if error.code != "W208" or plain == name or twin is None:
            raise
        return args[0].copy_(twin(*args, **kwargs))  # torch takes the one in place apart


def _needs_grad(args: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)


def _of_floats(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the tensors among arguments are floats, or masks."""
    given = [*args, *kwargs.values()]
    each = [x for a in given for x in (a if isinstance(a, (tuple, list)) else (a,))]
    dtypes = {x.dtype for x in each if isinstance(x, Tensor)} - {torch.bool}
    return bool(dtypes) and dtypes <= set(FLOATS)


def tensor_of(number: SizeNode, find: Callable[[Any], Tensor]) -> Any:
    """What a symbolic float is, in f64. find: the value of the tensor that stands for a number."""

    def value(x: Any) -> Any:
        match x:
            case Leaf():
                return find(x.of)
            case Loose():
                return _NUMBERS[x.fn](*map(value, x.args))
            case float():
                return x
        raise refused(f"a number is made of {x}")

    return value(number.value)


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


def _new_tensor(x: Tensor, value: Number, **options: Any) -> Tensor:
    if options.get("requires_grad") or not set(options) <= {"dtype", "device", "requires_grad"}:
        raise refused("a tensor made of a number that requires grad")
    device, dtype = options.get("device", x.device), options.get("dtype") or x.dtype
    return value.tensor.to(device=device, dtype=dtype, copy=True)


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
    if x.dtype not in FLOATS:
        raise Unsupported("W202", "a norm of numbers that are no floats")
    return x.float() if x.dtype in HALF else x


_BY_NAME: dict[str, Callable[..., Any]] = {
    "where": _where, "full": _full, "full_like": _full_like, "new_full": _new_full,
    "layer_norm": _layer_norm, "rms_norm": _rms_norm, "new_tensor": _new_tensor,
}  # fmt: skip
