"""Objects that a call makes before its graph runs: generators of random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchweld.capture.values.base import InstanceValue

if TYPE_CHECKING:
    from torchweld.capture.draws import Generator
    from torchweld.capture.late import LateNumber


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
