"""The rewrites in order. One that may refuse works on a copy, which is dropped if it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.base.events import emit
from torchweld.graph.rewrites.attention import KERNELS, fuse_attention, name_attention
from torchweld.graph.rewrites.attention_operands import ATTENTION, prepare_attention
from torchweld.graph.rewrites.convolution import channels_last, conv, split_bias
from torchweld.graph.rewrites.masks import MASKED, settle_masks
from torchweld.graph.rewrites.matmul import PRODUCTS, fuse_activations, name_gelu
from torchweld.graph.tidy import drop_dead
from torchweld.ir.graph import VAL, GraphPair

aten = torch.ops.aten

@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite. of: operators of which a graph must have one. refuses: it may find, halfway
    through, that it cannot keep what must be kept.
    """

    name: str
    run: Callable[[Graph], None]
    of: frozenset[OpOverload]
    refuses: bool = False


REWRITES = (
    Rewrite("attention_name", name_attention, frozenset(KERNELS)),
    Rewrite("attention", fuse_attention, frozenset((aten.bmm.default,)), refuses=True),
    Rewrite("masks", settle_masks, frozenset(MASKED)),
    Rewrite("attention_operands", prepare_attention, frozenset((ATTENTION,)), refuses=True),
    Rewrite("gelu", name_gelu, frozenset((aten.tanh.default,))),
    Rewrite("epilogues", fuse_activations, frozenset(PRODUCTS)),
    Rewrite("conv_bias", split_bias, frozenset((conv,))),
    Rewrite("channels_last", channels_last, frozenset((conv,)), refuses=True),
)


def rewrite(pair: GraphPair, cfg: Config) -> GraphPair:
    """The pair with every rewrite that `cfg.skip` does not name."""
    for row in REWRITES:
        if row.name in cfg.skip or not any(n.target in row.of for n in pair.forward.nodes):
            continue
        graph = _copy(pair.forward) if row.refuses else pair.forward
        try:
            row.run(graph)
        except Unsupported as error:
            emit("graph", f"no {row.name}", error.why, code=error.code, why=error.why)
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
