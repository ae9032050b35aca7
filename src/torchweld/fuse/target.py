"""Target: what fusion knows about a machine, as one row of numbers and choices.

The rows themselves are in targets.py. A kernel's target is that of the device of its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchweld.fuse.axes import Access, Space
from torchweld.fuse.deps import Deps
from torchweld.fuse.group import Group
from torchweld.fuse.stages import Level
from torchweld.ir.expr import ONE, Sym
from torchweld.ir.loop import Axis, Buffer, LoopGraph, Nest
from torchweld.ir.plan import Kernel, Tile


@dataclass(frozen=True, slots=True)
class Cut:
    """Reduce axes that become parallel, and the one axis that is cut into parts of `length`."""

    kept: tuple[Axis, ...]
    axis: Axis | None
    length: int
    rest: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """How the stages of a group will run.

    row_bytes: room for values of whole rows that later stages read.
    in_place: such values are in registers: read only at the point where they were written, and
    what other kernels want besides is stored in the end. held: a whole row is one step.
    column: memory is contiguous along the parallel axes, not along the loops.
    live: bytes per point of a stage that are held at once.
    """

    group: Group
    levels: list[Level]
    row_bytes: int
    in_place: bool = False
    held: bool = False
    column: bool = False
    live: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A machine.

    Roofline: ns_per_byte, ns_per_flop of what a kernel has to itself; ns_per_launch.
    cheap_flops: operations that are recomputed for several readers rather than stored.
    Merging: min_rows feed the machine; a kernel of fewer may move row_work bytes and, for each row,
    work_per_row over the idle share of the machine; kernels of few_points need not be spread;
    partial_rows are wanted before pointwise axes become loops; of rows that lie side by side in
    memory a block reads `sector` bytes. piece_rows: rows may be written
    piece by piece.
    vector: one loop of each stage is vectorised, else the loops follow memory.
    join_pieces: concatenations become index maps.
    finish_rows: what the kernel of a row can compute from its results is not left to a reduction.
    side_bytes: kernels of so few bytes are merged for the launch alone, if they read the same.
    share: the tiles of independent kernels that share one launch, each of which runs no longer than
    a launch takes; None where that saves nothing.
    recompute: values that cost less to compute in each kernel that reads them than to store are.
    parts: positions, scans, softmax and variance are cut in parts, too.
    parallel: whether the points of a scatter may run in any order.
    align: of slots of the arena, in bytes. apart: temporaries of so many bytes are not in it.
    """

    name: str
    ns_per_byte: float
    ns_per_flop: float
    ns_per_launch: float
    cheap_flops: int
    min_rows: int
    row_work: int
    work_per_row: int
    few_points: int
    partial_rows: int
    sector: int
    piece_rows: bool
    vector: bool
    join_pieces: bool
    finish_rows: bool
    side_bytes: int
    recompute: bool
    parts: bool
    align: int
    apart: int | None
    cut: Callable[[LoopGraph, Deps, Nest, int], Cut | None]
    form: Callable[[Group, frozenset[Buffer]], Form]
    divide: Callable[[Space, bool, list[Access]], tuple[tuple[Sym, ...], Sym | None]]
    tile: Callable[[Kernel, Form], Tile | None]
    parallel: Callable[[Nest], bool]
    share: Callable[[Sequence[Kernel]], list[Tile]] | None

    def time_ns(self, nbytes: float, flops: float) -> float:
        """Roofline estimate of one kernel."""
        return max(nbytes * self.ns_per_byte, flops * self.ns_per_flop) + self.ns_per_launch


Machine = Callable[[str], Target]


def reaches(b: Buffer, device: str) -> bool:
    """Whether kernels on `device` can read `b`: one element of the host travels by value."""
    return b.device == device or (b.device == "cpu" and all(n is ONE for n in b.shape))
