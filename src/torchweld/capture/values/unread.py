"""UnreadTensor: a tensor from outside that is no input of the graph yet."""

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
