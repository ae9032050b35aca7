"""What every rewrite needs: new nodes with their values, and looking through reshapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node

from torchweld.graph.schema import is_composite
from torchweld.ir.fake import composed
from torchweld.ir.graph import LOC, ORIGIN, VAL, call_node
from torchweld.ir.nested import tensors_in

aten = torch.ops.aten

RESHAPES = frozenset((aten.view.default, aten._unsafe_view.default, aten.reshape.default))


def new_node(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None,
             *, like: Node) -> Node:  # fmt: skip
    """A call at the graph's insertion point; its value comes from running `target` on fakes.

    like: the node that it stands for: its origin, line and fake mode are taken over.
    Errors: whatever the operator raises for these fakes; then nothing was inserted.
    """
    value = run_fake(like, target, args, kwargs or {})
    node = call_node(graph, target, args, kwargs or {})
    node.meta[VAL] = value
    node.meta[ORIGIN] = like.meta.get(ORIGIN, "")
    node.meta[LOC] = like.meta.get(LOC)
    return node


def run_fake(like: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The fake result of `target` on the values of nodes."""
    values = torch.fx.map_arg((args, kwargs), lambda n: n.meta[VAL])
    mode = fake_mode_of(like, *args)
    if isinstance(target, OpOverload) and not is_composite(target):
        return mode.dispatch(target, (), *values)
    with mode, torch.no_grad(), composed(tensors_in(values)):
        return target(*values[0], **values[1])


def fake_mode_of(*places: Any) -> Any:
    """The mode of the first fake tensor among the values of the nodes."""
    found: list[Any] = []

    def look(n: Node) -> Node:
        values = n.meta[VAL]
        for v in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(v, Tensor):
                found.append(v.fake_mode)  # type: ignore[attr-defined]
        return n

    torch.fx.map_arg(places, look)
    return found[0]


def tensor(node: Node) -> Tensor:
    """The fake tensor of a node."""
    value = node.meta[VAL]
    assert isinstance(value, Tensor)
    return value


def only_user(node: Node) -> Node | None:
    """The one node that reads `node`, once; None if there are more or none."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.all_input_nodes.count(node) == 1 else None


def behind_views(node: Node) -> Node | None:
    """The one reader of `node`, looking through reshapes that have one reader themselves."""
    user = only_user(node)
    while user is not None and user.target in RESHAPES:
        user = only_user(user)
    return user


def arg(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by name."""
    if place < len(node.args):
        return node.args[place]
    return node.kwargs.get(name, default)
