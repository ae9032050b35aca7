"""Tensors from outside that the graph may not need."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from torchweld.capture.values.base import TensorValue, Value
from torchweld.ir.source import Source


class UnreadTensor(TensorValue):
    """A tensor from outside of which nothing is known yet but that it is there.

    Whoever asks for more makes it an input of the graph: `read` does, and fills `found` in.
    """

    __slots__ = ("found", "read")

    def __init__(self, source: Source, read: Callable[[], object]) -> None:
        Value.__init__(self, source)
        self.read = read
        self.found: TensorValue | None = None

    def known(self) -> TensorValue:
        if self.found is None:
            self.read()
        assert self.found is not None
        return self.found

    @property
    def fake(self) -> torch.Tensor:  # type: ignore[override]
        return self.known().fake

    @property
    def node(self) -> Node:  # type: ignore[override]
        return self.known().node

    @property
    def kind(self) -> type:  # type: ignore[override]
        return self.known().kind


class PassedTensor(TensorValue):
    """An argument: an input of the graph, until it turns out that nobody has looked at it.

    looked: whether somebody asked for its metadata, or recorded an operator with it. dropped:
    nobody did, so that it is no input after all.
    """

    __slots__ = ("dropped", "looked", "twin")

    def __init__(self, node: Node, fake: torch.Tensor, kind: type, source: Source) -> None:
        Value.__init__(self, source)
        self.node, self.twin, self.kind = node, fake, kind
        self.looked = self.dropped = False

    @property
    def fake(self) -> torch.Tensor:  # type: ignore[override]
        self.looked = True
        return self.twin


def twin_of(x: TensorValue) -> torch.Tensor:
    """The fake of a tensor, for one who only compares it: that is no look at it."""
    return x.twin if isinstance(x, PassedTensor) else x.fake


def look_alike(x: object, other: object) -> None:
    """What stands in the place of `other` is looked at if that one is."""
    if isinstance(x, PassedTensor) and not (isinstance(other, PassedTensor) and not other.looked):
        x.looked = True


def is_no_input(x: TensorValue) -> bool:
    """Whether a tensor from outside is none of the graph's inputs."""
    if isinstance(x, UnreadTensor):
        return x.found is None
    return isinstance(x, PassedTensor) and x.dropped
