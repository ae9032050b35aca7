"""Divide a kernel's loops for a GPU, and choose how much of it one block computes.

Every parallel axis is in the grid, the one along which memory is contiguous last. A block is a
[points, loop] tile of it. What decides are the bytes in hand: enough of them in flight per thread,
few enough held at once to stay in registers, and enough blocks to keep every multiprocessor busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchweld.fuse.axes import Access, Space, accesses
from torchweld.fuse.cost import launch_points, size_of
from torchweld.fuse.facts import Substitution, extent, points, symbols
from torchweld.fuse.group import Group, loads_of
from torchweld.fuse.inline import index_symbols
from torchweld.fuse.recompute import recompute_far
from torchweld.fuse.stages import Level, stages_of
from torchweld.fuse.target import Form
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr, Ind, Int, Sym, as_expr, index_symbol
from torchweld.ir.loop import Buffer, Nest, measured
from torchweld.ir.plan import Kernel, Tile

# Bytes per point of what stages pass on, and a temporary, times the points of a block: 32768 points
# of 8 bytes compile to 64 registers of 1024 threads without spills (ptxas 12.8, sm_90).
REGISTERS = 256 << 10
SECTOR = 32  # bytes that memory moves at least
LINE = 128  # bytes that a warp reads at once
FULL = 264  # blocks that keep 132 multiprocessors busy
BLOCK = 2048  # elements of a block that nothing else bounds
THREAD = 16  # elements of a thread, in flight together
HOLDS = 256  # bytes of a thread: a quarter of its registers
MANY = 8  # large buffers of a pointwise kernel; with more of them a thread has fewer elements
# Elements of one step of a block through what is too long to be held: on one H200 (2026-11-30), of
# the copy bandwidth, cross entropy of 8192 x 50257 bf16 reached 0.97 with 2048, 0.93 with 4096 and
# 0.59 with 8192; a column sum 0.96 with 64 columns x 16 rows on 2 warps, 0.86 with 128 x 16 on 4,
# 0.72 with 128 x 32.
WALK = 2048
STEP = 1024  # the same where blocks are narrow and many
REREAD = 16384  # the same where the row is read again: few blocks leave it in the L2 cache
MAX_WARPS = 32
EDGE = 64  # of the square tiles of a transpose
LEAST_EDGE = 8
MIXED = 8  # this many times more traffic along the loops outweighs what runs across them
NARROW = 16  # an axis so short is not worth being walked along
TRANSPOSE = 16 << 10  # points of a transpose that is worth tiles


def pow2(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


_ATOMIC = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32})


def any_order(n: Nest) -> bool:
    """Whether the points of a scatter may all run at once.

    Atomic operations combine in any order. Which of several values a plain store at loaded indices
    leaves is as undefined as it is in eager; what a static index says is defined, and kept.
    """
    if any(ld.buffer is n.out for ld in loads_of(n)):
        return False
    if n.mode == "set":
        return any(isinstance(s, Ind) for e in n.index for s in symbols(e))
    return n.out.dtype in _ATOMIC


# ---------------------------------------------------------------- what is held in registers


def block_form(g: Group, outside: frozenset[Buffer]) -> Form:
    """Rows stay in registers if a whole one fits; else what later stages need is recomputed."""
    levels = stages_of(g, scans=True)
    along, across = _traffic(g)
    column = across * MIXED > along
    live = _live(g, levels)
    if sum(bool(lv.loops) for lv in levels) < 2:
        return Form(g, levels, 0, in_place=True, column=column, live=live)
    reach = max((points(tuple(g.sizes[s] for s in lv.loops)) for lv in levels), default=1)
    known = all(g.sizes[s].is_const for lv in levels for s in lv.loops)
    row = pow2(reach) * live if known else REGISTERS + 1
    if column and _one_pass(g, levels):
        return Form(g, levels, 0, in_place=True, column=column, live=live)
    least = max(1, SECTOR // _width(g))
    if column and along > across and row <= REGISTERS < row * least:
        column = False  # rather what runs across the loops is moved several times
    if row * (least if column else 1) <= REGISTERS:
        return Form(g, levels, 1 << 40, in_place=True, held=True, column=column, live=live)
    g = recompute_far(g, levels, outside)
    return Form(g, stages_of(g, scans=True), 0, in_place=True, column=column, live=live)


def _one_pass(g: Group, levels: Sequence[Level]) -> bool:
    """Whether the loops of a group need only one pass: a softmax's or a variance's reductions."""
    looped = [lv for lv in levels if lv.loops]
    if len(looped) != 2 or set(looped[0].loops) != set(looped[1].loops):
        return False
    first, second = looped
    count = points(tuple(g.sizes[s] for s in first.loops))
    made = {m.nest.out for m in first.members if m.nest.reduce is not None}
    found = [measured(m.nest.body, count) for m in second.members if m.nest.reduce is not None]
    return len(found) == len(second.members) and all(x and x.other.buffer in made for x in found)


def _traffic(g: Group) -> tuple[float, float]:
    """Bytes moved contiguously along a loop, and along a parallel axis only."""
    keep = set(g.kept())
    along = across = 0.0
    for a in accesses(g.members, set()):
        steps = {s for s in g.sizes if a.form.stride(s) is ONE}
        if steps - keep:
            along += a.weight * a.bytes
        elif steps:
            across += a.weight * a.bytes
    return along, across


def _width(g: Group) -> int:
    """Bytes of an element of the largest buffers."""
    return _element([*g.reads, *g.writes])


def _large(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Those that make up the traffic."""
    most = max(map(size_of, buffers), default=0)
    return [b for b in buffers if size_of(b) * 8 >= most]


def _element(buffers: Sequence[Buffer]) -> int:
    return max((b.dtype.bytes for b in _large(buffers)), default=4)


def _live(g: Group, levels: list[Level]) -> int:
    """Bytes per point that are held at once: what stages pass on, and one temporary."""
    spans: dict[object, tuple[int, int, int]] = {}  # bytes, first stage, last stage
    for at, lv in enumerate(levels):
        loops = set(lv.loops)
        for m in lv.members:
            touched: list[tuple[object, Buffer]] = [
                (ld.buffer if ld.buffer in g.writes else ld, ld.buffer)
                for ld in m.loads
                if loops & index_symbols(ld.index)
            ]
            if m.shape == "point" and loops:
                touched.append((m.nest.out, m.nest.out))
            for key, b in touched:
                _, first, _ = spans.get(key, (0, at, at))
                spans[key] = (b.dtype.bytes, first, at)
    crossing = [
        sum(size for size, first, last in spans.values() if first <= at < last)
        for at in range(len(levels))
    ]
    return max(crossing, default=0) + 4


# ---------------------------------------------------------------- grid and loops


def divide_blocks(
    space: Space, rows: bool, found: list[Access]
) -> tuple[tuple[Sym, ...], Sym | None]:
    """Every parallel axis is in the grid; transposes get a loop of their own along the other axis.

    rows: the parallel axes are given, and the stages have loops of their own.
    """
    if not rows and len(space.keep) > 1 and len(space.loops) == 1 and not space.loops[0]:
        _cut_transpose(space, found)
    return tuple(space.keep), None


def _cut_transpose(space: Space, found: list[Access]) -> None:
    """Make the inner part of the axis along which a large load is contiguous a loop."""
    total = points(tuple(space.sizes[s] for s in space.keep))
    last = space.keep[-1]
    if extent(space.sizes[last]) < NARROW:
        return
    u = _across(space, last, found, total)
    if u is None or total < TRANSPOSE or not space.sizes[u].is_const:
        return
    n = space.sizes[u].value
    edge = next((e for e in range(EDGE, LEAST_EDGE - 1, -1) if n % e == 0), None)
    if edge is None or edge == n:
        if edge is None and n > 4 * EDGE:
            return
        space.keep.remove(u)
        space.loops[0].append(u)
        return
    outer = index_symbol(u.name + "o", as_expr(n // edge))
    inner = index_symbol(u.name + "t", as_expr(edge))
    values: dict[Expr, Expr] = {u: outer * edge + inner}
    sub = Substitution(values)
    space.values = {**{old: sub.expr(e) for old, e in space.values.items()}, **values}
    space.sizes[outer], space.sizes[inner] = as_expr(n // edge), as_expr(edge)
    space.keep[space.keep.index(u)] = outer
    space.loops[0].append(inner)


def _across(space: Space, last: Sym, found: list[Access], total: int) -> Sym | None:
    """The axis along which a large access is contiguous while it strides along `last`."""
    for a in found:
        step = a.form.stride(last)
        if not a.bytes or a.weight * 2 < total or not isinstance(step, Int):
            continue
        if step is ZERO or abs(step.n) * a.bytes < SECTOR:
            continue
        for u in space.keep:
            if u is not last and a.form.stride(u) is ONE:
                return u
    return None


# ---------------------------------------------------------------- tiles


def tile_of(k: Kernel, form: Form) -> Tile:
    """How much of the kernel one block computes at once."""
    total = max(launch_points(k), 1)
    reach = _reach(k)
    if form.group.alone and reach > 1:
        return _serial(total)
    if reach <= 1:
        return _flat(total, k)
    if form.group.keep is None:
        return _square(total, reach)
    if form.column:
        return _columns(total, reach, form, _element(k.args))
    return _rows(total, reach, form, _reads_again(k))


def _reach(k: Kernel) -> int:
    """Iterations of the longest loops of a stage."""
    return max((points(tuple(a.size for a in st.loops)) for st in k.stages), default=1)


def _reads_again(k: Kernel) -> bool:
    """Whether a stage stores along its loops what needs an earlier stage to be done."""
    looped = [st for st in k.stages if st.loops]
    return any(n.reduce is None for st in looped[1:] for n in st.nests)


def _flat(total: int, k: Kernel) -> Tile:
    """No loops: a few 16-byte accesses per thread, fewer if there would be too few blocks."""
    size = min(BLOCK, max(512, 2 * BLOCK // _element(k.args)))
    size //= 1 if len(_large(k.args)) <= MANY else 2
    while size > LINE and -(-total // size) < FULL:
        size //= 2
    size = min(size, pow2(max(total, 32)))
    return Tile(size, 1, max(1, min(4, size // 32)))


def shared_tiles(kernels: Sequence[Kernel]) -> list[Tile]:
    """The tiles of kernels that share a launch.

    Blocks without loops may be as large as if they were of one kernel: together they are many.
    """
    flat = [k for k in kernels if _reach(k) <= 1]
    total = sum(map(launch_points, flat))
    tiles = [_flat(total, k) if k in flat else k.tile for k in kernels]
    warps = max(t.warps for t in tiles if t)
    return [replace(t, warps=warps) for t in tiles if t]


def _serial(total: int) -> Tile:
    """Loops that must run in order: one thread per point."""
    size = 128
    while size > 32 and -(-total // size) < FULL:
        size //= 2
    return Tile(size, 1, size // 32)


def _rows(total: int, reach: int, form: Form, again: bool) -> Tile:
    """Contiguous along the loops: whole rows if they are held, else steps along them.

    again: the row is read more than once; few large blocks leave it in the L2 cache until then.
    """
    loop = pow2(reach) if form.held or reach <= 2 * WALK else REREAD if again else WALK
    size = max(1, BLOCK // loop)
    while size > 1 and -(-total // size) < FULL:
        size //= 2
    size = min(size, pow2(total))
    return Tile(size, loop, _warps(size * loop, -(-total // size), form.live))


def _square(total: int, reach: int) -> Tile:
    """A transpose: contiguous along the points here and along the loop there."""
    loop = pow2(reach)
    size = min(max(EDGE, 2 * WALK // loop), 8 * EDGE)
    while size > SECTOR and -(-total // size) < FULL:
        size //= 2
    return Tile(min(size, pow2(total)), loop, _warps(size * loop, -(-total // size), 4))


def _columns(total: int, reach: int, form: Form, width: int) -> Tile:
    """Contiguous along the points: blocks as wide as a few warps' accesses, and some rows."""
    size, least = max(1, LINE // width), max(1, SECTOR // width)
    crowded = REGISTERS // form.live // pow2(reach) if form.held else size
    while size > least and (size > crowded or -(-total // size) < FULL):
        size //= 2
    size = min(size, pow2(total))
    loop = pow2(reach) if form.held else min(pow2(reach), max(1, STEP // size))
    return Tile(size, loop, _warps(size * loop, -(-total // size), form.live))


def _warps(elements: int, blocks: int, live: int) -> int:
    """Threads for a block: with few blocks, latency counts for more than what a thread moves."""
    mine = THREAD if blocks >= 2 * FULL else THREAD // 2
    while mine > 1 and mine * live > HOLDS:
        mine //= 2
    return max(1, min(MAX_WARPS, pow2(elements // (32 * mine))))
