"""GraphNumber: a Python float that is known only when the graph runs."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from torchweld.capture.values.base import Const, Value

# what stands for such a number where an operator runs on fakes
SAMPLE = 1.0


class RangeValue(Const):
    """A range of which some numbers vary. Reading `obj` fixes them.

    parts: start, stop and step.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Const, Const, Const]) -> None:
        Value.__init__(self)
        self.parts = parts

    @property
    def obj(self) -> object:  # type: ignore[override]
        start, stop, step = (p.obj for p in self.parts)
        return range(start, stop, step)  # type: ignore[call-overload]

    @property
    def sample(self) -> object:
        start, stop, step = (p.sample for p in self.parts)
        return range(start, stop, step)  # type: ignore[call-overload]

    def cls(self) -> type:
        return range

    def __repr__(self) -> str:
        return f"RangeValue{self.parts}"


class GraphNumber(Const):
    """A float that the graph computes as fn(*args), or reads of the tensor args[0] if fn is None.

    Reading `obj` breaks the graph, for the reason that `unknown` gives: who asks needs it now.
    added: what the frame had added to the tensor when it was read, if that was looked up then.
    """

    __slots__ = ("added", "args", "fn", "node", "unknown")

    def __init__(self, node: Node, fn: Callable[..., float] | None, args: tuple[Value, ...],
                 unknown: Callable[[], Exception]) -> None:  # fmt: skip
        Value.__init__(self)
        self.node = node
        self.fn = fn
        self.args = args
        self.unknown = unknown
        self.added: tuple[float, ...] | None = None

    @property
    def obj(self) -> object:  # type: ignore[override]
        raise self.unknown()

    @property
    def sample(self) -> object:
        return SAMPLE

    def cls(self) -> type:
        return float

    def __repr__(self) -> str:
        return f"GraphNumber({self.node.name})"
