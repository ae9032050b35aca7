"""CUDA graphs of Executables: whether, when and into which memory they are recorded.

The first call of an Executable runs its launch list, the second one records it: the list runs once
into a captured stream, without any work on the GPU, and the graph is launched. From then on
_graph.c serves the calls alone, and asks again only when no graph fits: operators find their inputs
elsewhere, or all large results of earlier calls are still in use.

Memory. What graphs need only while they run (arenas, results of operators, copies of inputs) comes
from one pool per device; graphs recorded later use it again, so it is as large as the largest graph
needs. Large results of operators are lent to the caller, up to two per graph and result, from
memory that no other graph touches. `memory_report` says what is held, `trim` gives it back.

Lent results follow the stream on which they were made: a tensor that another stream still reads
when its last reference is dropped needs a synchronisation, as `record_stream` does not reach it.
"""

from __future__ import annotations

import importlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from torchweld.base.collection import collection_paused
from torchweld.base.events import emit
from torchweld.ir.program import Program
from torchweld.runtime.cuda import device_index
from torchweld.runtime.cudagraph_plan import (
    NOTHING_SAVED,
    SMALL_BYTES,
    GraphPlan,
    Lending,
    NoGraph,
    Role,
    analyse,
    held_outputs,
    releases,
    roles,
    span,
    working_bytes,
)
from torchweld.runtime.sized import SizedExecutable, alive, runs_of

if TYPE_CHECKING:
    from torchweld.runtime.steps import PiecesReport

try:
    from torchweld.runtime import _driver
except ImportError:  # built without a C compiler: then nothing gets here
    _driver = None  # type: ignore[assignment]

# Graphs of one Executable that are recorded at once; later ones at most one per some seconds.
MOST_RECORDS, PAUSE_SECONDS = 16, 10.0
# Graphs that one Executable keeps: for the addresses of as many sets of parameters, or caches.
MOST_KEPT = 8
# After so many, inputs that were promised to stay where they are and do not are copied.
FAITHFUL_RECORDS = 6
# Graphs that lend large results; when all are lent, one more graph copies them.
LENDERS = 2
# Graphs that lend what is saved for a backward: so many forwards may wait for their backwards. When
# all are lent, forward and backward are launch lists.
SAVERS = 3
# Where graphs lend more than this part of a device's memory, those that nobody uses make room for
# one of another Executable: of other sizes, for instance.
LEND_SHARE = 8
# The shared pool is made anew when it is so many times what a graph needs, and so much more.
MOST_TIMES, SPARE_BYTES = 2, 256 << 20
# Inputs that are too large to copy may have moved so often before graphs are given up.
MOST_STRIKES = 4


@dataclass(frozen=True, slots=True)
class Borrowing:
    """sources: by position of an input, which output of `lender` it is, a Program that lends so."""

    lender: object
    lending: Lending
    sources: Mapping[int, int]

    def inputs(self) -> frozenset[int]:
        """The inputs that the lender's graphs lend, whatever the sizes."""
        lending = self.lending
        if isinstance(self.lender, SizedExecutable):
            lending = replace(lending, kept=())  # of these the size decides
        elif not isinstance(self.lender, _driver.Executable):
            return frozenset()
        held = held_outputs(self.lender.program, lending)
        return frozenset(i for i, k in self.sources.items() if k in held)

    def lent(self) -> set[int] | None:
        """The addresses that are lent now; None if the lender has no graphs."""
        found = [x for x in _natives(self.lender) if not isinstance(x.graphs, str)]
        if not found and not _may_have_graphs(self.lender):
            return None
        return set().union(*(x.lent() for x in found))


def _natives(lender: object) -> list[_driver.Executable]:
    """What may have graphs of its own."""
    runs = [lender]
    if isinstance(lender, SizedExecutable):
        runs = [x for _, run, _ in lender.kept() for x in runs_of(run)]
    return [x for x in runs if isinstance(x, _driver.Executable)]


def _may_have_graphs(lender: object) -> bool:
    """Whether graphs may be recorded once sizes come often."""
    return isinstance(lender, SizedExecutable) and not _natives(lender)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user and the pipeline want. static: inputs that stay where they are (parameters and
    buffers). forced: a graph also where it is not sure to pay. limit: graphs of the process.
    lending: what of the outputs is lent. borrowing: which inputs another Executable's graphs lend.
    ranged: these are some of many sizes that are run.
    """

    static: frozenset[int] = frozenset()
    forced: bool = False
    limit: int = 64
    lending: Lending = NOTHING_SAVED
    borrowing: Borrowing | None = None
    ranged: bool = False


def pool_bytes(pool: Any) -> int:
    """Bytes of the device that a pool holds."""
    return sum(s["total_size"] for s in pool.snapshot())


class Device:
    """Where a device's graphs are recorded: a side stream, and the pool that all of them share."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.stream: Any = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self.pool: Any = self.new_pool()
        self.largest = 0  # bytes that a graph needs while it runs, of those that were recorded

    @contextmanager
    def recording(self, pool: Any) -> Iterator[None]:
        """Torch's current stream is the side stream, allocations come from the pool."""
        with torch.cuda.stream(self.stream):
            self.enter(pool)
            try:
                yield
            finally:
                self.leave(pool)

    def new_pool(self) -> Any:
        """Memory that only those get who ask for it here."""
        with torch.cuda.device(self.index):
            made = torch.cuda.MemPool()
        _own_pools.add(made.id)
        return made

    def enter(self, pool: Any) -> None:
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, pool.id)

    def leave(self, pool: Any) -> None:
        torch._C._cuda_endAllocateToPool(self.index, pool.id)
        torch._C._cuda_releasePool(self.index, pool.id)

    def admits(self) -> bool:
        """Whether torch keeps its current stream for ever: graphs may wait for it later."""
        number: int = torch.cuda.current_stream(self.index).stream_id
        return number == 0 or number % 2 == 1  # even ones belong to the user

    def crowded(self, need: int) -> bool:
        """Whether most of the pool is of no use: what graphs of other sizes were recorded in is
        too small for a larger one, and is kept for theirs."""
        self.largest = max(self.largest, need)
        return self.pool_bytes() > MOST_TIMES * self.largest + SPARE_BYTES

    def renew(self) -> None:
        """A pool in the place of this one, in one piece; graphs that used it must be gone."""
        self.pool = self.new_pool()
        with self.recording(self.pool):
            torch.empty(self.largest, dtype=torch.uint8, device=f"cuda:{self.index}")

    def pool_bytes(self) -> int:
        return pool_bytes(self.pool)

    def lend_limit(self) -> int:
        """Bytes that graphs of several Executables may lend together."""
        total: int = torch.cuda.get_device_properties(self.index).total_memory
        return total // LEND_SHARE


_devices: dict[int, Device] = {}
_own_pools = set[Any]()  # ids of all pools that were made here
# Pools of Regions (_region.c), for the report.
_regions: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def device(index: int) -> Device:
    if index not in _devices:
        _devices[index] = Device(index)
    return _devices[index]


def enable(x: _driver.Executable, program: Program, wish: Wish) -> None:
    """Let an Executable run as CUDA graphs where that is possible and pays."""
    plan = analyse(program, wish.forced, wish.lending)
    best = plan
    if isinstance(plan, GraphPlan):
        everything = roles(plan, frozenset(plan.given), True, wish.forced)
        best = everything if isinstance(everything, NoGraph) else plan
    if isinstance(best, NoGraph) or isinstance(plan, NoGraph):
        give_up(x, best.why if isinstance(best, NoGraph) else "", wish.forced)
        return
    index = next(device_index(s.device) for s in program.tensors if s.device != "cpu")
    borrowed = wish.borrowing.inputs() if wish.borrowing is not None else frozenset()
    recorder = Recorder(plan, index, wish, borrowed)
    x.graphs_on(recorder, admits, plan.root, plan.tail, plan.made, plan.n_shown)


def give_up(x: _driver.Executable, why: str, forced: bool) -> None:
    """Launch lists from now on; said aloud if the user asked for graphs."""
    x.graphs_off(why)
    not_used(why, forced)


def not_used(why: str, forced: bool) -> None:
    """Say that launch lists are run, aloud if the user asked for graphs."""
    emit("cudagraphs", "not used" if forced else "launch list", why, why=why, forced=forced)


def admits(index: int) -> bool:
    return device(index).admits()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a graph finds its memory.

    pool: what it needs while it runs. lent: what it lends; the same pool if that may have had the
    memory of what it needed before. region: memory that a forward and its backward work in; of the
    backward, inside: the inputs that lie there, frees: (step, block) of what is free behind which
    step, and made: the gradients that are to lie there, too.
    """

    pool: Any
    lent: Any = None
    region: _driver.Region | None = None
    inside: frozenset[int] = frozenset()
    frees: tuple[int, ...] | None = None
    made: frozenset[int] = frozenset()

    def role(self, n: int, role: int) -> int:
        """How a graph that works here finds a tensor."""
        if n in self.inside:
            return Role.STATIC
        return Role.HELD if n in self.made and role == Role.PATCH else role


@dataclass(slots=True, eq=False)
class Recorder:
    """Records graphs of one Executable when a call finds none that fits.

    borrowed: inputs that another Executable's graphs lend. moving: inputs that operators read and
    that do not stay where they are: they are copied.
    strikes: graphs in a row that were of no use because an input too large to copy moved.
    apart: whether a forward and its backward have memory of their own: gradients are still there
    when the next forward runs.
    """

    plan: GraphPlan
    index: int
    wish: Wish
    borrowed: frozenset[int] = frozenset()
    moving: set[int] = field(default_factory=set)
    records: int = 0
    lenders: int = 0
    strikes: int = 0
    last: float = 0.0
    apart: bool = False

    def __call__(self, x: _driver.Executable, inference: bool, moved: tuple[int, ...]) -> None:
        """Record a graph for the call in flight, if there is reason to.

        moved: inputs that are elsewhere than when the last graph was recorded.
        """
        if not _lock.acquire(blocking=False):
            return  # another thread records: this call is a launch list
        try:
            if not self._borrowing(x) or self._too_often():
                return
            self.apart = self.apart or x.part() or (self._saves() and _have_gradients(x.given()))
            found = self._wasted(x, frozenset(moved)) or self._roles(x, frozenset(moved))
            if found is None:
                self.records -= 1
                return
            if isinstance(found, NoGraph):
                give_up(x, found.why, self.wish.forced)
            else:
                x.graphs_keep(MOST_KEPT - 1)
                self._try(x, found)
        finally:
            _lock.release()

    def _borrowing(self, x: _driver.Executable) -> bool:
        """Whether what an earlier graph was to lend is lent by one: it will be there again."""
        lent = None if self.wish.borrowing is None else self.wish.borrowing.lent()
        if lent is None:
            return True
        at, tensors = _addresses(x), self.plan.program.tensors
        return all(at[n] in lent for n in self.borrowed if span(tensors[n]) > 0)

    def _promised(self) -> frozenset[int]:
        """The inputs that stay where they are."""
        p = self.plan.program
        constants = range(p.n_inputs, p.n_inputs + p.n_constants)
        lent = self.wish.borrowing is not None and self.wish.borrowing.lent() is not None
        return self.wish.static.union(constants, self.borrowed if lent else ())

    def _too_often(self) -> bool:
        now = time.monotonic()
        if self.records >= MOST_RECORDS and now - self.last < PAUSE_SECONDS:
            return True
        self.records += 1
        self.last = now
        return False

    def _wasted(self, x: _driver.Executable, moved: frozenset[int]) -> NoGraph | None:
        """Whether it is no use to record for addresses that are others in every call."""
        heavy = moved & self.plan.called & self.plan.heavy() - self.borrowed
        rows = x.graphs
        if not heavy or isinstance(rows, str) or not rows or rows[0][5] > 2:
            self.strikes = 0
            return None
        self.strikes += 1
        if self.strikes < MOST_STRIKES:
            return None
        return NoGraph(f"input {min(heavy)}, which is too large to copy, keeps moving")

    def _roles(self, x: _driver.Executable, moved: frozenset[int]) -> bytes | NoGraph | None:
        """How the graph finds each tensor; None if this call should be a launch list."""
        plan = self.plan
        promised = self._promised()
        called = frozenset(n for n in plan.given if n in plan.called)
        large = frozenset(n for n in called if span(plan.program.tensors[n]) > SMALL_BYTES)
        self.moving |= (moved & called) - promised - plan.heavy()
        if self.records > FAITHFUL_RECORDS:
            self.moving |= (moved & called & self.wish.static) - plan.heavy()
        static = (promised | large) - self.moving
        if moved & called & static:
            self.lenders = 0
        rows = x.graphs
        lending = sum(row[4] > 0 for row in rows) if not isinstance(rows, str) else 0
        self.lenders = min(self.lenders, lending)
        lends = self.lenders < (SAVERS if self._saves() else LENDERS)
        if self._saves() and not lends:
            return None
        found = roles(plan, static, lends, self.wish.forced)
        if isinstance(found, bytes) and Role.HELD in found:
            self.lenders += 1
        return found

    def _saves(self) -> bool:
        """Whether a backward reads what the graph lends."""
        return self.plan.lending.saved is not None and bool(self.plan.held)

    def _place(self, x: _driver.Executable, found: bytes) -> Place:
        """Where the graph finds its memory."""
        where = device(self.index)
        if Role.HELD not in found:
            return Place(where.pool)
        if self._saves() and not self.apart:
            own = _own_pool(where)
            return Place(own, region=_driver.Region(own, torch._C._from_dlpack))
        region = self._shared(x)
        if region is None and self.plan.is_step():
            own = _own_pool(where)
            return Place(own, own)
        if region is None:
            return Place(where.pool, where.new_pool())
        inside, frees = releases(self.plan, _addresses(x), region.blocks)
        return Place(region.pool, None, region, inside, frees, frozenset(self.plan.made))

    def _shared(self, x: _driver.Executable) -> _driver.Region | None:
        """Where the graph lives that saved what this backward uses up, if it may work there."""
        if self.wish.borrowing is None or not x.consumes():
            return None
        at = _addresses(x)
        for lender in _natives(self.wish.borrowing.lender):
            for n in sorted(self.borrowed):
                region = lender.region(at[n])
                if region is not None:
                    return region if region.open else None
        return None

    def _make_room(self, x: _driver.Executable, found: bytes) -> None:
        """Drop graphs where there are too many, or others that lend too much memory."""
        while _driver.graph_totals()[0] >= max(self.wish.limit, 1):
            _driver.graph_evict()
        tensors = self.plan.program.tensors
        need = sum(span(tensors[n]) for n, role in enumerate(found) if role == Role.HELD)
        limit = device(self.index).lend_limit() if need else 0
        while need and _driver.graph_totals()[3] + need > limit:
            if not _driver.graph_evict(x):
                break

    def _clear_pool(self) -> None:
        """Begin anew with the pool where graphs of many sizes left it in pieces."""
        where = device(self.index)
        if self.wish.ranged and where.crowded(working_bytes(self.plan)):
            while _driver.graph_evict():
                pass
            where.renew()

    def _try(self, x: _driver.Executable, found: bytes) -> None:
        self._make_room(x, found)
        self._clear_pool()
        start = time.perf_counter()
        try:
            given_back = importlib.import_module("torchweld.runtime.workspaces").given_back
            # what a finalizer frees could end the capture
            with collection_paused(), given_back(_own_pools, self.wish.borrowing is not None):
                record(x, device(self.index), found, self._place(x, found))
        except Exception as error:
            give_up(x, f"recording failed: {error}", self.wish.forced)
            return
        copies = sum(found.count(r) for r in (Role.COPY, Role.OUT))
        emit("cudagraphs", "recorded", seconds=round(time.perf_counter() - start, 6),
             launches=self.plan.launches, calls=self.plan.calls, copies=copies,
             lent=found.count(Role.HELD))  # fmt: skip


def _addresses(x: _driver.Executable) -> list[int]:
    """Where the inputs of the call are that asked for a graph."""
    return [t.data_ptr() for t in x.given()]


def _own_pool(where: Device) -> Any:
    """A pool from which a graph takes all of its memory."""
    own = where.new_pool()
    _regions.add(own)
    return own


def _have_gradients(inputs: Iterable[object]) -> bool:
    """Whether gradients of an earlier step are there."""
    return any(isinstance(x, torch.Tensor) and x.is_leaf and x.grad is not None for x in inputs)


def record(x: _driver.Executable, where: Device, found: bytes, place: Place) -> None:
    """Record the call in flight with these roles. Errors: whatever the launch list raises."""
    apart = place.region is None and place.lent is not place.pool
    change = _pool_changer(place.pool, place.lent, where) if apart else None
    known = bytes(map(place.role, range(len(found)), found))
    x.prepare(known, place.lent, change, place.region, place.frees)
    with where.recording(place.pool):
        _driver.capture_begin(where.index)
        try:
            x.trace()
        except BaseException:
            _driver.capture_drop(_driver.capture_end(where.index))
            raise
        graph = _driver.capture_end(where.index)
    if not graph:
        raise RuntimeError("an operator did what a graph cannot hold")
    x.adopt(graph)


def _pool_changer(pool: Any, lent: Any, where: Device) -> Callable[[int], None]:
    def change(lends: int) -> None:
        before, after = (pool, lent) if lends else (lent, pool)
        where.leave(before)
        where.enter(after)

    return change


# ---------------------------------------------------------------- what is held
@dataclass(frozen=True, slots=True)
class SizeReport:
    """One choice of sizes that comes often. graphs: recorded for it; calls: lately. fixed: what
    runs it was compiled for it alone.
    """

    values: tuple[int, ...]
    graphs: int
    lent: int
    calls: int
    fixed: bool = False

    def text(self) -> str:
        said = f"{self.graphs} graphs, {_size(self.lent)} lent, {self.calls} calls"
        return f"{said}, compiled for them alone" if self.fixed else said


def _size_reports() -> Iterator[SizeReport]:
    for whole in alive():
        fixed = whole.fixed()
        for values, run, calls in whole.kept():
            rows = [x.graphs for x in runs_of(run) if isinstance(x, _driver.Executable)]
            known = [row for of in rows if not isinstance(of, str) for row in of]
            lent = sum(row[4] for row in known)
            yield SizeReport(values, len(known), lent, calls, values in fixed)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes that are kept between calls, and the graphs.

    sizes: of graphs that serve a range, the choices that have Executables of their own.
    pool: of the graphs' shared pools; regions: in which forwards and their backwards work; lent: of
    large results that graphs give out, outside of these; arenas and
    gpu_arenas: intermediates of launch lists, on GPUs with cuBLASLt's workspaces; outputs: CPU
    results kept to be used again. pieces: graphs in which the data decides sizes.
    """

    graphs: int
    nodes: int
    copied_per_call: int
    pool: int
    lent: int
    arenas: int
    gpu_arenas: int
    outputs: int
    regions: int = 0
    sizes: tuple[SizeReport, ...] = ()
    pieces: tuple[PiecesReport, ...] = ()

    def text(self) -> str:
        """One line per kind of memory."""
        rows = [
            ("graphs", f"{self.graphs} with {self.nodes} kernels of ours"),
            ("graph pools", _size(self.pool)),
            ("forward and backward", _size(self.regions)),
            ("lent results", _size(self.lent)),
            ("arenas on GPUs", _size(self.gpu_arenas)),
            ("arenas on CPUs", _size(self.arenas)),
            ("results kept on CPUs", _size(self.outputs)),
        ]
        rows += [(f"sizes {', '.join(map(str, r.values))}", r.text()) for r in self.sizes]
        rows += [("graph in pieces", r.text()) for r in self.pieces]
        return "\n".join(f"{name:22}{value}" for name, value in rows)


def _size(n: int) -> str:
    return f"{n / (1 << 20):.1f} MB"


def memory_report() -> MemoryReport:
    """What the native driver holds now."""
    pieces = tuple(importlib.import_module("torchweld.runtime.steps").alive())
    if _driver is None:
        return MemoryReport(0, 0, 0, 0, 0, 0, 0, 0, 0, (), pieces)
    sizes = tuple(_size_reports())
    graphs, nodes, copied, lent, in_regions = _driver.graph_totals()
    outputs, arenas, gpu_arenas = _driver.held()
    gpu_arenas += _driver.product_spaces(False)
    pool = sum(d.pool_bytes() for d in _devices.values())
    regions = sum(map(pool_bytes, list(_regions)))
    return MemoryReport(graphs, nodes, copied, pool, lent - in_regions, arenas, gpu_arenas, outputs,
                        regions, sizes, pieces)  # fmt: skip


def counts() -> dict[str, int]:
    """How many CUDA graphs there are, sizes that have an Executable of their own, and of those the
    ones that something was compiled for."""
    graphs = 0 if _driver is None else _driver.graph_totals()[0]
    return {"cuda_graphs": graphs, "hot_sizes": sum(len(x.kept()) for x in alive()),
            "fixed_sizes": sum(len(x.fixed()) for x in alive())}  # fmt: skip


def trim() -> None:
    """Drop every graph and the pools behind them, which are recorded again when needed, and the
    workspaces of products.
    """
    if _driver is None:
        return
    _driver.product_spaces(True)
    with _lock:
        while _driver.graph_evict():
            pass
        _devices.clear()
