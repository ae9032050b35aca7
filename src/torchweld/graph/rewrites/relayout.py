"""Runs a graph again on fakes after some of its values got other strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.base.errors import Unsupported
from torchweld.graph.layout import memory_order, same_strides
from torchweld.graph.rewrites.node import new_node, run_fake
from torchweld.graph.schema import view_chain
from torchweld.ir.graph import VAL
from torchweld.ir.predicted import is_dense

aten = torch.ops.aten

# These address memory by strides: they need the layout that they were recorded with.
_BY_STRIDES = frozenset(
    (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)
)


class Relayout:
    """original: the values whose strides changed, as they were when the graph was recorded."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.original: dict[Node, Any] = {}

    def run(self, prepare: Callable[[Node], Any] = lambda node: None) -> None:
        """Bring every node up to date, and give the outputs the strides that they had.

        prepare: may change the operands of a node; then it answers the node's new value.
        Errors: Unsupported W201 where a layout cannot be kept; the graph is then of no use.
        """
        for node in list(self.graph.nodes):
            if node.op == "call_function" and node not in self.original:
                value = prepare(node)
                if value is not None:
                    self._update(node, value)
                elif any(n in self.original for n in node.all_input_nodes):
                    self._adapt(node)
        if self.original:
            self._restore_outputs()

    def _adapt(self, node: Node) -> None:
        if node.target in _BY_STRIDES:
            self._restore_operands(node)
            return
        try:
            after = run_fake(node, node.target, node.args, node.kwargs)
        except (RuntimeError, ValueError):  # a view of what is no longer contiguous
            self._restore_operands(node)
            return
        if self._is_spared(node, after):
            (source,) = node.args
            assert isinstance(source, Node)
            node.replace_all_uses_with(source)
            self.graph.erase_node(node)
            return
        self._update(node, after)

    def _is_spared(self, node: Node, after: Any) -> bool:
        """Whether `node` is a copy whose elements lie in its operand as they are to lie now.

        It stays for what asks for memory of its own, or addresses it by strides.
        """
        if node.target is not aten.clone.default or moved(node.meta[VAL], after):
            return False
        source = node.args[0]
        assert isinstance(source, Node)
        if moved(source.meta[VAL], after) or not is_dense(after.shape, after.stride()):
            return False
        return not any(u.op == "output" or u.target in _BY_STRIDES for u in node.users)

    def _update(self, node: Node, value: Any) -> None:
        if moved(node.meta[VAL], value):
            self.original[node] = node.meta[VAL]
        node.meta[VAL] = value

    def _restore_outputs(self) -> None:
        node = self.graph.output_node()
        owners: dict[Node, set[Node]] = {}
        for n in node.all_input_nodes:
            owners.setdefault(view_chain(n)[-1], set()).add(n)
        for root, views in owners.items():
            if root.op != "placeholder" and len(views) > 1 and views & self.original.keys():
                raise Unsupported("W201", "two outputs share memory that got another layout")
        self._restore_operands(node)
        if node.meta[VAL]:  # empty in joint graphs
            node.meta[VAL] = tuple(n.meta[VAL] for n in node.args[0])  # type: ignore[union-attr]

    def _restore_operands(self, node: Node) -> None:
        with self.graph.inserting_before(node):
            for x in node.all_input_nodes:
                if x in self.original:
                    node.replace_input_with(x, self._restored(x, self.original[x]))

    def _restored(self, x: Node, like: Any) -> Node:
        """`x` in the layout of `like`."""
        if not isinstance(like, Tensor) or not is_dense(like.shape, like.stride()):
            raise Unsupported("W201", f"{x} cannot get its strides back")
        order = memory_order(like.shape, like.stride())
        inverse = [order.index(d) for d in range(like.dim())]
        dense = {"memory_format": torch.contiguous_format}
        if order == inverse == sorted(order):
            return new_node(self.graph, aten.clone.default, (x,), dense, like=x)
        shuffled = new_node(self.graph, aten.permute.default, (x, order), like=x)
        copied = new_node(self.graph, aten.clone.default, (shuffled,), dense, like=x)
        return new_node(self.graph, aten.permute.default, (copied, inverse), like=x)


def moved(before: Any, after: Any) -> bool:
    """Whether the strides of a value changed."""
    if isinstance(before, Tensor):
        return isinstance(after, Tensor) and not same_strides(before, after)
    if isinstance(before, (tuple, list)):
        return any(map(moved, before, after))
    return False
