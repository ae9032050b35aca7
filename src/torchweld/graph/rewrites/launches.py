"""Launches of the user's kernels: what a kernel fills is not copied before."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from torchweld.ir.launches import LAUNCHED, LAUNCHES

aten = torch.ops.aten

_EMPTY = frozenset((
    aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default,
    aten.new_empty.default, aten.new_empty_strided.default,
))  # fmt: skip


def name_blanks(graph: Graph) -> None:
    """Say of each launch which of the tensors that it writes to hold nothing yet."""
    for node in graph.nodes:
        if node.target is LAUNCHED:
            tensors, number = node.args[:2]
            node.args = (tensors, number, [i for i in LAUNCHES[number].written
                                           if _is_blank(tensors[i])])  # fmt: skip


def _is_blank(x: Node) -> bool:
    return x.target in _EMPTY
