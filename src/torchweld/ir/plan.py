"""Plan: what fusion decided. Kernels with their loop structure, the order of steps, memory.

A Kernel is

    for g in grid (parallel, flattened):
        [for l in lanes (vectorised):]           # if lanes is set
            stage 0: for s in its loops: its nests, in order
            stage 1: ...

Nests are rewritten into kernel coordinates: every nest of a stage has
`axes + reduce.axes == grid + lanes + stage.loops` (as sets of symbols; a reduction's `reduce.axes`
are loops of its stage, and its store happens after those loops). Without `lanes`, the last loop of
each stage is the vectorised one. A call runs grid indices [begin, end); with an empty grid the
range is over `lanes`; with neither it is [0, 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchweld.base.errors import Refusal
from torchweld.ir.loop import Axis, Buffer, Extern, LoopGraph, Nest


@dataclass(frozen=True, slots=True)
class Stage:
    """One inner loop nest of a kernel and what it computes per iteration, in order."""

    loops: tuple[Axis, ...]
    nests: tuple[Nest, ...]


@dataclass(frozen=True, slots=True)
class Local:
    """A buffer that lives only inside a kernel.

    kind: "register"  written and read at the same point of the same stage: no memory at all
          "scalar"    one value per grid point (and lane): a finished reduction
          "row"       an array over `loops` per grid point, private to the thread
    """

    buffer: Buffer
    kind: str


@dataclass(frozen=True, slots=True)
class Tile:
    """How much of a kernel one block of a GPU computes at once.

    points: grid points (with `lanes`, the last and fastest of them) of a block; a power of two.
    loop: iterations of a stage's loops, flattened, at once; a power of two. A stage with more
    iterations runs over them in steps.
    warps: groups of 32 threads. stages: depth of the software pipeline of such steps.
    """

    points: int
    loop: int = 1
    warps: int = 4
    stages: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused loop nest that becomes one function. tile: set on a GPU, None on a CPU."""

    name: str
    grid: tuple[Axis, ...]
    lanes: Axis | None
    stages: tuple[Stage, ...]
    locals: tuple[Local, ...]
    args: tuple[Buffer, ...]  # buffers in memory, in the order of the function's pointers
    grain: int = 1  # least number of grid points worth a thread
    origins: tuple[str, ...] = ()
    tile: Tile | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """Kernels with tiles that run as one launch: each has some of its blocks.

    None of them touches what another one writes. Their tiles have the same number of warps.
    """

    name: str
    kernels: tuple[Kernel, ...]

    @property
    def args(self) -> tuple[Buffer, ...]:
        """The buffers in memory of all kernels, each once."""
        return tuple(dict.fromkeys(b for k in self.kernels for b in k.args))


@dataclass(frozen=True, slots=True)
class Free:
    """The last use of a buffer that an Extern allocated, or whose size is symbolic, lies behind."""

    buffer: Buffer


Step = Kernel | Bundle | Extern | Free


def kernels_of(steps: Iterable[Step]) -> Iterator[Kernel]:
    """Every kernel, those of bundles included."""
    for s in steps:
        if isinstance(s, Kernel):
            yield s
        elif isinstance(s, Bundle):
            yield from s.kernels


ALIGN = 64  # bytes: of what lies in an arena, unless the target wants more


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a temporary lives in the arena: byte offset (a multiple of the alignment) and size."""

    buffer: Buffer
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, where temporaries live, and why what was not fused was not.

    `fresh`: temporaries that are returned (or aliased by an output): allocated as tensors per call.
    `arena_device`: where the arena is; temporaries of other devices are fresh tensors too.
    `align`: of what lies in the arena, in bytes.
    """

    graph: LoopGraph
    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    fresh: tuple[Buffer, ...]
    arena_bytes: int
    refusals: tuple[Refusal, ...] = ()
    arena_device: str = "cpu"
    align: int = ALIGN
