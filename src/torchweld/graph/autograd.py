"""Whether a captured graph has to run under autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchweld.base.errors import Unsupported
from torchweld.graph.state import GRAD_SETTERS
from torchweld.ir.graph import VAL
from torchweld.ir.nested import lost_history
from torchweld.ir.takes import TAKES

_ENTERS: Any = torch.autograd.grad_mode._enter_inference_mode
_EXITS: Any = torch.autograd.grad_mode._exit_inference_mode


def takes_gradients(gm: GraphModule) -> bool:
    """Whether the graph holds a backward of its own."""
    return any(n.target in TAKES for n in gm.graph.nodes)


def needs_autograd(
    gm: GraphModule, fakes: Sequence[Tensor], grad_enabled: bool | None = None
) -> bool:
    """Whether some operator of the graph would record a backward in eager.

    fakes: the placeholders' values. grad_enabled: the grad mode at the graph's entry, by default
    the present one. The graph's own grad mode and inference mode calls are followed. A captured
    node whose meta value is known says itself whether it requires grad; else any tensor computed
    in grad mode from one that requires grad does.
    """
    enabled = torch.is_grad_enabled() if grad_enabled is None else grad_enabled
    outer: list[bool] = []
    waiting = iter(fakes)
    wants: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            if getattr(next(waiting), "requires_grad", False):  # which numbers do not
                wants.add(node)
        elif node.target in GRAD_SETTERS:
            enabled = bool(node.args[0])
        elif node.target is _ENTERS:
            outer.append(enabled)
            enabled = enabled and not (node.args[0] if node.args else True)
        elif node.target is _EXITS:
            enabled = outer.pop() if outer else enabled
        elif node.op != "output" and enabled and _records(node, wants):
            return True
    return False


def outputs_require_grad(gm: GraphModule) -> bool:
    """Whether an output of the captured graph requires grad, or may."""
    return any(not isinstance(v, Tensor) or v.requires_grad for v in _returned(gm))


def _returned(gm: GraphModule) -> list[Any]:
    """The captured values of the outputs."""
    (returned,) = gm.graph.output_node().args
    items = returned if isinstance(returned, (tuple, list)) else [returned]
    return [n.meta.get(VAL) for n in items if isinstance(n, Node)]


def check_views(gm: GraphModule) -> None:
    """Refuse to return a view that was made under no_grad and whose memory was written since:
    autograd forbids to use it, as it forbids to use eager's.

    To be asked before the graph is run on its fakes. Errors: Unsupported W201.
    """
    if any(isinstance(v, Tensor) and lost_history(v) for v in _returned(gm)):
        raise Unsupported("W201", "a view from no_grad of what was written since")


def check_writes(gm: GraphModule) -> None:
    """Refuse inputs that require grad and are changed, or require grad since they were changed;
    leaves can be changed only where nobody records it.

    Errors: Unsupported W201.
    """
    places = gm.graph.find_nodes(op="placeholder")
    for i in gm.meta.get("mutated", ()):
        value = places[i].meta.get(VAL)
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
            raise Unsupported("W201", f"input {i} is changed and requires grad")


def inference_inputs(gm: GraphModule) -> tuple[int, ...]:
    """The positions of the inputs that are inference tensors, whose versions nobody counts."""
    values = [n.meta.get(VAL) for n in gm.graph.find_nodes(op="placeholder")]
    return tuple(i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_inference())


def _records(node: Node, wants: set[Node]) -> bool:
    if node.target == "requires_grad_" or node.target in TAKES:
        return True
    value = node.meta.get(VAL)
    known = [x for x in _flat(value) if isinstance(x, Tensor)]
    if known:
        return any(x.requires_grad for x in known)
    return any(arg in wants for arg in node.all_input_nodes)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]
