"""Kernel -> C++ function. The text depends only on the structure: equal kernels, equal texts."""

from __future__ import annotations


class LanePrinter(Printer):
    """Kernels with lanes and no loops: nothing but points."""

    def print_lanes(self, lanes: Axis) -> None:
        self.open_grid()
        width = max(s.width for s in self.shapes)
        self._open_lanes(lanes, width)
        for stage, shape in zip(self.kernel.stages, self.shapes, strict=True):
            self.start_stage(stage.nests, shape)
            for n in stage.nests:
                self.emit(n)
        self._close_lanes()
        self.close()


def print_kernel(kernel: Kernel, streamed: frozenset[Buffer]) -> str:
    """The C++ function of a kernel, with @ where its name goes.

    streamed: buffers too large for the caches, written past them.
    """
    return Printer(kernel, streamed).text()
