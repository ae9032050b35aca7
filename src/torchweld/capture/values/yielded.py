"""What an asynchronous generator yields, to be told from what it waits for."""

from __future__ import annotations

from torchweld.capture.values.base import Value
from torchweld.ir.source import Source


class YieldedValue(Value):
    """A value on its way to who drives the generator."""

    __slots__ = ("of",)

    def __init__(self, of: Value) -> None:
        super().__init__(None)
        self.of = of


class AsyncValue(Value):
    """An asynchronous generator from outside, or what its `__anext__()` gives to be awaited.

    of: the generator, for the latter.
    """

    __slots__ = ("kind", "of")

    def __init__(self, kind: type, source: Source | None = None,
                 of: AsyncValue | None = None) -> None:  # fmt: skip
        super().__init__(source)
        self.kind = kind
        self.of = of

    def cls(self) -> type:
        return self.kind
