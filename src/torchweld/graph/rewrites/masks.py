"""Attention masks that are the same in every call: left out, or said by the causal flag.

Models that are traced build their mask from ranges and comparisons, where in eager they look at the
data and often pass none. A kernel without a mask reads less, and a causal one skips half the work.
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

from torchweld.graph.rewrites.node import arg, tensor
from torchweld.ir.graph import VAL

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
    constants = _Constants()
    hides: dict[Node, str | None] = {}
    for node in [n for n in graph.nodes if n.target in MASKED]:
        mask_at, name, causal_at = MASKED[node.target]
        mask = arg(node, mask_at, name)
        if not isinstance(mask, Node) or arg(node, causal_at, "is_causal", False):
            continue
        if mask not in hides:
            value = constants.value(mask)
            hides[mask] = None if value is None else hidden(value, tensor(node.args[0]).shape[-2])
        if hides[mask] is not None:
            _unmask(node, mask_at, name, causal_at, causal=hides[mask] == "later")


def hidden(mask: Tensor, length: int) -> str | None:
    """What a mask [.., L or 1, S] hides from `length` queries: "nothing", or "later" keys; else
    None."""
    if mask.dtype is torch.bool:
        shown = mask
    else:
        shown = mask == 0
        if not bool((shown | (mask <= HIDDEN.get(mask.dtype, -math.inf))).all()):
            return None
    if bool(shown.all()):
        return "nothing"
    if mask.dim() < 2 or mask.shape[-2:] != (length, length):
        return None
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return "later" if bool((shown == causal).all()) else None


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
class _Constants:
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
                return torch.zeros((), dtype=tensor(x).dtype).expand(tensor(x).shape)
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
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and not node.target._schema.is_mutable
        and isinstance(value, Tensor)
        and value.numel() <= LARGEST
    )
