"""The captured graph as a module, whose Python code is written when somebody asks for it.

Its outputs are what the frame needs, and results that nobody uses of operators that may raise
because of their data (ADR 0025): eager raises where they run, and no stage behind drops an output.
Other operators without users cannot be noticed and are dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import PythonCode
from torch.nn import Module

from torchweld.ir.graph import VAL
from torchweld.ir.raising import is_risky


class CapturedModule(GraphModule):
    """A GraphModule that the pipeline reads as a graph; user's backends may call and print it.

    Writing and compiling the code of a large graph takes as long as a twentieth of its capture.
    """

    def __init__(self, root: Module, graph: Graph, class_name: str = "Captured") -> None:
        self.__dict__["_postponed"] = True
        super().__init__(root, graph, class_name)

    def recompile(self) -> PythonCode | None:  # type: ignore[override]
        if self.__dict__.pop("_postponed", False):
            return None
        return super().recompile()

    @property
    def code(self) -> str:
        if "_code" not in self.__dict__:
            self.recompile()
        return super().code

    def __str__(self) -> str:
        self.code  # noqa: B018  it prints what is written
        return super().__str__()

    def forward(self, *args: Any) -> Any:
        """Write the code, which becomes the class's own forward, and run it."""
        if type(self).forward is CapturedModule.forward:  # else this is a bound method from before
            self.recompile()
        return type(self).forward(self, *args)


_WRITES = (operator.setitem, setattr, delattr)


def kept_results(graph: Graph, outputs: Iterable[Node]) -> list[Node]:
    """More outputs of a graph: one result of each operator that must run although it is unused."""
    live, kept = set(outputs), []
    for node in reversed(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        if any(user in live for user in node.users) or node in live or _writes(node):
            live.add(node)
        elif is_risky(node):
            live.add(node)
            kept.append(node)
    return [made for node in reversed(kept) if (made := _result(graph, node)) is not None]


def _writes(node: Node) -> bool:
    """Whether a call may do more than compute its result."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inplace = name.endswith("_") and not name.endswith("__")
    return (inplace or (name.startswith("i") and hasattr(operator, name))
            or node.target in _WRITES or "out" in node.kwargs)  # fmt: skip


def _result(graph: Graph, node: Node) -> Node | None:
    """A tensor without gradient out of what a call computes; None if it computes no tensor."""
    value = node.meta[VAL]
    if isinstance(value, tuple | list):
        at = next((i for i, x in enumerate(value) if isinstance(x, torch.Tensor)), None)
        if at is None:
            return None
        value, meta = value[at], node.meta
        node = graph.call_function(operator.getitem, (node, at))
        node.meta.update({**meta, VAL: value})
    if not isinstance(value, torch.Tensor):
        return None
    if not value.requires_grad:
        return node
    made = graph.call_method("detach", (node,))
    made.meta.update({**node.meta, VAL: value.detach()})
    return made
