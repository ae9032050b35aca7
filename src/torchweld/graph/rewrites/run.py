"""The rewrites in order. One that refuses halfway leaves a graph that is good for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch._ops import OpOverload
from torch.fx import Graph

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.base.events import emit
from torchweld.graph.rewrites.aligned import PRODUCTS as MULTIPLIED
from torchweld.graph.rewrites.aligned import align_operands
from torchweld.graph.rewrites.attention import KERNELS, fuse_attention, name_attention
from torchweld.graph.rewrites.attention_operands import ATTENTION, prepare_attention
from torchweld.graph.rewrites.convolution import (
    channels_last,
    conv,
    conv_backward,
    split_bias,
    split_bias_gradient,
)
from torchweld.graph.rewrites.embedding import embedding_backward, sum_rows
from torchweld.graph.rewrites.masks import MASKED, settle_masks
from torchweld.graph.rewrites.matmul import PRODUCTS, fuse_activations, name_gelu
from torchweld.graph.tidy import drop_dead, name_blanks
from torchweld.ir.graph import GraphPair
from torchweld.ir.launches import LAUNCHED

aten = torch.ops.aten

@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite. of: operators of which a graph must have one."""

    name: str
    run: Callable[[Graph], None]
    of: frozenset[OpOverload]


REWRITES = (
    Rewrite("launches", name_blanks, frozenset((LAUNCHED,))),
    Rewrite("attention_name", name_attention, frozenset(KERNELS)),
    Rewrite("attention", fuse_attention, frozenset((aten.bmm.default,))),
    Rewrite("masks", settle_masks, frozenset(MASKED)),
    Rewrite("attention_operands", prepare_attention, frozenset((ATTENTION,))),
    Rewrite("gelu", name_gelu, frozenset((aten.tanh.default,))),
    Rewrite("epilogues", fuse_activations, frozenset(PRODUCTS)),
    Rewrite("aligned", align_operands, frozenset(MULTIPLIED)),
    Rewrite("embedding_rows", sum_rows, frozenset((embedding_backward,))),
    Rewrite("conv_bias", split_bias, frozenset((conv,))),
    Rewrite("conv_bias_gradient", split_bias_gradient, frozenset((conv_backward,))),
    Rewrite("channels_last", channels_last, frozenset((conv, conv_backward))),
)
# those that a joint graph needs before it is divided: they decide what is saved, and how it lies
JOINT = frozenset(("conv_bias", "conv_bias_gradient", "channels_last"))


class RefusedError(Exception):
    """A rewrite found halfway through that it cannot keep what must be kept. name: which."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def rewrite(pair: GraphPair, cfg: Config) -> GraphPair:
    """The pair with every rewrite that `cfg.skip` does not name.

    Errors: RefusedError; then the graph has to be made again, without that rewrite. That happens
    to few graphs, and costs less than a copy of each.
    """
    _run(REWRITES, pair.forward, cfg)
    return pair


def rewrite_joint(graph: Graph, cfg: Config) -> None:
    """What is to be done to a joint graph as a whole. Errors: RefusedError, as above."""
    _run([row for row in REWRITES if row.name in JOINT], graph, cfg)


def _run(rows: Iterable[Rewrite], graph: Graph, cfg: Config) -> None:
    there = {n.target for n in graph.nodes}
    for row in rows:
        if row.name in cfg.skip or there.isdisjoint(row.of):
            continue
        try:
            row.run(graph)
        except Unsupported as error:
            emit("graph", f"no {row.name}", error.why, code=error.code, why=error.why)
            raise RefusedError(row.name) from error
        drop_dead(graph, frozenset())
        there = {n.target for n in graph.nodes}
