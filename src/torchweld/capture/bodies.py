"""Graphs inside of graph nodes: functions that torch runs in an operator of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx import Graph, Node

from torchweld.base.loc import Loc
from torchweld.capture.values.base import TensorValue
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.nested import memory_of

_C: Any = torch._C._functorch


class Body:
    """The graph of such a function while it is captured.

    stop: the instruction before which the capture could end to be without it; 0 if there is none.
    taken: nodes of the graph around it -> the inputs that they became. free: their values.
    """

    __slots__ = ("at", "free", "graph", "name", "own", "stop", "taken")

    def __init__(self, name: str, at: Loc, stops: tuple[int, ...]) -> None:
        self.name = name
        self.at = at
        self.stop = stops[0] if stops else 0
        self.graph = Graph()
        self.own = 0
        self.taken: dict[Node, Node] = {}
        self.free: list[TensorValue] = []

    def input(self, fake: torch.Tensor) -> Node:
        """An input that the function is called with."""
        node = self.graph.placeholder(f"given_{self.own}")
        node.meta[VAL] = fake
        self.own += 1
        return node

    def take(self, outer: Node, x: TensorValue) -> Node:
        """The input that stands for a tensor from around the function."""
        found = self.taken.get(outer)
        if found is None:
            found = self.taken[outer] = self.graph.placeholder(f"free_{len(self.taken)}")
            found.meta[VAL] = outer.meta.get(VAL)
            found.meta[LOC] = outer.meta.get(LOC)
            self.free.append(x)
        return found


def is_transformed(x: torch.Tensor) -> bool:
    """Whether a tensor is what a function inside a transform of torch.func sees."""
    return bool(_C.is_functorch_wrapped_tensor(x))


def memory_behind(x: torch.Tensor) -> int:
    """What memory a tensor has, or the one that a transform has wrapped."""
    while is_transformed(x):
        x = _C.get_unwrapped(x)
    return memory_of(x)


def wants_gradient(x: torch.Tensor) -> bool:
    """Whether a tensor requires a gradient, or what a transform has wrapped does."""
    while is_transformed(x):
        if x.requires_grad:
            return True
        x = _C.get_unwrapped(x)
    return x.requires_grad


def transforms_around() -> set[Any]:
    """The kinds of transforms that are under way."""
    return {level.key() for level in _C.get_interpreter_stack() or ()}


def in_transform() -> bool:
    return _C.maybe_current_level() is not None


@contextmanager
def _cleared() -> Iterator[None]:
    with temporarily_clear_interpreter_stack():
        yield


def outside_of_transforms() -> Any:
    """A block in which no transform is under way."""
    return _cleared() if in_transform() else nullcontext()
