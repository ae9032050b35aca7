"""Positions of maxima that a backward reads: saved in 16 or 32 bits, where eager saves 64."""

from __future__ import annotations

import math

import torch
from torch.fx import Graph, Node

from torchweld.graph.rewrites.node import new_node, tensor

aten = torch.ops.aten
pool_backward = aten.max_pool2d_with_indices_backward.default


def narrow_positions(graph: Graph) -> None:
    """Have each backward of a max pool read positions through the least dtype that holds them."""
    for node in graph.find_nodes(op="call_function", target=pool_backward):
        source, positions = node.args[1], node.args[-1]
        assert isinstance(source, Node) and isinstance(positions, Node)
        plane = tensor(source).shape[-2:]
        if not all(isinstance(n, int) for n in plane):
            continue
        least = next((d for d in (torch.int16, torch.int32)
                      if math.prod(plane) - 1 <= torch.iinfo(d).max), None)  # fmt: skip
        if least is None:
            continue
        with graph.inserting_after(positions):
            narrow = new_node(graph, aten._to_copy.default, (positions,), {"dtype": least},
                              like=positions)  # fmt: skip
        with graph.inserting_before(node):
            wide = new_node(graph, aten._to_copy.default, (narrow,), {"dtype": torch.int64},
                            like=node)  # fmt: skip
        node.replace_input_with(positions, wide)
