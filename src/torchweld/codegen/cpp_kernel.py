"""Kernel -> C++ function. The text depends only on the structure: equal kernels, equal texts."""

from __future__ import annotations

from torchweld.codegen.printer import Printer
from torchweld.codegen.rows import RowPrinter
from torchweld.codegen.strips import StripPrinter
from torchweld.ir.expr import Sym
from torchweld.ir.loop import Buffer
from torchweld.ir.plan import Kernel


class LanePrinter(Printer):
    """Kernels with lanes and no loops: nothing but points."""

    def body(self) -> None:
        self.open_grid()
        width = max(s.width for s in self.shapes)
        self.open_lanes(self.lanes_axis, width)
        for stage, shape in zip(self.kernel.stages, self.shapes, strict=True):
            self.start_stage(stage.nests, shape)
            for n in stage.nests:
                self.emit(n)
        self.close_lanes()
        self.close()


def print_kernel(
    kernel: Kernel, streamed: frozenset[Buffer], symbols: tuple[Sym, ...] = ()
) -> str:
    """The C++ function of a kernel, with @ where its name goes.

    streamed: buffers too large for the caches, written past them. symbols: the sizes that it is
    given pointers to, behind its buffers.
    """
    form: type[Printer] = RowPrinter
    if kernel.lanes is not None:
        form = StripPrinter if any(s.loops for s in kernel.stages) else LanePrinter
    return form(kernel, streamed, symbols).text()
