"""Operators that make sizes which only the data decides, on fake tensors: new symbols.

What a mask selects is counted once: the same mask, not written meanwhile, gives the same symbol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.ir.conditions import at_most, less
from torchweld.ir.expr import Expr, Int, Sym
from torchweld.ir.graph import VAL
from torchweld.ir.size_node import expr_of, node_of, symbolic
from torchweld.ir.sizes import SizeEnv

_ATEN = torch.ops.aten
_broadcast: Any = torch.broadcast_shapes
# likely values, for what is a matter of cost: a part of the elements; and of a number
_PART, _NUMBER = 1024, 3
_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class SizeMaker:
    """Makes the symbols of one capture. made: in order. runs: operators that made a size."""

    def __init__(self, env: SizeEnv) -> None:
        self.env = env
        self.made: list[Sym] = []
        self.runs = 0
        self._known: dict[tuple[object, ...], Sym] = {}
        self._kept: list[object] = []

    def count(self, most: Any, least: int = 0, key: tuple[object, ...] = (),
              keeps: object = None) -> Any:  # fmt: skip
        """A size between these. key: what it is the number of; the same gives the same."""
        symbol = self._known.get(key) if key else None
        if symbol is None:
            symbol = self._new(most, least)
            if key:
                self._known[key] = symbol
                self._kept.append(keeps)
        return symbolic(self.env, symbol)

    def number(self, counted: Tensor | None = None) -> Sym:
        """An integer that a tensor holds. counted: the mask whose elements it is the number of."""
        if counted is not None:
            return self._new(math.prod(counted.shape), 0)
        made = self.env.unknown(_NUMBER, None)
        self.made.append(made)
        return made

    def _new(self, most: Any, least: int) -> Sym:
        whole = None if most is None else expr_of(most)
        hi = whole.n if isinstance(whole, Int) else None
        made = self.env.unknown(_PART if hi is None else max(hi, 2), least, hi)
        if isinstance(whole, Expr) and hi is None:
            self.env.given(at_most(made, whole))
        self.made.append(made)
        return made


Make = Callable[..., Any]
_MAKES: dict[Any, Make] = {}


def makes(func: Any) -> bool:
    """Whether an operator may make a size."""
    return func in _MAKES


def run(maker: SizeMaker, mode: Any, func: Any, args: Sequence[Any],
        kwargs: Mapping[str, Any]) -> Any:  # fmt: skip
    """The result of such an operator; NotImplemented if it is none of ours after all."""
    mode.cache_enabled = False  # torch's memo asks symbols for what ours lack
    with mode:
        out = _MAKES[func](maker, *args, **kwargs)
    maker.runs += out is not NotImplemented
    return out


def _for(*funcs: Any) -> Callable[[Make], Make]:
    def add(fn: Make) -> Make:
        _MAKES.update(dict.fromkeys(funcs, fn))
        return fn

    return add


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _chosen(maker: SizeMaker, mask: Tensor) -> Any:
    """How many elements of a mask are not zero."""
    key = () if mask.is_inference() else ("nonzero", id(mask), _version(mask))
    return maker.count(math.prod(mask.shape), 0, key, mask)


@_for(_ATEN.nonzero.default)
def _nonzero(maker: SizeMaker, x: Tensor) -> Any:
    n = _chosen(maker, x)
    return torch.empty_strided((n, x.dim()), (1, n), dtype=torch.int64, device=x.device)


@_for(_ATEN.masked_select.default)
def _masked_select(maker: SizeMaker, x: Tensor, mask: Tensor) -> Any:
    same = len(x.shape) == len(mask.shape) and x.shape == mask.shape
    n = _chosen(maker, mask) if same else maker.count(
        math.prod(_broadcast(x.shape, mask.shape)))  # fmt: skip
    return x.new_empty((n,))


def _unique(maker: SizeMaker, x: Tensor, inverse: bool, counts: bool) -> Any:
    whole = math.prod(x.shape)
    n = maker.count(whole, _some(whole))
    return (x.new_empty((n,)), _where(x, x.shape if inverse else (0,)),
            _where(x, (n,) if counts else (0,)))  # fmt: skip


def _some(n: Any) -> int:
    """The least number of different elements of n."""
    return int(type(n) is int and n > 0)


def _where(x: Tensor, shape: Any) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=x.device)


@_for(_ATEN._unique2.default)
def _unique2(maker: SizeMaker, x: Tensor, sorted: bool = True, return_inverse: bool = False,
             return_counts: bool = False) -> Any:  # fmt: skip
    return _unique(maker, x, return_inverse, return_counts)


@_for(_ATEN.unique_consecutive.default)
def _unique_consecutive(maker: SizeMaker, x: Tensor, return_inverse: bool = False,
                        return_counts: bool = False, dim: int | None = None) -> Any:  # fmt: skip
    if dim is not None:
        return _along(maker, x, dim, return_inverse, return_counts)
    return _unique(maker, x, return_inverse, return_counts)


@_for(_ATEN.unique_dim_consecutive.default)
def _consecutive_along(maker: SizeMaker, x: Tensor, dim: int, return_inverse: bool = False,
                       return_counts: bool = False) -> Any:  # fmt: skip
    return _along(maker, x, dim, return_inverse, return_counts)


@_for(_ATEN.unique_dim.default)
def _unique_dim(maker: SizeMaker, x: Tensor, dim: int, sorted: bool = True,
                return_inverse: bool = False, return_counts: bool = False) -> Any:  # fmt: skip
    return _along(maker, x, dim, return_inverse, return_counts)


def _along(maker: SizeMaker, x: Tensor, dim: int, inverse: bool, counts: bool) -> Any:
    """Different slices of a tensor along a dimension; all three results are always made."""
    size = x.shape[dim]
    n = maker.count(size, _some(size))
    first = x.movedim(dim, 0)
    out = x.new_empty((n, *first.shape[1:])).movedim(0, dim)
    return out, _where(x, (size,)), _where(x, (n,))


@_for(_ATEN.repeat_interleave.Tensor)
def _repeat_interleave(maker: SizeMaker, repeats: Tensor, *, output_size: Any = None) -> Any:
    n = maker.count(None) if output_size is None else output_size
    return torch.empty((n,), dtype=repeats.dtype, device=repeats.device)


@_for(_ATEN.bincount.default)
def _bincount(maker: SizeMaker, x: Tensor, weights: Tensor | None = None,
              minlength: int = 0) -> Any:  # fmt: skip
    if type(minlength) is not int or x.dim() != 1 or x.dtype not in _NUMBERS:
        return NotImplemented
    n, dtype = maker.count(None, minlength), torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    return torch.empty((n,), dtype=dtype, device=x.device)


def counted_mask(node: Node) -> Tensor | None:
    """The mask whose true elements a node counts; None if it computes something else."""
    first = node.args[0] if node.args else None
    if node.target not in _COUNTS or node.kwargs or not isinstance(first, Node):
        return None
    value = node.meta.get(VAL)
    x = first.meta.get(VAL)
    whole = isinstance(value, Tensor) and value.dim() == 0
    return x if whole and isinstance(x, Tensor) and x.dtype is torch.bool else None


_COUNTS = ("sum", torch.sum, "count_nonzero", torch.count_nonzero)


def holds_number(x: Tensor) -> bool:
    """Whether what a tensor holds may become a size."""
    return x.dtype in _NUMBERS


def suppose_bounds(env: SizeEnv, x: Tensor, dim: int = 0, start: Any = None, end: Any = None,
                   step: int = 1) -> None:  # fmt: skip
    """What is usual of the bounds of a slice, where only the data decides them."""
    size, before = expr_of(x.shape[dim]), None
    for n in (start, end):
        if node_of(n) is None or not env.is_open(expr_of(n)):
            continue
        e = expr_of(n)
        if env.known(less(e, 0)) is None:
            env.suppose(at_most(0, e))
        if env.known(at_most(0, e)) and env.known(at_most(size, e)) is None:
            env.suppose(at_most(e, size))
        if before is not None and env.known(at_most(e, before)) is None:
            env.suppose(at_most(before, e))
        before = e


def suppose_place(env: SizeEnv, x: Tensor, dim: int, index: Any) -> None:
    """What is usual of the place of one element."""
    if node_of(index) is not None and env.is_open(expr_of(index)):
        e = expr_of(index)
        if env.known(less(e, 0)) is None:
            env.suppose(at_most(0, e))
        if env.known(at_most(0, e)):
            env.suppose(less(e, expr_of(x.shape[dim])))
