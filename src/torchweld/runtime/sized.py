"""A Program for a range of sizes, ready to be called.

Sizes that come often have an Executable of their own, with the memory and the CUDA graphs that it
keeps: they are found natively (_sized.c). All others are run by one whose numbers are changed for
them (a sequence that grows never comes again). All share the compiled functions: no call waits for
a compiler. For a few of those that come very often a Program is compiled in the background, and
kept if their calls are faster with it (trial.py; ADR 0031).
"""

from __future__ import annotations

import enum
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch

from torchweld.base.errors import InternalError, WeldError
from torchweld.base.events import emit
from torchweld.ir.program import Program
from torchweld.ir.program_sizes import at, table_of
from torchweld.runtime.calls import KeepsInputs
from torchweld.runtime.native import Resize, native

try:
    from torchweld.runtime import _driver
except ImportError:  # built without a C compiler
    _driver = None  # type: ignore[assignment]

LIMIT = (1 << 31) - (1 << 22)  # of what GPU kernels compute with in 32 bits
HOT_CALLS = 2  # so often sizes have come when they get an Executable of their own
# Where all places are taken: by so many calls sizes must be ahead of those that have a place, of
# which no more are counted than so many.
AHEAD, MOST_COUNTED = 8, 32
AGE = 512  # calls that found nothing after which all counts are halved
OFTEN = 64  # calls of sizes that have an Executable until one is compiled for them alone
LOSSES = 2  # of one graph that were no faster, after which no more are compiled
_BACKGROUND = "torchweld.runtime.background"  # loaded when sizes come very often

Values = tuple[int, ...]


def with_ints(fn: Callable[..., object] | None,
              numbers: frozenset[int]) -> Callable[..., object] | None:  # fmt: skip
    """`fn`, which takes the captured graph's inputs, called with those of a Program."""
    if fn is None or not numbers:
        return fn

    def call(*inputs: torch.Tensor) -> object:
        return fn(*(int(x) if k in numbers else x for k, x in enumerate(inputs)))

    return call


class Fixed(enum.Enum):
    """What is known of a Program for one choice of sizes."""

    ASKED = "asked for"
    YES = "faster"
    NO = "not used"


class Run(Protocol):
    """What the Program of one choice of sizes became (see executable.Executable)."""

    explain: Callable[..., object] | None
    eager: Callable[..., object] | None

    @property
    def driver(self) -> str: ...

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]: ...

    def consume(self, inputs: list[torch.Tensor], /) -> tuple[Any, ...]: ...

    def trim(self) -> None: ...


class Fixing(Protocol):
    """What makes Executables for one choice of sizes that share nothing with those for a range."""

    @property
    def prepare(self) -> Callable[[Values], Program]:
        """Compiles a Program for these sizes; takes seconds. Errors: WeldError."""

    def trial(self, old: Run, made: Program, done: Done) -> Run:
        """What finds out whether the Program, which was prepared, is faster than `old`."""


Done = Callable[[Run, bool, str], None]  # what stays, whether it is the new one, and why


def may_change() -> bool:
    """Whether two calls with the same inputs may give results that differ in their last bits."""
    return not torch.are_deterministic_algorithms_enabled()


def _never(values: Values) -> bool:
    return False


class TooLargeError(InternalError):
    """Sizes that the kernels cannot run, and no eager function that could."""


# ---------------------------------------------------------------- by which sizes a call is found
def _size(dim: int) -> Callable[[torch.Tensor], int]:
    return lambda t: t.size(dim)


def _stride(dim: int) -> Callable[[torch.Tensor], int]:
    return lambda t: t.stride(dim)


def _number(dim: int) -> Callable[[torch.Tensor], int]:
    return lambda t: int(t if isinstance(t, int) else t.item())


_READERS = {"size": _size, "stride": _stride, "number": _number}


class Lookup(KeepsInputs):
    """The readable reference of _driver.Sized, and what runs where that was not built."""

    _read: list[tuple[int, Callable[[Any], int]]]
    _ints: set[int]
    _as_tensor: Callable[[int], torch.Tensor]
    _kept: dict[Values, list[Any]]
    found: int
    often_at: int

    def __new__(cls, readings: tuple[tuple[str, int, int], ...], numbers: tuple[int, ...],
                as_tensor: Callable[[int], torch.Tensor]) -> Lookup:  # fmt: skip
        self = super().__new__(cls)
        self._read = [(k, _READERS[kind](dim)) for kind, k, dim in readings]
        self._ints = {*numbers, *(k for kind, k, _ in readings if kind == "number")}
        self._as_tensor = as_tensor
        self._kept = {}
        self.found = self.often_at = 0
        return self

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = tuple([read(inputs[k]) for k, read in self._read])
        given = [self._as_tensor(x) if k in self._ints and isinstance(x, int) else x
                 for k, x in enumerate(inputs)]  # fmt: skip
        row = self._kept.pop(values, None)
        if row is None:
            return self.miss(values, *given)
        self._kept[values] = row
        run = row[0]
        row[1] += 1
        self.found += 1
        if row[1] == self.often_at:
            self.often(values)
        return run(*given)  # type: ignore[no-any-return]

    def miss(self, values: Values, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """A call whose sizes are not kept."""
        raise NotImplementedError

    def often(self, values: Values) -> None:
        """Told once of sizes that were called `often_at` times."""

    def keep(self, values: Values, run: Run) -> None:
        """Calls with these sizes are run by this."""
        self._kept.setdefault(values, [run, 0])[0] = run

    def forget(self, values: Values) -> bool:
        """Keep nothing for these sizes; whether something was kept."""
        return self._kept.pop(values, None) is not None

    def kept(self) -> list[tuple[Values, Run, int]]:
        """Sizes, what runs them, and calls; the last used first."""
        return [(values, *row) for values, row in reversed(self._kept.items())]

    def age(self) -> None:
        """Halve what is known of how often each is called."""
        for row in self._kept.values():
            row[1] //= 2


_Base: Any = Lookup if isinstance(native(), str) else _driver.Sized


# ---------------------------------------------------------------- what runs them
class _Eager(KeepsInputs):
    """What runs sizes that are too large for the kernels: eager."""

    driver = "eager"
    explain: Callable[..., object] | None = None
    eager: Callable[..., object] | None = None

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        if self.eager is None:
            raise TooLargeError("sizes that are too large for the kernels of this graph")
        return tuple(self.eager(*inputs))  # type: ignore[arg-type]

    def trim(self) -> None:
        """There is nothing to give back."""


class SizedExecutable(_Base):  # type: ignore[misc]
    """Called with inputs of any sizes that the Program serves; a number may be given as an int.

    make: from a Program without symbolic sizes to what runs it. visitor: from sizes to what runs
    them, with what lets it run others, unless a call is in flight. numbers: positions of inputs
    that are ints, besides those that are read as sizes. limit: choices of sizes that get an
    Executable of their own. saves: as of what `make` and `visitor` make. driver: of the latest.
    fixing: compiles for one choice of sizes; most_fixed: of so many.
    Errors of a call: as of the Executable of a static Program.
    """

    def __new__(cls, program: Program, *args: Any, numbers: frozenset[int] = frozenset(),
                **kwargs: Any) -> SizedExecutable:  # fmt: skip
        if program.sizes is None:
            raise InternalError("a Program without symbolic sizes")
        readings = program.sizes.readings
        read = {k for kind, k, _ in readings if kind == "number"}
        more = tuple(sorted(numbers - read))
        return super().__new__(cls, readings, more, torch.tensor)  # type: ignore[no-any-return]

    def __init__(
        self, program: Program, make: Callable[[Program], Run],
        visitor: Callable[[Values], tuple[Run, Resize]] | None = None,
        numbers: frozenset[int] = frozenset(), limit: int = 16, saves: bool = False,
        fixing: Fixing | None = None, most_fixed: int = 0,
    ) -> None:  # fmt: skip
        assert program.sizes is not None
        self.program = program
        self.sizes = program.sizes
        self.saves = saves
        self._make = make
        self._numbers = numbers.union(k for kind, k, _ in self.sizes.readings if kind == "number")
        self._limit = limit
        self._met: dict[Values, int] = {}
        self._misses = 0
        self._make_visitor = visitor
        self._visitor: Run | None = None
        self._resize: Resize = _never
        self._visits: Values = ()  # the sizes that the visitor has
        self._guests = 0  # calls of it that are about to begin or in flight
        self._lock = threading.Lock()
        self._making = threading.RLock()
        self._explain: Callable[..., object] | None = None
        self._eager: Callable[..., object] | None = None
        self.driver = "native"
        self._fixing = fixing
        self._most_fixed = most_fixed
        self._fixed: dict[Values, Fixed] = {}
        self.often_at = OFTEN if fixing is not None and most_fixed > 0 else 0
        _alive.add(self)

    def miss(self, values: Values, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """A call with sizes that have no Executable of their own so far."""
        run = self._hot(values)
        if run is not None:
            return run(*inputs)
        visitor = self._invite(values)
        return self._new(values)(*inputs) if visitor is None else self._visit(visitor, inputs)

    # ------------------------------------------------------------ sizes that come often
    def _hot(self, values: Values) -> Run | None:
        """An Executable of their own for these sizes, if they are worth it now."""
        with self._making:
            calls = self._count(values)
            if not self._limit or (self._make_visitor is not None and calls < HOT_CALLS):
                return None
            rows = self.kept()
            for kept, run, _ in rows:
                if kept == values:  # another thread made it meanwhile
                    return run  # type: ignore[no-any-return]
            victim = min(reversed(rows), key=lambda row: row[2]) if self._full(rows) else None
            if victim is not None and not self._ahead(calls, victim[2]):
                return None
            made = self._new(values)
            if not isinstance(made, _Eager):
                if victim is not None:
                    self.forget(victim[0])
                    if self._fixed.get(victim[0]) is not Fixed.NO:
                        self._fixed.pop(victim[0], None)
                self.keep(values, made)
            return made

    def _count(self, values: Values) -> int:
        """How often these sizes have come and had no Executable, of late."""
        self._misses += 1
        if self._misses % AGE == 0:
            self.age()
            self._met = {v: n // 2 for v, n in self._met.items() if n > 1}
        self._met[values] = calls = self._met.get(values, 0) + 1
        return calls

    def _full(self, rows: list[tuple[Values, Run, int]]) -> bool:
        return len(rows) >= self._limit

    def _ahead(self, calls: int, others: int) -> bool:
        """Whether it is worth to make an Executable in the place of another one."""
        return self._make_visitor is None or calls >= min(others, MOST_COUNTED) + AHEAD

    # ------------------------------------------------------------ sizes that come very often
    def often(self, values: Values) -> None:
        """Have a Program compiled for these sizes, if there is reason to."""
        if self._fixing is not None and self._may_fix(values):
            job = partial(_fix, weakref.ref(self), self._fixing.prepare, values)
            importlib.import_module(_BACKGROUND).BACKGROUND.put(job)

    def _may_fix(self, values: Values) -> bool:
        """Whether these sizes are to get a Program of their own; they are taken down if so."""
        with self._making:
            known = list(self._fixed.values())
            lost = known.count(Fixed.NO)
            if values in self._fixed or lost >= LOSSES or len(known) - lost >= self._most_fixed:
                return False
            if not may_change():
                return False
            self._fixed[values] = Fixed.ASKED
            return True

    def try_out(self, values: Values, made: Program | str) -> None:
        """Let calls with these sizes find out whether a Program for them is faster.

        made: a reason if there is none.
        """
        with self._making:
            old = next((run for kept, run, _ in self.kept() if kept == values), None)
            if isinstance(made, str) or old is None or self._fixing is None:
                self._note(values, Fixed.NO, made if isinstance(made, str) else "no longer called")
                return
            done = partial(_settle, weakref.ref(self), values)
            self.keep(values, self._fixing.trial(old, made, done))

    def settle(self, values: Values, stays: Run, better: bool, why: str) -> None:
        """The trial is over: calls with these sizes are run by what stays."""
        with self._making:
            if any(stays in runs_of(run) for kept, run, _ in self.kept() if kept == values):
                self.keep(values, stays)
                self._note(values, Fixed.YES if better else Fixed.NO, why)

    def _note(self, values: Values, what: Fixed, why: str) -> None:
        self._fixed[values] = what
        emit("runtime", "fixed sizes", f"{values}: {what.value}: {why}", sizes=values,
             outcome=what.value, why=why)  # fmt: skip

    def fixed(self) -> list[Values]:
        """The sizes that are run by a Program for them alone."""
        return [values for values, what in self._fixed.items() if what is Fixed.YES]

    # ------------------------------------------------------------ all other sizes
    def _visit(self, run: Run, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """A call of the visitor, which was claimed: nobody changes its sizes meanwhile."""
        try:
            return run(*inputs)
        finally:
            with self._lock:
                self._guests -= 1

    def _invite(self, values: Values) -> Run | None:
        """The visitor with these sizes, claimed; None if it is busy, or they are too large."""
        if self._make_visitor is None:
            return None
        with self._lock:
            if values != self._visits and (self._guests or not self._becomes(values)):
                return None
            self._guests += 1
            return self._visitor

    def _becomes(self, values: Values) -> bool:
        """Whether the visitor, which nobody calls, has these sizes now."""
        run, self._visitor, self._visits = self._visitor, None, ()
        if run is None:
            if self._make_visitor is None or self._program(values) is None:
                return False
            run, self._resize = self._make_visitor(values)
            self._tell(run)
        elif not self._resize(values):
            self._visitor = run
            return False
        self._visitor, self._visits = run, values
        return True

    def _program(self, values: Values) -> Program | None:
        """The Program of these sizes; None if they are too large for its kernels."""
        for n, (lo, hi) in zip(values, self.sizes.bounds, strict=True):
            if (lo is not None and n < lo) or (hi is not None and n > hi):
                raise InternalError(f"a size of {n}, where the graph was made for {lo} to {hi}")
        rows = table_of(self.sizes, values)
        if any(abs(rows[r]) > LIMIT for r in self.sizes.limits):
            return None
        return at(self.program, values)

    def _new(self, values: Values) -> Run:
        program = self._program(values)
        run: Run = _Eager() if program is None else self._make(program)
        self._tell(run)
        return run

    def _tell(self, run: Run) -> None:
        """What a new Executable must know of this one."""
        run.explain = with_ints(self._explain, self._numbers)
        run.eager = with_ints(self._eager, self._numbers)
        self.driver = run.driver

    # ------------------------------------------------------------ what it holds
    def trim(self) -> None:
        """Give back the memory that is kept between calls."""
        for run in self.runs():
            run.trim()

    def runs(self) -> list[Run]:
        """What runs the sizes that are kept, and the visitor."""
        visitor = self._visitor
        kept = [x for _, run, _ in self.kept() for x in runs_of(run)]
        return [*kept, *([] if visitor is None else [visitor])]

    @property
    def explain(self) -> Callable[..., object] | None:
        """Takes the inputs and raises eager's error; asked when a kernel reports a failure."""
        return self._explain

    @explain.setter
    def explain(self, value: Callable[..., object] | None) -> None:
        self._explain = value
        for run in self.runs():
            run.explain = with_ints(value, self._numbers)

    @property
    def eager(self) -> Callable[..., object] | None:
        """Takes the inputs and does in eager what a call does."""
        return self._eager

    @eager.setter
    def eager(self, value: Callable[..., object] | None) -> None:
        self._eager = value
        for run in self.runs():
            run.eager = with_ints(value, self._numbers)


def _fix(whole: weakref.ref[SizedExecutable], prepare: Callable[[Values], Program],
         values: Values) -> None:  # fmt: skip
    """Compile for these sizes; nothing of the graph lives longer because of it."""
    if whole() is None:
        return
    try:
        made: Program | str = prepare(values)
    except WeldError as error:
        made = error.refusal().why
    except Exception as error:
        made = f"{type(error).__name__}: {error}"
    found = whole()
    if found is not None:
        found.try_out(values, made)


def _settle(whole: weakref.ref[SizedExecutable], values: Values, stays: Run, better: bool,
            why: str) -> None:  # fmt: skip
    found = whole()
    if found is not None:
        found.settle(values, stays, better, why)


def runs_of(run: Run) -> list[Run]:
    """What runs the calls of one choice of sizes: two while it is not known which is faster."""
    both: Callable[[], list[Run]] | None = getattr(run, "runs", None)
    return [run] if both is None else both()


_alive: weakref.WeakSet[SizedExecutable] = weakref.WeakSet()


def alive() -> Iterator[SizedExecutable]:
    """Those that some entry still uses."""
    yield from list(_alive)
