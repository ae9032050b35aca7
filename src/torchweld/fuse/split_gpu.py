"""Where to cut reductions for a GPU: few results must still fill every multiprocessor.

A block reduces one row, or a few columns side by side. When there are fewer blocks than the machine
runs, the time of the few is compared with that of two kernels that use it all.
"""

from __future__ import annotations

from torchweld.fuse.cost import size_of
from torchweld.fuse.deps import Deps
from torchweld.fuse.facts import body_facts, extent, points
from torchweld.fuse.split import by_column, spread_again
from torchweld.fuse.target import Cut
from torchweld.ir.loop import Axis, LoopGraph, Nest

MULTIPROCESSORS = 132
BLOCKS = 32 * MULTIPROCESSORS  # wanted: narrow ones, of two warps
FULL = 2 * MULTIPROCESSORS  # blocks that need no help
WIDTH = 256  # bytes of a row that a block of columns reads ...
SECTOR = 32  # ... and those that memory moves at least, good enough for data ...
LARGE = 16 << 20  # ... below this size
BLOCK_BYTES_PER_NS = 30.0  # of one multiprocessor
BYTES_PER_NS = 4000.0  # of the machine
SECOND_NS = 2500.0  # the second kernel, and the results in between
# A block of columns waits for memory at each of its steps: the sums of [1024, 768] for the weights
# of a layer norm took 15 us in 48 blocks of 16 steps (one H200, 2026-11-30).
STEP, STEP_NS = 1024, 600.0
HELD = 16 << 10  # points that one block holds while it computes several things
LEAST_PART = 1024  # points of one part


def cut_for_blocks(g: LoopGraph, deps: Deps, n: Nest, at: int) -> Cut | None:
    """Parts enough for all multiprocessors, if the results alone do not keep them busy."""
    assert n.reduce is not None
    results = points(tuple(a.size for a in n.axes))
    length = points(tuple(a.size for a in n.reduce.axes))
    nbytes = _traffic(n)
    # a scan in parts reads its row twice: rather narrow blocks
    columns = _columns(n, WIDTH if nbytes >= LARGE and not n.reduce.is_scan else SECTOR)
    blocks = -(-results // columns)
    if blocks >= FULL or length < 2 or not results:
        return None
    alone = nbytes / (min(blocks, MULTIPROCESSORS) * BLOCK_BYTES_PER_NS)
    if length * columns <= HELD and spread_again(g, deps, n.out, results * length):
        alone /= 3  # one kernel reads it once for all that is computed of it
    elif by_column(n):
        alone = max(alone, length * columns / STEP * STEP_NS)
    if alone <= nbytes / BYTES_PER_NS + SECOND_NS:
        return None
    least = max(1, LEAST_PART // columns)
    parts = min(BLOCKS // max(blocks, 1), length // least)
    return _cut(n.reduce.axes, parts) if parts > 1 else None


def _columns(n: Nest, width: int) -> int:
    """How many results one block reduces side by side when it reads `width` bytes of a row."""
    if not by_column(n):
        return 1
    wide = max(body_facts(n.body).loads, key=lambda ld: size_of(ld.buffer))
    return max(1, width // wide.buffer.dtype.bytes)


def _traffic(n: Nest) -> int:
    total = points(tuple(a.size for a in n.all_axes))
    return sum(min(size_of(b), total * b.dtype.bytes) for b in body_facts(n.body).buffers)


def _cut(axes: tuple[Axis, ...], parts: int) -> Cut:
    """Whole outer axes while they are too few, then parts of the next one."""
    kept: list[Axis] = []
    rest = list(axes)
    while len(rest) > 1 and extent(rest[0].size) * 3 <= parts * 4:
        first = rest.pop(0)
        kept.append(first)
        parts = parts // extent(first.size)
    if kept and parts < 2:
        return Cut(tuple(kept), None, 1, tuple(rest))
    size = extent(rest[0].size)
    return Cut(tuple(kept), rest[0], _length(size, -(-size // parts)), tuple(rest[1:]))


def _length(size: int, wanted: int) -> int:
    """A divisor of `size` near `wanted` that keeps parts aligned; else `wanted`, rounded up."""
    near = [d for d in range(max(1, wanted // 2), min(size, wanted * 2) + 1) if size % d == 0]
    if near:
        return max(near, key=lambda d: (min(d & -d, 16), -abs(d - wanted)))
    return min(size, -(-wanted // 16) * 16)
