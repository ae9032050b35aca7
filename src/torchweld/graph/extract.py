"""Extraction: a part of a graph as a graph of its own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from torchweld.ir.graph import LOC, ORIGIN, VAL, call_node


class Extraction:
    """Grows node by node. nodes: what stands in the new graph for nodes of the old one."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.nodes: dict[Node, Node] = {}

    def place(self, node: Node) -> Node:
        """An input that stands for the node; before any `take`."""
        made = self.graph.placeholder(node.name)
        self._describe(made, node)
        return made

    def take(self, node: Node) -> Node:
        """A copy of the node, whose arguments are there already."""
        found = self.nodes.get(node)
        if found is not None:
            return found
        if node.op == "call_function":  # torch warns of symbolic numbers in the arguments of copies
            args, kwargs = map_arg((node.args, node.kwargs), self.nodes.__getitem__)
            made = call_node(self.graph, node.target, args, kwargs)
        else:
            made = self.graph.node_copy(node, self.nodes.__getitem__)
        self._describe(made, node)
        return made

    def _describe(self, made: Node, node: Node) -> None:
        made.meta = {VAL: node.meta[VAL], ORIGIN: node.meta.get(ORIGIN, ""),
                     LOC: node.meta.get(LOC)}  # fmt: skip
        self.nodes[node] = made


def ancestors(ends: Iterable[Node], known: Container[Node] = ()) -> set[Node]:
    """The nodes, and everything that they are computed from.

    known: what is there already, and not computed.
    """
    found: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if node not in known:
                waiting.extend(node.all_input_nodes)
    return found


def ends_of(graph: Graph) -> tuple[Sequence[Node], Sequence[Node], Sequence[Node]]:
    """What a joint graph returns: updated inputs, results, gradients."""
    ends: Any = graph.output_node().args[0]
    updates, results, gradients = ends
    return updates, results, gradients
