"""backward: the backward graph for the results whose gradients are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from torchweld.base.config import Config
from torchweld.base.errors import InternalError
from torchweld.graph.extract import Extraction, ancestors, ends_of
from torchweld.graph.record import BACKWARD
from torchweld.graph.rewrites.node import fake_mode_of
from torchweld.graph.rewrites.run import rewrite
from torchweld.graph.schema import draws_here, view_chain
from torchweld.graph.symbols import place_unread, sizes_of
from torchweld.graph.tidy import drop_dead
from torchweld.graph.verify import verify
from torchweld.ir.graph import LOC, ORIGIN, VAL, Backward, GraphPair, Joint, call_node

aten = torch.ops.aten


def backward(joint: Joint, given: Sequence[bool], cfg: Config) -> Backward:
    """The graph of the gradients, with a tangent only for the results that have one.

    given: for each result, whether its gradient is there. As in eager, what would only be computed
    from gradients that are not there is not computed, and an input reached by no other has none.
    """
    made = _Cut(joint, given)
    _, _, gradients = ends_of(joint.graph)
    made.run(gradients)
    outputs: list[Node] = []
    places: list[int | None] = []
    for gradient in gradients:
        node = None if gradient in made.zero else made.part.nodes[gradient]
        if node is not None and node not in outputs:
            outputs.append(node)
        places.append(None if node is None else outputs.index(node))
    graph = made.part.graph
    output = graph.output(tuple(outputs))
    output.meta.update({VAL: tuple(n.meta[VAL] for n in outputs), ORIGIN: "output", LOC: None})
    drop_dead(graph, frozenset())
    inputs = graph.find_nodes(op="placeholder")
    aliases = tuple(_alias(node, inputs) for node in outputs)
    numbers = place_unread(graph, inputs[-1] if inputs else None)
    pair = rewrite(GraphPair(graph, (), aliases, sizes_of(graph)), cfg)
    if cfg.verify:
        verify(pair)
    return Backward(pair, tuple(places), numbers, made.unread(joint))


def _alias(node: Node, inputs: Sequence[Node]) -> int | None:
    root = view_chain(node)[-1]
    return inputs.index(root) if root in inputs else None


class _Cut:
    """The backward part of a joint graph, copied node by node; absent gradients are zero."""

    def __init__(self, joint: Joint, given: Sequence[bool]) -> None:
        self.part = Extraction()
        places = joint.graph.find_nodes(op="placeholder")
        inputs = [p for p in places if p not in joint.tangents]
        _, results, _ = ends_of(joint.graph)
        for node in (*(inputs[i] for i in joint.kept_inputs),
                     *(results[k] for k in joint.kept_results), *joint.saved):  # fmt: skip
            self.part.place(node)
        kept = len(joint.kept_inputs) + len(joint.kept_results)
        self.kept = list(self.part.nodes)[:kept]
        self.zero: set[Node] = set()
        for tangent, there in zip(joint.tangents, given, strict=True):
            if tangent is not None and there:
                self.part.place(tangent)
            elif tangent is not None:
                self.zero.add(tangent)
        self.depends = self._depends(joint)
        self._spread()

    def _depends(self, joint: Joint) -> dict[Node, None]:
        """The nodes that depend on a tangent, in order."""
        found: dict[Node, None] = {t: None for t in joint.tangents if t is not None}
        for node in joint.graph.nodes:
            if node.op == "call_function" and any(a in found for a in node.all_input_nodes):
                found[node] = None
        return found

    def _spread(self) -> None:
        """What has only gradients that are zero is zero: a backward is linear in them."""
        for node in self.depends:
            read = [a for a in node.all_input_nodes if a in self.depends]
            if node.op == "call_function" and all(a in self.zero for a in read):
                self.zero.add(node)

    def run(self, ends: Sequence[Node]) -> None:
        """Copy what these nodes need: gradients in the order in which autograd computes them, each
        right behind what is computed again for it."""
        needed = ancestors(n for n in ends if n not in self.zero)
        for node in self.depends:
            if node in needed and node not in self.zero:
                self._copy(node)
        for node in ends:
            if node not in self.zero:
                self._copy(node)

    def _copy(self, end: Node) -> None:
        """Copy the node and, before it, what it needs."""
        waiting = [end]
        while waiting:
            node = waiting[-1]
            missing = [a for a in node.all_input_nodes if not self._is_there(a)]
            if missing and not self._is_there(node):
                waiting.extend(missing)
                continue
            waiting.pop()
            if not self._is_there(node):
                self._take(node)

    def unread(self, joint: Joint) -> frozenset[int]:
        """The positions of kept values that eager does not read for the gradients that are given.

        It reads what an operator reads that was recorded for one of them; where none is known any
        more that read a value, it may be each of them.
        """
        readers: dict[Node, list[Node]] = {view_chain(n)[-1]: [] for n in self.kept}
        for node in joint.graph.nodes if readers else ():
            if node.meta.get(BACKWARD):
                for a in node.all_input_nodes:
                    readers.get(view_chain(a)[-1], []).append(node)
        there = self.part.nodes
        return frozenset(
            k for k, n in enumerate(self.kept)
            if (known := readers[view_chain(n)[-1]]) and not there[n].users
            and not any(r in there for r in known))  # fmt: skip

    def _is_there(self, node: Node) -> bool:
        return node in self.part.nodes or node in self.zero

    def _take(self, node: Node) -> None:
        # an operator on gradients has its place here even if torch says that it draws
        drawn = draws_here(node) and node not in self.depends
        if node.op == "placeholder" or drawn:
            raise InternalError(f"{node.name} is needed by a backward graph and was not saved")
        zeros = [a for a in node.all_input_nodes if a in self.zero]
        others = [a for a in node.all_input_nodes if a not in self.zero]
        if zeros and node.target is aten.add.Tensor and len(others) == 1 and not node.kwargs:
            (same,) = others
            if _alike(node, same):
                self.part.nodes[node] = self.part.nodes[same]
                return
        for a in zeros:
            self.part.nodes[a] = self._zeros(a)
        self.part.take(node)
        for a in zeros:
            del self.part.nodes[a]

    def _zeros(self, node: Node) -> Node:
        value: torch.Tensor = node.meta[VAL]
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        made = call_node(self.part.graph, aten.full.default, (list(value.shape), 0), options)
        with fake_mode_of(node), torch.no_grad():
            made.meta[VAL] = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        made.meta.update({ORIGIN: node.meta.get(ORIGIN, ""), LOC: node.meta.get(LOC)})
        return made


def _alike(a: Node, b: Node) -> bool:
    x, y = a.meta[VAL], b.meta[VAL]
    return bool(x.shape == y.shape and x.dtype == y.dtype and x.stride() == y.stride())
