"""Objects that the frame makes, with a real twin in the capture: those written in C that are made
of constants (files in memory, bytearrays, hashes), and generators of random numbers."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchweld.capture.values.base import DictValue, InstanceValue

if TYPE_CHECKING:
    from torchweld.capture.draws import Generator
    from torchweld.capture.late import LateNumber

# a function of the object, with the constants that it was given after it
Done = tuple[Callable[..., Any], list[Any], dict[str, Any]]


class OwnedValue(InstanceValue):
    """An object whose state is known, since the frame has made it and all that was done to it.

    twin: a real object in that state, which never leaves the capture. make, args: what was called
    to make it. log: what was done to it since; the residual program does it again.
    """

    __slots__ = ("args", "log", "make", "twin")

    def __init__(self, twin: Any, args: list[Any], make: Callable[..., Any] | None = None) -> None:
        super().__init__(type(twin))
        self.make = make or type(twin)
        self.twin = twin
        self.args = args
        self.log: list[Done] = []


class ProxyValue(InstanceValue):
    """types.MappingProxyType of a dict of the frame, which it shows. payload: the dict."""

    __slots__ = ()

    def __init__(self, of: DictValue) -> None:
        super().__init__(types.MappingProxyType, payload=of)


class PreparedValue(InstanceValue):
    """An object that the residual program makes before it calls the graph.

    late: how it is made. twin: a real one as it is at this point of the frame, which never leaves
    the capture. generator: what is known of it as a generator of NumPy's or Python's.
    """

    __slots__ = ("generator", "late", "twin")

    def __init__(self, late: LateNumber, twin: Any) -> None:
        super().__init__(type(twin))
        self.late = late
        self.twin = twin
        self.generator: Generator | None = None
