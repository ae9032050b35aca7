"""Computes again, in front of the backward that reads it, what the program asks not to keep."""

from __future__ import annotations

from torch.fx import Graph, Node

from torchweld.graph.partition import is_asked
from torchweld.graph.record import INNER
from torchweld.ir.graph import AGAIN


def compute_again(graph: Graph) -> None:
    """Of a graph that holds a backward: what checkpointed functions computed dies after them.

    Cost: as often as the program's own backward computes it, once.
    """
    made: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.meta.get(INNER):
            for source in node.all_input_nodes:
                if _is_gone(source):
                    node.replace_input_with(source, _copy(graph, source, node, made))


def _is_gone(node: Node) -> bool:
    return node.op == "call_function" and not node.meta.get(INNER) and is_asked(node)


def _copy(graph: Graph, end: Node, user: Node, made: dict[Node, Node]) -> Node:
    """The node once more, with what it needs, in front of `user`."""
    waiting = [end]
    while waiting:
        node = waiting[-1]
        missing = [a for a in node.all_input_nodes if _is_gone(a) and a not in made]
        if missing and node not in made:
            waiting.extend(missing)
            continue
        waiting.pop()
        if node not in made:
            with graph.inserting_before(user):
                made[node] = graph.node_copy(node, lambda a: made.get(a, a))
            made[node].meta.update({INNER: True, AGAIN: False})
    return made[end]
