"""FX conventions between capture, graph and lower."""

from __future__ import annotations

import linecache
from dataclasses import dataclass

from torch.fx import Graph, GraphModule, Node, graph_module

from torchweld.ir.sizes import Size

VAL = "val"  # node.meta[VAL]: the FakeTensor (or tuple of them) that the node produces
LOC = "loc"  # node.meta[LOC]: base.loc.Loc of the user line
ORIGIN = "origin"  # node.meta[ORIGIN]: name of the captured node it came from
OWNED = "owned"  # node.meta[OWNED]: True for a placeholder that is a module's parameter or buffer
SETTINGS = "torchweld"  # graph_module.meta[SETTINGS]: GraphSettings


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """How a captured graph is to be compiled.

    freeze: parameters and buffers never change in place, as somebody has promised.
    cuda_graphs: True wherever possible, False never, None where they pay.
    """

    freeze: bool = False
    cuda_graphs: bool | None = None


@dataclass(frozen=True, slots=True)
class GraphPair:
    """A functional ATen graph, and how its outputs map back to the captured graph's.

    forward: placeholders in the captured graph's input order; call_function nodes are OpOverloads
        without mutation and without aliasing outputs other than views; output node is the tuple
        (*updated inputs, *outputs).
    mutated: input positions whose new values come first among the outputs, in this order: the
        value must be copied into that input.
    aliases: for each real output, the input position that it is an alias of (same object or view),
        or None. An aliasing output's node is a chain of views of the (updated) input.
    sizes: where each symbol is read that a size or argument in the graph is made of (ir/sizes.py);
        its numbers are our torch.SymInts then. Empty if all of them are plain.
    backward, saved: for the training work; None and () for inference.
    """

    forward: Graph
    mutated: tuple[int, ...]
    aliases: tuple[int | None, ...]
    backward: Graph | None = None
    saved: tuple[Node, ...] = ()
    sizes: tuple[Size, ...] = ()


def dismantle(gm: GraphModule) -> None:
    """Take a graph apart that nobody needs any more: its nodes refer to one another, and with them
    everything in their metadata would wait for the garbage collector. The text of its code, which
    torch.fx keeps for tracebacks for ever, is dropped as well."""
    graph = gm.graph
    name = type(gm).forward.__code__.co_filename
    if graph_module._loader.eval_cache.pop(name, None) is not None:
        linecache.cache.pop(name, None)
    for node in reversed(graph.nodes):
        graph.erase_node(node)
        node.meta.clear()
    gm.__dict__.clear()
    graph.__dict__.clear()
