"""Objects written in C that the frame makes of constants: StringIO, random.Random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchweld.capture.values.base import InstanceValue

# a function of the object, with the constants that it was given after it
Done = tuple[Callable[..., Any], list[Any], dict[str, Any]]


class OwnedValue(InstanceValue):
    """An object whose state is known, since the frame has made it and all that was done to it.

    twin: a real object in that state, which never leaves the capture. args: what its class was
    called with. log: what was done to it since; the residual program does it again.
    """

    __slots__ = ("args", "log", "twin")

    def __init__(self, twin: Any, args: list[Any]) -> None:
        super().__init__(type(twin))
        self.twin = twin
        self.args = args
        self.log: list[Done] = []
