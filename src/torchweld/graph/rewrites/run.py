"""The rewrites in order, each on a copy that is dropped if it cannot keep what must be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch.fx import Graph, Node

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.base.events import emit
from torchweld.graph.rewrites.attention import fuse_attention, name_attention
from torchweld.graph.rewrites.convolution import channels_last, split_bias
from torchweld.graph.rewrites.matmul import fuse_activations
from torchweld.graph.tidy import drop_dead
from torchweld.ir.graph import VAL, GraphPair

REWRITES: tuple[tuple[str, Callable[[Graph], None]], ...] = (
    ("attention_name", name_attention),
    ("attention", fuse_attention),
    ("epilogues", fuse_activations),
    ("conv_bias", split_bias),
    ("channels_last", channels_last),
)


def rewrite(pair: GraphPair, cfg: Config) -> GraphPair:
    """The pair with every rewrite that `cfg.skip` does not name."""
    for name, run in REWRITES:
        if name in cfg.skip:
            continue
        graph = _copy(pair.forward)
        try:
            run(graph)
        except Unsupported as error:
            emit("graph", f"no {name}", error.why, code=error.code, why=error.why)
            continue
        drop_dead(graph, frozenset())
        pair = replace(pair, forward=graph)
    return pair


def _copy(graph: Graph) -> Graph:
    """A graph of its own, with the values of its nodes."""
    new = Graph()
    nodes: dict[Node, Node] = {}
    outputs = new.graph_copy(graph, nodes)
    last = new.output(outputs)
    last.meta.update(graph.output_node().meta)
    assert VAL in last.meta
    return new
