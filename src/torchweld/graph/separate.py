"""Gives each output of a tidied graph memory of its own, or shared memory, as eager has it.

Removing copies and repeats makes values equal that eager keeps in different memory. That matters
only where a value leaves the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torchweld.base.errors import Unsupported
from torchweld.graph.outputs import Results
from torchweld.graph.rewrites.node import new_node
from torchweld.graph.schema import view_chain
from torchweld.ir.graph import VAL, call_node
from torchweld.ir.predicted import is_dense

aten = torch.ops.aten


def separate(graph: Graph, results: Results) -> None:
    """Insert the clones and aliases that the outputs need.

    Errors: Unsupported W201 if an output needs a clone that cannot have its strides.
    """
    output = graph.output_node()
    nodes: list[Node] = list(output.args[0])  # type: ignore[arg-type]
    n_updates = len(results.mutated)
    updates, values = nodes[:n_updates], nodes[n_updates:]
    with graph.inserting_before(output):
        _own_memory(graph, values, results)
        _apart_from_updates(graph, updates, values, results)
        _own_objects(graph, updates, values, results)
    output.args = ((*updates, *values),)
    output.meta[VAL] = tuple(node.meta[VAL] for node in (*updates, *values))


def _own_memory(graph: Graph, values: list[Node], results: Results) -> None:
    """Clone outputs that became a view of an input, or of an output that they must not alias."""
    owners: dict[Node, int] = {}
    for i, (alias, group) in enumerate(zip(results.aliases, results.groups, strict=True)):
        if alias is not None:
            continue
        chain = view_chain(values[i])
        if chain[-1].op == "placeholder" or owners.setdefault(chain[-1], group) != group:
            shared = results.groups.count(group) > 1
            old = chain[-1] if shared else next(filter(_copies_exactly, chain), chain[0])
            if not _copies_exactly(old):
                raise Unsupported("W201", "an output whose strides have no functional form")
            new = new_node(graph, aten.clone.default, (old,), like=old)
            members = [j for j, other in enumerate(results.groups) if other == group]
            for j in members:
                values[j] = _rebase(graph, values[j], old, new)
            owners[new] = group


def _copies_exactly(node: Node) -> bool:
    """Whether a clone has the same strides."""
    value = node.meta[VAL]
    return is_dense(value.shape, value.stride())


def _apart_from_updates(
    graph: Graph, updates: list[Node], values: list[Node], results: Results
) -> None:
    """A new value that outputs are views of is neither an input nor another output."""
    taken = {
        view_chain(value)[-1]
        for value, alias in zip(values, results.aliases, strict=True)
        if alias is None
    }
    for k, place in enumerate(results.mutated):
        viewers = [i for i, alias in enumerate(results.aliases) if alias == place]
        old = updates[k]
        root = view_chain(old)[-1]
        if not viewers or (root.op != "placeholder" and root not in taken):
            continue
        updates[k] = new_node(graph, aten.clone.default, (old,), like=old)
        for i in viewers:
            values[i] = _rebase(graph, values[i], old, updates[k])


def _own_objects(graph: Graph, updates: list[Node], values: list[Node], results: Results) -> None:
    """Two tensor objects of one memory are two nodes: an alias says that they are not the same."""
    wholes = dict(zip(results.mutated, updates, strict=True))
    places = graph.find_nodes(op="placeholder")
    placed: dict[int, Node] = {}
    for i, (alias, thing) in enumerate(zip(results.aliases, results.objects, strict=True)):
        whole = None if alias is None else wholes.get(alias, places[alias])
        is_input = thing < 0
        if thing in placed:
            values[i] = placed[thing]
        elif (values[i] is whole and not is_input) or values[i] in placed.values():
            values[i] = new_node(graph, aten.alias.default, (values[i],), like=values[i])
        placed[thing] = values[i]


def _rebase(graph: Graph, node: Node, old: Node, new: Node) -> Node:
    """A copy of the chain of views from `old` to `node`, starting at `new`."""
    if node is old:
        return new
    source: Any = node.args[0]
    copied = call_node(
        graph, node.target, (_rebase(graph, source, old, new), *node.args[1:]), dict(node.kwargs)
    )
    copied.meta.update(node.meta)
    return copied
