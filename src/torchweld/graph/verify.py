"""Checks the invariants of a functional ATen graph.

- only placeholders, call_function nodes and one output node, placeholders first;
- a call is an OpOverload that writes to no argument, or getitem on a node with several results;
- every value is a FakeTensor of the placeholders' mode, or a tuple of them;
- the output is a flat tuple of single-tensor nodes: the updated inputs, then one per alias entry;
- a mutated position is an input, named once, and its new value has its shape and dtype;
- an output that is an alias is reached by views from the (updated) input, and no other output is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from torchweld.base.errors import InternalError
from torchweld.graph.schema import changes_arguments, view_chain
from torchweld.ir.graph import VAL, GraphPair
from torchweld.ir.size_node import is_number


def verify(pair: GraphPair) -> None:
    """Raise InternalError naming the node and the invariant that does not hold."""
    for check in _CHECKS:
        check(pair)


def _need(claim: bool, node: Node, what: str) -> None:
    if not claim:
        raise InternalError(f"graph node {node.name} ({node.target}): {what}")


def _node_kinds(pair: GraphPair) -> None:
    pair.forward.lint()
    inputs_over = False
    for node in pair.forward.nodes:
        _need(node.op in ("placeholder", "call_function", "output"), node, f"is a {node.op}")
        if node.op == "placeholder":
            _need(not inputs_over, node, "is a placeholder after a call")
        inputs_over = inputs_over or node.op != "placeholder"


def _targets(pair: GraphPair) -> None:
    for node in pair.forward.find_nodes(op="call_function", target=operator.getitem):
        parent = node.args[0]
        several = isinstance(parent, Node) and isinstance(parent.meta[VAL], tuple)
        _need(several, node, "takes an item of a single value")
    for node in pair.forward.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        _need(isinstance(node.target, OpOverload), node, "is not an OpOverload")
        _need(not changes_arguments(node.target, node.args, node.kwargs), node, "writes arguments")


def _values(pair: GraphPair) -> None:
    modes = set()
    for node in pair.forward.nodes:
        _need(VAL in node.meta, node, "has no value")
        value = node.meta[VAL]
        if node.op == "output" or (node.op == "placeholder" and _is_number(value)):
            continue
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if part is None:
                continue
            _need(isinstance(part, FakeTensor), node, f"has a value {type(part).__name__}")
            modes.add(part.fake_mode)
    if len(modes) > 1:
        raise InternalError("graph: values of several fake modes")


def _is_number(value: object) -> bool:
    return isinstance(value, int) or is_number(value)


def _outputs(pair: GraphPair) -> None:
    out = pair.forward.output_node()
    results = out.args[0]
    _need(isinstance(results, (tuple, list)), out, "is not a tuple")
    _need(len(results) == len(pair.mutated) + len(pair.aliases), out, "has another length")  # type: ignore[arg-type]
    for result in results:  # type: ignore[union-attr]
        single = isinstance(result, Node) and isinstance(result.meta[VAL], Tensor)
        _need(single, out, f"returns {result}")


def _mutations(pair: GraphPair) -> None:
    out = pair.forward.output_node()
    places = pair.forward.find_nodes(op="placeholder")
    _need(len(set(pair.mutated)) == len(pair.mutated), out, "an input is updated twice")
    for i, new in zip(pair.mutated, out.args[0], strict=False):  # type: ignore[arg-type]
        old = places[i].meta[VAL]
        same = new.meta[VAL].shape == old.shape and new.meta[VAL].dtype == old.dtype
        _need(same, new, f"updates input {i} of another shape or dtype")


def _aliases(pair: GraphPair) -> None:
    out = pair.forward.output_node()
    results: tuple[Node, ...] = out.args[0]  # type: ignore[assignment]
    places = pair.forward.find_nodes(op="placeholder")
    present = {i: places[i] for i in range(len(places))}
    present.update(zip(pair.mutated, results, strict=False))
    for result, alias in zip(results[len(pair.mutated) :], pair.aliases, strict=True):
        chain = view_chain(result)
        if alias is None:
            _need(chain[-1].op != "placeholder", result, "is a view of an input without saying so")
        else:
            _need(present[alias] in chain, result, f"is not a view of input {alias}")


_CHECKS: tuple[Callable[[GraphPair], None], ...] = (
    _node_kinds,
    _targets,
    _values,
    _outputs,
    _mutations,
    _aliases,
)
