"""within: what a joint graph saves if its forward may save only a share of what is fastest.

At budget 1 that is what the minimum cut saves if nothing dear is computed again, at 0 if everything
may be. In between as many operators may be computed again as are needed to keep to the budget:
those first that free the most bytes for the time that they take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.ir.graph import VAL
from torchweld.ir.size_node import hint_of

aten = torch.ops.aten

# multiplications and additions in the time in which a byte is read or written
_FLOPS_PER_BYTE = 100

# products: the argument whose last dimension is summed over
_SUMMED: dict[Any, int] = {
    aten.mm.default: 0, aten.bmm.default: 0, aten.mv.default: 0, aten.dot.default: 0,
    aten.addmm.default: 1, aten.baddbmm.default: 1,
}  # fmt: skip


def within(saved: Callable[[frozenset[Node]], tuple[list[Node], int]], dear: Sequence[Node],
           budget: float) -> list[Node]:  # fmt: skip
    """The nodes to save.

    saved: what is saved, and its bytes, if these nodes may be computed again. dear: those that are
    not if the budget is 1.
    Cost: a minimum cut for each halving of the number of dear nodes.
    """
    most, upper = saved(frozenset())
    if budget >= 1 or not dear:
        return most
    ranked = sorted(dear, key=_gain, reverse=True)
    best, lower = saved(frozenset(ranked))
    limit = lower + budget * (upper - lower)
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        found, size = saved(frozenset(ranked[:middle]))
        if size <= limit:
            high, best = middle, found
        else:
            low = middle
    return best


def _gain(node: Node) -> float:
    """Bytes of the results for the time that they take."""
    made = _bytes(node)
    moved = made + sum(map(_bytes, node.all_input_nodes))
    return made / max(moved + _flops(node) / _FLOPS_PER_BYTE, 1)


def _bytes(node: Node) -> int:
    """Of sizes that vary, those of now."""
    return sum(int(hint_of(t.numel())) * t.element_size() for t in _tensors(node.meta[VAL]))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def _flops(node: Node) -> int:
    """Of products, convolutions and attention; others are bound by memory."""
    made = sum(int(hint_of(t.numel())) for t in _tensors(node.meta[VAL])[:1])
    inputs = [n.meta[VAL] for n in node.all_input_nodes if isinstance(n.meta[VAL], Tensor)]
    place = _SUMMED.get(node.target)
    if place is not None:
        return 2 * made * int(hint_of(inputs[place].shape[-1]))
    if node.target is aten.convolution.default:
        return 2 * made * int(math.prod(map(hint_of, inputs[1].shape[1:])))
    if "attention" in str(node.target) and len(inputs) > 2:
        return 4 * made * int(hint_of(inputs[1].shape[-2]))
    return 0
