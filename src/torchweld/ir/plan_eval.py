"""Executes a Plan by its loop structure, and refuses what a parallel machine would get wrong.

    evaluate_plan(plan, inputs)    same inputs and answers as loop_eval.evaluate(plan.graph, inputs)

Grid points (and lanes) run in shuffled chunks. Locals are forgotten between points. Slots share one
arena of bytes. These raise InternalError with the names involved:

    race           two grid points (or lanes) touch one element, and one of them writes it
    overwritten    a slot is read after another buffer's slot reused its bytes
    local          a local is read where nothing wrote it at this point, or holds too much
    shape          axes of a nest are not grid + lanes + loops; a reduce axis is no stage loop
    args, place    a kernel touches memory that is not in its args, or that the plan never placed
    freed          a buffer is read after its Free
    bundle         a kernel of a bundle touches an element that another one writes

Of a kernel with a tile (a GPU's): a row lives in registers, so it is read at the very step where it
was written, in stages that are done in one step. Scatters without loops are atomic; which of
several values a plain one leaves at an index that was loaded is open, here the last in this order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from torchweld.base.errors import InternalError
from torchweld.ir.expr import Expr, Ind, atoms
from torchweld.ir.expr import evaluate as expr_value
from torchweld.ir.loop import Axis, Buffer, Extern, Nest, loads
from torchweld.ir.loop_eval import (
    Accumulator,
    Externs,
    Memory,
    Point,
    Sizes,
    Storage,
    combine,
    points,
    run_extern,
)
from torchweld.ir.plan import Bundle, Free, Kernel, Plan, Slot, Stage
from torchweld.ir.rounding import Number, pack, unpack

_SEVERAL = -1  # as a reader: more than one grid point


class Arena:
    """Shared bytes, each of which knows the buffer that wrote it last."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(b"\xa5" * size)
        self.owner: list[Buffer | None] = [None] * size


class SlotStorage(Storage):
    """A buffer whose elements lie in the arena."""

    def __init__(self, slot: Slot, sizes: Sizes, arena: Arena) -> None:
        super().__init__(slot.buffer, sizes, ())
        self.slot = slot
        self.arena = arena
        self.width = slot.buffer.dtype.bytes
        if slot.offset < 0 or slot.offset + slot.bytes > len(arena.bytes) or slot.offset % 64:
            raise InternalError(f"slot of {slot.buffer.name} leaves the arena, or is not aligned")
        if self.extent * self.width > slot.bytes:
            raise InternalError(f"slot of {slot.buffer.name} has only {slot.bytes} bytes")

    def _start(self, position: int) -> int:
        if not 0 <= position < self.extent:
            raise InternalError(f"{self.buffer.name} has {self.extent} elements, not {position}")
        return self.slot.offset + position * self.width

    def get(self, position: int) -> Number:
        start = self._start(position)
        for owner in self.arena.owner[start : start + self.width]:
            if owner is None:
                raise InternalError(f"{self.buffer.name} is read before it is written")
            if owner is not self.buffer:
                raise InternalError(f"{self.buffer.name} was overwritten by {owner.name}")
        return unpack(bytes(self.arena.bytes[start : start + self.width]), self.buffer.dtype)

    def put(self, position: int, value: Number) -> None:
        start = self._start(position)
        self.arena.bytes[start : start + self.width] = pack(value, self.buffer.dtype)
        self.arena.owner[start : start + self.width] = [self.buffer] * self.width


class PlanMemory(Memory):
    """Buffers where the plan placed them; nothing else may be touched."""

    def __init__(self, plan: Plan, inputs: Sequence[Sequence[Number]], sizes: Sizes) -> None:
        super().__init__(plan.graph, inputs, sizes)
        arena = Arena(plan.arena_bytes)
        self.freed: set[Buffer] = set()
        for slot in plan.slots:
            self._place(SlotStorage(slot, sizes, arena))
        for b in plan.fresh:
            self._place(Storage(b, sizes))
        for step in plan.steps:
            for b in step.outs if isinstance(step, Extern) else ():
                self._place(Storage(b, sizes))

    def _place(self, storage: Storage) -> None:
        if storage.buffer in self.buffers:
            raise InternalError(f"{storage.buffer.name} is placed twice")
        self.buffers[storage.buffer] = storage

    def storage(self, b: Buffer) -> Storage:
        if b in self.freed:
            raise InternalError(f"{b.name} is used after it was freed")
        if b not in self.buffers:
            raise InternalError(f"the plan has no place for {b.name}")
        return self.buffers[b]


class KernelRun:
    """One launch of a kernel: its private locals, and who touched which element."""

    def __init__(self, kernel: Kernel, memory: PlanMemory) -> None:
        self.kernel = kernel
        self.memory = memory
        self.kinds = {x.buffer: x.kind for x in kernel.locals}
        self.values: dict[Buffer, dict[tuple[int, ...], Number]] = {}
        self.point = 0
        self.writers: dict[tuple[object, int], int] = {}
        self.readers: dict[tuple[object, int], int] = {}
        self.step = 0  # of the loops of the stage
        self.written_at: dict[tuple[Buffer, tuple[int, ...]], int] = {}
        self.atomic: set[tuple[object, int]] = set()  # places
        for stage in kernel.stages:
            _check_stage(kernel, stage)
            self._check_rows(stage)

    def run(self, rng: random.Random) -> None:
        """All grid points and lanes, in chunks of at least `grain`, chunks in random order."""
        k = self.kernel
        outer = k.grid + ((k.lanes,) if k.lanes else ())
        todo = list(enumerate(points(outer, self.memory.sizes)))
        size = max(1, k.grain, len(todo) // 5)
        chunks = [todo[i : i + size] for i in range(0, len(todo), size)]
        rng.shuffle(chunks)
        for chunk in chunks:
            for self.point, at in chunk:
                self.values = {b: {} for b in self.kinds}
                for stage in k.stages:
                    self._stage(stage, at)

    def _stage(self, stage: Stage, at: Mapping[Expr, int]) -> None:
        states: dict[tuple[Nest, tuple[int, ...]], tuple[Accumulator, Mapping[Expr, int]]] = {}
        for step, inner in enumerate(points(stage.loops, self.memory.sizes)):
            self.step = step
            here = {**at, **inner}
            for b, kind in self.kinds.items():
                if kind == "register":
                    self.values[b].clear()
            for n in stage.nests:
                self._nest(n, here, states)
        for n in stage.nests:
            if n.reduce is not None and not n.reduce.is_scan:
                self._finish(n, at, stage, states)

    def _nest(self, n: Nest, here: Mapping[Expr, int],
              states: dict[tuple[Nest, tuple[int, ...]],
                           tuple[Accumulator, Mapping[Expr, int]]]) -> None:  # fmt: skip
        point = Point(here, self.read)
        if n.reduce is None:
            self._store(n, point, point.scalar(n.body))
            return
        kept = tuple(here[a.sym] for a in n.axes)
        key = (n, kept)
        if key not in states:
            states[key] = Accumulator(n.reduce, n.body.dtype), here
        state = states[key][0]
        state.step(point.scalar(n.body), _position(n.reduce.axes, here, self.memory.sizes))
        if n.reduce.is_scan:
            self._store(n, point, state.result)

    def _finish(self, n: Nest, at: Mapping[Expr, int], stage: Stage,
                states: dict[tuple[Nest, tuple[int, ...]],
                             tuple[Accumulator, Mapping[Expr, int]]]) -> None:  # fmt: skip
        """Store a reduction, at every point of the loops that it keeps."""
        assert n.reduce is not None
        reduced = {a.sym for a in n.reduce.axes}
        kept = tuple(a for a in stage.loops if a.sym not in reduced)
        for outer in points(kept, self.memory.sizes):
            here = {**at, **outer}
            key = (n, tuple(here[a.sym] for a in n.axes))
            state = states[key][0] if key in states else Accumulator(n.reduce, n.body.dtype)
            self._store(n, Point(here, self.read), state.result)

    def _store(self, n: Nest, point: Point, value: Number) -> None:
        index = point.index(n.index)
        if self.kernel.tile is not None and n.out not in self.kinds and _at_once(n, self.kernel):
            self._scatter(n, index, value)
            return
        if n.mode != "set":
            value = combine(n.mode, self.read(n.out, index), value, n.out.dtype)
        if n.out in self.kinds:
            held = self.values[n.out]
            held[index] = value
            self.written_at[n.out, index] = self.step
            if self.kinds[n.out] in ("scalar", "register") and len(held) > 1:
                raise InternalError(f"{self._local(n.out)} holds {len(held)} values")
            return
        for place in self._touch(n.out, index):
            if self.writers.setdefault(place, self.point) != self.point:
                self._race(n.out, index, "write")
            if self.readers.get(place, self.point) != self.point:
                self._race(n.out, index, "read and write")
        self.memory.write(n.out, index, value)

    def _scatter(self, n: Nest, index: tuple[int, ...], value: Number) -> None:
        """A store that other points may make at the same place; nobody else may look there."""
        for place in self._touch(n.out, index):
            if place in self.writers or place in self.readers:
                self._race(n.out, index, "scatter to and use")
            self.atomic.add(place)
        if n.mode != "set":
            value = combine(n.mode, self.memory.read(n.out, index), value, n.out.dtype)
        self.memory.write(n.out, index, value)

    def read(self, b: Buffer, index: tuple[int, ...]) -> Number:
        if b in self.kinds:
            held = self.values[b]
            if index not in held:
                raise InternalError(f"{self._local(b)} has no value at {list(index)} here")
            in_place = self.kernel.tile is None or self.written_at[b, index] == self.step
            if self.kinds[b] == "row" and not in_place:
                raise InternalError(f"{self._local(b)} is read at another step than it is written")
            return held[index]
        for place in self._touch(b, index):
            if place in self.atomic:
                self._race(b, index, "scatter to and read")
            if self.writers.get(place, self.point) != self.point:
                self._race(b, index, "write and read")
            if self.readers.setdefault(place, self.point) != self.point:
                self.readers[place] = _SEVERAL
        return self.memory.read(b, index)

    def _touch(self, b: Buffer, index: tuple[int, ...]) -> list[tuple[object, int]]:
        """The identity of an element: every byte of it, if it lies in the arena."""
        if b not in self.kernel.args:
            raise InternalError(f"kernel {self.kernel.name} uses {b.name}, which is not in args")
        s = self.memory.storage(b)
        place = s.position(index)
        if isinstance(s, SlotStorage):
            start = s.slot.offset + place * s.width
            return [("arena", at) for at in range(start, start + s.width)]
        return [(b, place)]

    def _check_rows(self, stage: Stage) -> None:
        """Rows of a kernel with a tile are variables of one step."""
        tile = self.kernel.tile
        if tile is None or len(list(points(stage.loops, self.memory.sizes))) <= tile.loop:
            return
        for n in stage.nests:
            for b in (n.out, *(ld.buffer for ld in loads(n.body))):
                if self.kinds.get(b) == "row":
                    raise InternalError(f"{self._local(b)} is used in a stage of several steps")

    def _local(self, b: Buffer) -> str:
        return f"{self.kinds[b]} local {b.name} of kernel {self.kernel.name}"

    def _race(self, b: Buffer, index: tuple[int, ...], what: str) -> None:
        raise InternalError(
            f"race in kernel {self.kernel.name}: two grid points {what} {b.name}{list(index)}"
        )


def run_bundle(bundle: Bundle, memory: PlanMemory, rng: random.Random) -> None:
    """The kernels in a random order; none may depend on it."""
    runs = [KernelRun(k, memory) for k in bundle.kernels]
    for r in rng.sample(runs, len(runs)):
        r.run(rng)
    writer: dict[tuple[object, int], KernelRun] = {}
    for r in runs:
        for place in r.writers.keys() | r.atomic:
            other = writer.setdefault(place, r)
            if other is not r:
                _bundle_race(bundle, r, other)
    for r in runs:
        for place in r.readers:
            if writer.get(place, r) is not r:
                _bundle_race(bundle, r, writer[place])


def _bundle_race(bundle: Bundle, a: KernelRun, b: KernelRun) -> None:
    raise InternalError(
        f"race in bundle {bundle.name}: {a.kernel.name} touches what {b.kernel.name} writes"
    )


def _at_once(n: Nest, kernel: Kernel) -> bool:
    """Whether the points of a scatter run all at once, instead of in the order of a loop."""
    if any(st.loops for st in kernel.stages):
        return False
    return n.mode != "set" or any(isinstance(a, Ind) for e in n.index for a in atoms(e))


def _position(axes: tuple[Axis, ...], here: Mapping[Expr, int], sizes: Sizes) -> int:
    """The row-major position within the reduce axes."""
    out = 0
    for a in axes:
        out = out * expr_value(a.size, sizes) + here[a.sym]
    return out


def _check_stage(kernel: Kernel, stage: Stage) -> None:
    outer = kernel.grid + ((kernel.lanes,) if kernel.lanes else ())
    names = [a.sym for a in outer + stage.loops]
    for n in stage.nests:
        own = [a.sym for a in n.all_axes]
        if sorted(map(repr, own)) != sorted(map(repr, names)) or len(set(own)) < len(own):
            shown = f"{n.out.name} has axes {own}, its place in the kernel {names}"
            raise InternalError(f"kernel {kernel.name}: {shown}")
        if n.reduce and not {a.sym for a in n.reduce.axes} <= {a.sym for a in stage.loops}:
            raise InternalError(f"kernel {kernel.name}: {n.out.name} reduces over the grid")


def evaluate_plan(
    plan: Plan,
    inputs: Sequence[Sequence[Number]],
    externs: Externs | None = None,
    sizes: Sizes | None = None,
    seed: int = 0,
) -> list[list[Number] | None]:
    """The outputs, each flat in row-major order. `seed` chooses the order of the grid chunks."""
    memory = PlanMemory(plan, inputs, sizes or {})
    rng = random.Random(seed)
    for step in plan.steps:
        match step:
            case Kernel():
                KernelRun(step, memory).run(rng)
            case Bundle():
                run_bundle(step, memory, rng)
            case Extern():
                run_extern(step, memory, externs or {})
            case Free():
                memory.storage(step.buffer)
                memory.freed.add(step.buffer)
    memory.give_back(plan.graph, inputs)
    return [None if v is None else memory.view(v).values for v in plan.graph.outputs]
