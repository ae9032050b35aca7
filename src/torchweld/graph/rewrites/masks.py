"""Attention masks that are the same in every call: left out, or said by the causal flag.

Models that are traced build their mask from ranges and comparisons, where in eager they look at the
data and often pass none. A kernel without a mask reads less, and a causal one skips half the work.

Also what masks of attention written by hand are for an operator, made once for all layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from torchweld.graph.rewrites.elements import (
    TRUE,
    Choice,
    Element,
    Elements,
    Truth,
    UnknownError,
    negated,
    places_of,
)
from torchweld.graph.rewrites.node import RESHAPES, arg, new_node, tensor
from torchweld.graph.schema import has_effect
from torchweld.ir.graph import VAL
from torchweld.ir.size_node import expr_of

aten = torch.ops.aten

LARGEST = 1 << 24  # elements of a value that is computed while compiling
# What an added mask has at most where it hides. For cuDNN, torch writes the least number of f16
# also into masks in bf16.
HIDDEN = {
    torch.float32: torch.finfo(torch.float32).min, torch.float64: torch.finfo(torch.float64).min,
    torch.float16: -65504.0, torch.bfloat16: -65504.0,
}  # fmt: skip

# Where the operators of attention have their mask, and their causal flag.
MASKED: dict[OpOverload, tuple[int, str, int]] = {
    aten.scaled_dot_product_attention.default: (3, "attn_mask", 5),
    aten._scaled_dot_product_efficient_attention.default: (3, "attn_bias", 6),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (99, "attn_mask", 4),
}

# Operators that read only the shape and dtype of their input.
_LIKE = frozenset((
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros_like.default,
    aten.ones_like.default, aten.full_like.default,
))  # fmt: skip


def settle_masks(graph: Graph) -> None:
    """Attention whose mask hides nothing, or exactly what is later, gets no mask."""
    constants = Constants()
    hides: dict[Node, str | None] = {}
    for node in [n for n in graph.nodes if n.target in MASKED]:
        mask_at, name, causal_at = MASKED[node.target]
        mask = arg(node, mask_at, name)
        if not isinstance(mask, Node) or arg(node, causal_at, "is_causal", False):
            continue
        if mask not in hides:
            hides[mask] = settled(mask, tensor(node.args[0]).shape[-2], constants)
        if hides[mask] is not None:
            _unmask(node, mask_at, name, causal_at, causal=hides[mask] == "later")


def settled(mask: Node, length: int, constants: Constants) -> str | None:
    """What a mask that no input decides hides, as `hidden` says; None for any other mask."""
    if tensor(mask)._has_symbolic_sizes_strides:
        return _hidden_at_any_size(mask, length)
    value = constants.value(mask)
    return None if value is None else hidden(value, length)


def _hidden_at_any_size(mask: Node, length: int) -> str | None:
    """`hidden`, of a mask that has another value for every size."""
    x = tensor(mask)
    place = places_of(x)
    try:
        shown = _shown_where(Elements().at(mask, place), x.dtype)
    except UnknownError:
        return None
    if shown == TRUE:
        return "nothing"
    if x.dim() < 2 or any(expr_of(n) is not expr_of(length) for n in x.shape[-2:]):
        return None
    return "later" if shown == frozenset((place[-2] - place[-1],)) else None


def _shown_where(element: Element, dtype: torch.dtype) -> Truth | None:
    """Where a mask leaves scores as they are; None if it does not only hide them elsewhere."""
    if isinstance(element, frozenset):
        return element
    if isinstance(element, float):
        return TRUE if element == 0 else None
    if not isinstance(element, Choice):
        return None
    low = HIDDEN.get(dtype, -math.inf)
    if element.yes == 0 and element.no <= low:
        return element.truth
    return negated(element.truth) if element.no == 0 and element.yes <= low else None


def hidden(mask: Tensor, length: int) -> str | None:
    """What a mask [.., L or 1, S] hides from `length` queries: "nothing", or "later" keys; else
    None."""
    shown = shown_by(mask)
    if shown is None:
        return None
    if bool(shown.all()):
        return "nothing"
    if mask.dim() < 2 or mask.shape[-2:] != (length, length):
        return None
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return "later" if bool((shown == causal).all()) else None


def shown_by(mask: Tensor) -> Tensor | None:
    """Where a mask leaves scores as they are; None if it does not only hide them elsewhere."""
    if mask.dtype is torch.bool:
        return mask
    shown = mask == 0
    low = mask <= HIDDEN.get(mask.dtype, -math.inf)
    return shown if bool((shown | low).all()) else None


def _unmask(node: Node, mask_at: int, name: str, causal_at: int, *, causal: bool) -> None:
    given, kwargs = list(node.args), dict(node.kwargs)
    if mask_at < len(given):
        given[mask_at] = None
    else:
        kwargs[name] = None
    if causal_at < len(given):
        given[causal_at] = causal
    else:
        kwargs["is_causal"] = causal
    node.args, node.kwargs = tuple(given), kwargs


@dataclass(slots=True)
class Constants:
    """The values of nodes that depend on no input, computed on the CPU when they are asked for."""

    known: dict[Node, Tensor | None] = field(default_factory=dict)

    def value(self, node: Node) -> Tensor | None:
        """The value of a node; None if it depends on inputs, on chance, or is too large."""
        todo = [node]
        while todo:
            at = todo[-1]
            needed = at.all_input_nodes if _computed(at) and at.target not in _LIKE else ()
            waiting = [n for n in needed if n not in self.known]
            if waiting and at not in self.known:
                todo += waiting
                continue
            todo.pop()
            self.known.setdefault(at, self._run(at) if _computed(at) else None)
        return self.known[node]

    def _run(self, node: Node) -> Tensor | None:
        like = node.target in _LIKE
        if not like and any(self.known[n] is None for n in node.all_input_nodes):
            return None

        def real(x: Any) -> Any:
            if isinstance(x, Node) and like:
                zero = torch.zeros((), dtype=tensor(x).dtype)
                # where the result has sizes and the input symbols, only its dtype is read
                return zero.expand(tensor(x).shape) if _sized(tensor(x)) else zero
            if isinstance(x, Node):
                return self.known[x]
            return torch.device("cpu") if isinstance(x, torch.device) else x

        args, kwargs = map_aggregate((node.args, node.kwargs), real)
        try:
            with torch.no_grad():
                result = node.target(*args, **kwargs)  # type: ignore[operator]
        except RuntimeError:  # the CPU has no kernel for it
            return None
        return result if isinstance(result, Tensor) else None


def _computed(node: Node) -> bool:
    """Whether a node may be computed while compiling, once its inputs are known."""
    value = node.meta.get(VAL)
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and not has_effect(node.target)
        and isinstance(value, Tensor)
        and _sized(value)
        and value.numel() <= LARGEST
    )


def _sized(value: Tensor) -> bool:
    """Whether every size is a number: what has a symbol is another value for another size."""
    return all(isinstance(n, int) for n in value.shape)


# ---------------------------------------------------------------- masks written by hand

# As good as -inf next to a score, but finite after a kernel multiplied it by log2(e): where all of
# a row is hidden by the least number of the dtype, the weights are equal in eager, not NaN.
_LOW = -1e30

_WINDOWS = RESHAPES | {aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim,
                       aten.slice.Tensor, aten.clone.default, aten.permute.default,
                       aten.transpose.int, aten._to_copy.default}  # fmt: skip
_FILLS: dict[Any, int] = {  # where the number is
    aten.scalar_tensor.default: 0, aten.full.default: 1, aten.new_full.default: 2,
    aten.full_like.default: 1,
}  # fmt: skip
_ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)


@dataclass(frozen=True, slots=True)
class Hiding:
    """The mask for an operator. empty: true where a row is hidden as a whole, where softmax gives
    NaN and the operator 0; None if it is certain that there is none.
    """

    mask: Node | None
    empty: Node | None = None


class Masks:
    """The masks of one graph. What is derived from one is made once, right behind it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._constants = Constants()
        self._made: dict[Any, Node] = {}

    def make(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """The call, which computes something from masks alone."""
        key = (target, repr(args), repr(kwargs))
        if key not in self._made:
            sources = [a for a in args if isinstance(a, Node)]
            place = max(sources)
            if place.op == "placeholder":
                place = max(self.graph.find_nodes(op="placeholder"))
            with self.graph.inserting_after(place):
                self._made[key] = new_node(self.graph, target, args, kwargs, like=sources[0])
        return self._made[key]

    def added(self, parts: list[Node], dtype: torch.dtype) -> Hiding | None:
        """What adding `parts` to scores is for an attention operator of `dtype`; None where it has
        no number that does the same.
        """
        mask = parts[0]
        for part in parts[1:]:
            mask = self.make(aten.add.Tensor, mask, part)
        values, empty = _values(mask), None
        if not self._shows_every_row(mask):
            if values is None or -math.inf in values:
                empty = self._whole_rows(self.make(aten.eq.Scalar, mask, -math.inf))
            if torch.finfo(dtype).min < _LOW:
                mask = self._bounded(mask, values)
            elif tensor(mask).dtype is not dtype and not _fits(values, dtype):
                return None
        if tensor(mask).dtype is not dtype:
            mask = self.make(aten._to_copy.default, mask, dtype=dtype)
        return Hiding(mask, empty)

    def filled(self, where: Node, hides: bool, fill: float, dtype: torch.dtype) -> Hiding | None:
        """What putting `fill` in the place of scores is; None if that does not only hide them.

        hides: they are replaced where `where` is true, else where it is false.
        """
        least = torch.finfo(dtype).min
        if not fill <= max(_LOW, least):
            return None
        opposite = self.make(aten.logical_not.default, where)
        shown, hidden = (opposite, where) if hides else (where, opposite)
        if self._shows_every_row(shown):
            return Hiding(shown)
        if fill == -math.inf:
            return Hiding(shown, self._whole_rows(hidden))
        if least > _LOW:
            return None
        zero = self.make(aten.zeros_like.default, hidden, dtype=dtype)
        return Hiding(self.make(aten.masked_fill.Scalar, zero, hidden, _LOW))

    def _shows_every_row(self, mask: Node) -> bool:
        """Whether it is certain that every row has a score that counts."""
        value = self._constants.value(mask)
        shown = None if value is None else shown_by(value)
        return shown is not None and shown.dim() > 0 and bool(shown.any(-1).all())

    def _whole_rows(self, hidden: Node) -> Node:
        return self.make(aten.all.dim, hidden, -1, True)

    def _bounded(self, mask: Node, values: tuple[float, ...] | None) -> Node:
        """`mask` with no finite number below _LOW."""
        if values is not None and all(v >= _LOW or v == -math.inf for v in values):
            return mask
        bounded = self.make(aten.clamp.default, mask, _LOW)
        if values is not None and -math.inf not in values:
            return bounded
        empty = self.make(aten.eq.Scalar, mask, -math.inf)
        return self.make(aten.masked_fill.Scalar, bounded, empty, -math.inf)


def _values(mask: Node) -> tuple[float, ...] | None:
    """The numbers that the elements of `mask` can be; None if that is not known."""
    if mask.target in _WINDOWS:
        source = mask.args[0]
        assert isinstance(source, Node)
        found = _values(source)
        return None if found is None else tuple(_rounded(v, mask) for v in found)
    if mask.target is not aten.where.self:
        return None
    sides = [constant(x) for x in mask.args[1:]]
    if any(s is None for s in sides):
        return None
    return tuple(_rounded(s, mask) for s in sides if s is not None)


def _fits(values: tuple[float, ...] | None, dtype: torch.dtype) -> bool:
    """Whether no finite number becomes -inf in `dtype`."""
    least = torch.finfo(dtype).min
    return values is not None and all(v >= least or v == -math.inf for v in values)


def _rounded(v: float, like: Node) -> float:
    return torch.tensor(v, dtype=torch.float64).to(tensor(like).dtype).item()


def constant(x: Any) -> float | None:
    """The number that every element of the node is, if it is written as a call that fills."""
    if not isinstance(x, Node):
        return float(x) if isinstance(x, (int, float)) else None
    if x.target in _ZEROS:
        return 0.0
    if x.target is aten._to_copy.default:
        source = constant(x.args[0])
        return None if source is None else _rounded(source, x)
    place = _FILLS.get(x.target)
    number = None if place is None else x.args[place]
    return _rounded(number, x) if isinstance(number, (int, float)) else None
