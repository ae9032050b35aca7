"""cut: where a joint graph is divided into forward and backward, and what is saved in between.

A backward graph may compute cheap values of the forward again instead of having them saved. What
is saved is a minimum cut over bytes; never computed again are random numbers, reductions,
products, and whatever else has no place inside a generated loop. Of what torch.utils.checkpoint has
around it, only random numbers are not computed again, nor what the program asks to keep, and
results are kept. A memory budget below 1 lets more be computed again (graph/budget.py).
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.graph.budget import within
from torchweld.graph.extract import Extraction, ancestors, ends_of
from torchweld.graph.mincut import INFINITE, Network
from torchweld.graph.outputs import Results
from torchweld.graph.rewrites.aligned import PRODUCTS
from torchweld.graph.rewrites.node import new_node
from torchweld.graph.rewrites.run import rewrite
from torchweld.graph.schema import (
    draws,
    draws_here,
    has_effect_here,
    is_pointwise,
    is_view,
    view_chain,
)
from torchweld.graph.separate import separate
from torchweld.graph.symbols import sizes_of
from torchweld.graph.tidy import drop_dead
from torchweld.graph.verify import verify
from torchweld.ir.graph import AGAIN, KEEP, LOC, ORIGIN, VAL, GraphPair, Joint, Returned
from torchweld.ir.predicted import is_dense
from torchweld.ir.size_node import hint_of

aten = torch.ops.aten

# cheap beside the operators that are marked as pointwise
_CHEAP = frozenset((
    aten._to_copy.default, aten.full.default, aten.full_like.default, aten.zeros.default,
    aten.ones.default, aten.zeros_like.default, aten.ones_like.default, aten.new_zeros.default,
    aten.new_ones.default, aten.new_full.default, aten.scalar_tensor.default,
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.constant_pad_nd.default,
    aten.slice_scatter.default, aten.select_scatter.default, aten.cat.default, aten.stack.default,
    aten.tril.default, aten.triu.default,
))  # fmt: skip
# what reads what a loop has just computed: nothing has to be in memory for it
_READS_LOOPS = frozenset((
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default,
    aten.amin.default, aten._log_softmax_backward_data.default, aten._softmax_backward_data.default,
    aten.nll_loss_forward.default,
))  # fmt: skip


_GAPS = "a backward reads an input with gaps that may change before it"
# how much more it costs to save what is to be computed again
_UNWANTED = 64


@dataclass(frozen=True, slots=True)
class Traced:
    """A joint graph as recorded; fields as in Joint. collected: its outputs, before it was tidied.

    owners: for each gradient, the name of the node that owned its memory when it was recorded.
    """

    graph: Graph
    collected: Results
    tangents: tuple[Node | None, ...]
    wanted: tuple[int, ...]
    unreached: tuple[int, ...]
    kept_inputs: tuple[int, ...]
    kept_results: tuple[int, ...]
    owners: tuple[str, ...]
    returned: tuple[Returned, ...]
    bases: tuple[tuple[int, bool], ...]
    reread: tuple[int, ...]

    @property
    def updates(self) -> tuple[Node, ...]:
        return self.collected.updates

    @property
    def inputs(self) -> list[Node]:
        places = self.graph.find_nodes(op="placeholder")
        return [p for p in places if p not in self.tangents]


def cut(traced: Traced, cfg: Config) -> Joint:
    """The forward graph, and what it saves."""
    graph = traced.graph
    _own_gradients(traced)
    updates, results, _ = ends_of(graph)
    chosen = _Choice(traced, results)
    inputs = traced.inputs
    kept = within(chosen.saved, chosen.dear(), cfg.memory_budget)
    given = {results[k] for k in traced.kept_results} | {inputs[i] for i in traced.kept_inputs}
    saved = tuple(n for n in kept if n not in given)
    forward = _forward(traced, updates, results, saved, chosen.shared, cfg)
    return Joint(
        forward=forward,
        graph=graph,
        tangents=traced.tangents,
        gradients=traced.wanted,
        unreached=traced.unreached,
        kept_inputs=traced.kept_inputs,
        kept_results=traced.kept_results,
        saved=saved,
        returned=traced.returned,
        bases=traced.bases,
        reread=traced.reread,
        draws=any(draws(n.target) for n in forward.forward.nodes),
    )


def _own_gradients(traced: Traced) -> None:
    """Clone gradients that share memory only since copies were removed."""
    output = traced.graph.output_node()
    updates, results, grads = ends_of(traced.graph)
    owners: dict[Node, str] = {}
    changed = list(grads)
    for k, (grad, owner) in enumerate(zip(grads, traced.owners, strict=True)):
        root = view_chain(grad)[-1]
        given = root.op == "placeholder" and root.name != owner
        if given or owners.setdefault(root, owner) != owner:
            with traced.graph.inserting_before(output):
                changed[k] = new_node(traced.graph, aten.clone.default, (grad,), like=grad)
    output.args = ((updates, results, tuple(changed)),)


class _Choice:
    """What is saved of one joint graph.

    shared: owners of memory that the user may change between forward and backward although eager
    does not mind: of inputs and results that it does not keep. They are saved as copies.
    """

    def __init__(self, traced: Traced, results: Sequence[Node]) -> None:
        self.graph = traced.graph
        inputs = traced.inputs
        self.kept = {inputs[i] for i in traced.kept_inputs}
        self.kept.update(results[k] for k in traced.kept_results)
        owned = {view_chain(results[k])[-1] for k in traced.kept_results}
        owners = {view_chain(r)[-1] for r in (*results, *traced.collected.updates)}
        self.shared = frozenset(({*inputs} | owners) - self.kept - owned)
        self.tangent_side = _depending(self.graph, [t for t in traced.tangents if t is not None])
        self.gradients = set(ends_of(self.graph)[2])
        self.needed = ancestors(self.gradients)
        self.ends = [n for n in self.needed if n not in self.tangent_side and (
            any(u in self.tangent_side and u in self.needed for u in n.users)
            or n in self.gradients)]  # fmt: skip
        self.allowed: frozenset[Node] = frozenset()
        self.places = {n: i for i, n in enumerate(self.graph.nodes)}

    def dear(self) -> list[Node]:
        """The nodes that could be computed again, but are so only to save memory."""
        behind = ancestors(self.ends, self.kept)
        return [n for n in self.graph.nodes if n in behind and n.op == "call_function"
                and n.target is not operator.getitem and not is_view(n.target)
                and not (self._again(n) or has_effect_here(n) or n.meta.get(KEEP))]  # fmt: skip

    def saved(self, allowed: frozenset[Node]) -> tuple[list[Node], int]:
        """The nodes to save, in the order in which they are computed, and their bytes.

        allowed: dear nodes that may be computed again. Errors: Unsupported W201 if nothing that can
        be saved is enough.
        """
        self.allowed = allowed
        ends = self.ends
        self.network = Network()
        self.source, self.sink = self.network.node(), self.network.node()
        self.gates: dict[Node, tuple[int, int]] = {}
        for end in ends:
            if end not in self.kept:
                self.network.edge(self._gate(end)[1], self.sink, INFINITE)
        side = self.network.sink_side(self.source, self.sink)
        found = {n for n, (a, b) in self.gates.items() if a not in side and b in side}
        size = sum(map(_bytes, found))
        # a backward graph with these values saved also reads what is kept anyway
        read = ancestors(ends, found | self.kept)
        if any(n.op == "placeholder" and n not in self.kept and n not in found for n in read):
            raise Unsupported("W201", _GAPS)
        found |= read & self.kept
        return sorted(found, key=self._order), size

    def _order(self, node: Node) -> tuple[int, int]:
        """By what is computed: the nodes that take one of several results stand anywhere behind."""
        source = node.args[0] if node.target is operator.getitem else node
        assert isinstance(source, Node)
        return self.places[source], self.places[node]

    def _gate(self, first: Node) -> tuple[int, int]:
        """The node's two ends in the network; what it is computed from is added with it."""
        waiting = [] if first in self.gates else [first]
        for node in waiting:
            self.gates.setdefault(node, (self.network.node(), self.network.node()))
        while waiting:
            node = waiting.pop()
            self.network.edge(*self.gates[node], self._weight(node))
            if not self._again(node):
                self.network.edge(self.source, self.gates[node][0], INFINITE)
                continue
            for a in node.all_input_nodes:
                if a in self.kept:
                    continue
                if a not in self.gates:
                    self.gates[a] = (self.network.node(), self.network.node())
                    waiting.append(a)
                self.network.edge(self.gates[a][1], self.gates[node][0], INFINITE)
        return self.gates[first]

    def _weight(self, node: Node) -> int:
        """Bytes that are moved to save the node: what is in memory anyway is only read again, all
        else, and copies, are written too.

        Views are never saved, but what they are views of. Nor is what a copy cannot be laid out as.
        """
        if not isinstance(node.meta[VAL], Tensor) or len(view_chain(node)) > 1:
            return INFINITE
        if node in self.shared and not _is_dense(node):
            return INFINITE
        bytes_ = _bytes(node) * (_UNWANTED if is_asked(node) else 1)
        there = is_lent(node, self.shared) or (
            node not in self.shared and self._is_written(node))  # fmt: skip
        return bytes_ if there else 2 * bytes_

    def _is_written(self, node: Node) -> bool:
        """Whether the forward has the node in memory, whatever is saved."""
        if not is_cheap(node.target):
            return True
        for user in node.users:
            if is_view(user.target):
                if self._is_written(user):
                    return True
            elif user not in self.tangent_side and not _reads_loops(user.target):
                return True
        return False

    def _again(self, node: Node) -> bool:
        """Whether a backward graph may compute the node again."""
        if node.op == "placeholder" or node.meta.get(KEEP):
            return False
        if node.target is operator.getitem or is_view(node.target):
            source = node.args[0]
            if not isinstance(source, Node):
                return True  # the conjugate of a number
            return (is_view(node.target) or is_view(source.target) or is_asked(node)
                    or source in self.allowed)  # fmt: skip
        if is_asked(node) or node in self.allowed:
            return True
        return is_cheap(node.target) and not self._in_memory(node)

    def _in_memory(self, node: Node) -> bool:
        """Whether an operator of the backward that is no loop reads the node, so that it would have
        to be written anyway."""
        for user in node.users:
            if user in self.tangent_side and user in self.needed and not (
                    is_view(user.target) or _reads_loops(user.target)):  # fmt: skip
                return True
            if is_view(user.target) and self._in_memory(user):
                return True
        return False


def _is_dense(node: Node) -> bool:
    """Whether a clone has the same strides."""
    value: Tensor = node.meta[VAL]
    return value.is_contiguous() or is_dense(value.shape, value.stride())


def _bytes(node: Node) -> int:
    value: Tensor = node.meta[VAL]
    return max(int(hint_of(value.numel())) * value.element_size(), 1)


def is_asked(node: Node) -> bool:
    """Whether the program asks to compute the node again, which can be done."""
    source = node.args[0] if node.target is operator.getitem else node
    assert isinstance(source, Node)
    return bool(node.meta.get(AGAIN, source.meta.get(AGAIN))) and not draws_here(source)


def is_cheap(target: Any) -> bool:
    """Whether the operator is computed inside of loops that read its result."""
    return (is_pointwise(target) and not draws(target)) or target in _CHEAP


def _reads_loops(target: Any) -> bool:
    return is_cheap(target) or target in _READS_LOOPS or target == "output"


def _depending(graph: Graph, starts: Iterable[Node]) -> set[Node]:
    found = set(starts)
    for node in graph.nodes:
        if node.op != "output" and any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def _forward(traced: Traced, updates: Sequence[Node], results: Sequence[Node],
             saved: Sequence[Node], shared: frozenset[Node], cfg: Config) -> GraphPair:  # fmt: skip
    """The graph that computes updated inputs, results and saved values, and checks what is to be
    checked."""
    taken = Extraction()
    for place in traced.inputs:
        taken.place(place)
    ends = [*updates, *results, *saved]
    behind = _depending(traced.graph, [t for t in traced.tangents if t is not None])
    checks = [n for n in traced.graph.nodes if n.op == "call_function" and n not in behind
              and not n.users and has_effect_here(n)]  # fmt: skip
    needed = ancestors([*ends, *checks])
    for node in traced.graph.nodes:
        if node in needed:
            taken.take(node)
    count = len(updates) + len(results)
    nodes = [taken.nodes[n] for n in ends]
    graph = taken.graph
    output = graph.output(tuple(nodes[:count]))
    output.meta.update({VAL: tuple(n.meta[VAL] for n in nodes[:count]), ORIGIN: "output",
                        LOC: None})  # fmt: skip
    collected = replace(traced.collected, updates=tuple(nodes[: len(updates)]),
                        values=tuple(nodes[len(updates) : count]))  # fmt: skip
    separate(graph, collected)
    if any(n in shared and not _is_dense(n) for n in saved):
        raise Unsupported("W201", _GAPS)
    kept: list[Node] = []
    for n in saved:
        if is_lent(n, shared):
            kept.append(taken.nodes[n])
            _return_copy(graph, taken.nodes[n])
            continue
        with graph.inserting_before(output):
            kept.append(_copy(graph, taken.nodes[n]) if n in shared else taken.nodes[n])
    returned: Any = output.args[0]
    output.args = ((*returned, *kept),)
    output.meta[VAL] = tuple(n.meta[VAL] for n in (*returned, *kept))
    drop_dead(graph, frozenset())
    aliases = (*collected.aliases, *(None for _ in saved))
    pair = rewrite(GraphPair(graph, collected.mutated, aliases, sizes_of(graph)), cfg)
    if cfg.verify:
        verify(pair)
    return pair


def is_lent(node: Node, shared: Container[Node]) -> bool:
    """Whether of a product's result that is returned too the caller gets the copy.

    On a GPU an operator's result stays in the CUDA graph, and what is returned of it is a copy in
    any case (docs/cuda.md): our kernels write this one where it is to be, beside what they read.
    """
    return node in shared and node.target in PRODUCTS and node.meta[VAL].device.type == "cuda"


def _return_copy(graph: Graph, root: Node) -> None:
    """Let the outputs that are `root`, or views of it, be so of a copy."""
    output = graph.output_node()
    copies: dict[Node, Node] = {}
    with graph.inserting_before(output):
        for end in output.all_input_nodes:
            chain = view_chain(end)
            if chain[-1] is not root:
                continue
            for node in reversed(chain):
                if node not in copies:
                    copies[node] = _copy(graph, root) if node is root else new_node(
                        graph, node.target, (copies[node.args[0]], *node.args[1:]),  # type: ignore[index]
                        dict(node.kwargs), like=node)  # fmt: skip
    for end in output.all_input_nodes:
        if end in copies:
            output.replace_input_with(end, copies[end])


def _copy(graph: Graph, node: Node) -> Node:
    return new_node(graph, aten.clone.default, (node,), like=node)
