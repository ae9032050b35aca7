"""A Program for a range of sizes, ready to be called.

Sizes that come again have an Executable of their own, with the memory that it keeps; what is met
for the first time is run by one whose numbers are changed for it (a sequence that grows never comes
again). All share the compiled functions: no choice of sizes costs a compiler.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch

from torchweld.base.errors import InternalError
from torchweld.ir.program import Program
from torchweld.ir.program_sizes import at, table_of

LIMIT = (1 << 31) - (1 << 22)  # of what GPU kernels compute with in 32 bits
KEPT = 16  # choices of sizes whose Executables are kept, the latest
_MET = 10_000  # choices that are remembered to have been met


class Run(Protocol):
    """What the Program of one choice of sizes became (see executable.Executable)."""

    explain: Callable[..., object] | None
    eager: Callable[..., object] | None

    @property
    def driver(self) -> str: ...

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]: ...

    def trim(self) -> None: ...


Resize = Callable[[Program], bool]


def _never(program: Program) -> bool:
    return False


class TooLargeError(InternalError):
    """Sizes that the kernels cannot run, and no eager function that could."""


class _Eager:
    """What runs sizes that are too large for the kernels: eager."""

    driver = "eager"
    explain: Callable[..., object] | None = None
    eager: Callable[..., object] | None = None

    def __init__(self, owner: SizedExecutable) -> None:
        self.owner = owner

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        eager = self.owner.with_ints(self.owner.eager)
        if eager is None:
            raise TooLargeError("sizes that are too large for the kernels of this graph")
        return tuple(eager(*inputs))  # type: ignore[arg-type]

    def trim(self) -> None:
        """There is nothing to give back."""


def _size(dim: int) -> Callable[[torch.Tensor], int]:
    return lambda t: t.size(dim)


def _stride(dim: int) -> Callable[[torch.Tensor], int]:
    return lambda t: t.stride(dim)


def _number(dim: int) -> Callable[[torch.Tensor], int]:
    return lambda t: int(t.item())


_READERS = {"size": _size, "stride": _stride, "number": _number}


class SizedExecutable:
    """Called with inputs of any sizes that the Program serves.

    make: from a Program without symbolic sizes to what runs it. visitor: the same, with what lets
    that run a Program of other sizes, unless a call is in flight. numbers: positions of inputs that
    are ints, besides those that are read as sizes. driver: of the latest.
    """

    saves = False

    def __init__(
        self, program: Program, make: Callable[[Program], Run],
        visitor: Callable[[Program], tuple[Run, Resize]] | None = None,
        numbers: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        if program.sizes is None:
            raise InternalError("a Program without symbolic sizes")
        self.program = program
        self.sizes = program.sizes
        self._make = make
        self._read = [(k, _READERS[kind](dim)) for kind, k, dim in program.sizes.readings]
        read = {k for kind, k, _ in program.sizes.readings if kind == "number"}
        self._numbers = numbers | read
        self._made: OrderedDict[tuple[int, ...], Run] = OrderedDict()
        self._met: set[tuple[int, ...]] = set()
        self._make_visitor = visitor
        self._visitor: Run | None = None
        self._resize: Resize = _never
        self._visits: tuple[int, ...] = ()  # the sizes that the visitor has
        self._guests = 0  # calls of it that are about to begin or in flight
        self._lock = threading.Lock()
        self._explain: Callable[..., object] | None = None
        self._eager: Callable[..., object] | None = None
        self.driver = "native"

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The outputs for these inputs; a number that is a size may be given as an int.

        Errors: as of the Executable of a static Program.
        """
        if self._numbers:
            inputs = tuple(
                torch.tensor(x) if k in self._numbers and isinstance(x, int) else x
                for k, x in enumerate(inputs)
            )
        values = tuple([read(inputs[k]) for k, read in self._read])
        run = self._made.get(values)
        if run is None and values not in self._met and self._make_visitor is not None:
            run = self._invite(values)
            if run is not None:
                return self._visit(run, inputs)
        elif run is None and values == self._visits and self._claim(values):
            return self._visit(self._visitor, inputs)  # type: ignore[arg-type]
        return (self._new(values) if run is None else run)(*inputs)

    def _visit(self, run: Run, inputs: tuple[torch.Tensor, ...]
               ) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        """A call of the visitor, which was claimed: nobody changes its sizes meanwhile."""
        try:
            return run(*inputs)
        finally:
            with self._lock:
                self._guests -= 1

    def _claim(self, values: tuple[int, ...]) -> bool:
        with self._lock:
            mine = self._visits == values and self._visitor is not None
            self._guests += mine
            return mine

    def _invite(self, values: tuple[int, ...]) -> Run | None:
        """The visitor with these sizes, claimed; None if it is busy, or they are too large."""
        program = self._program(values)
        if program is None or self._make_visitor is None:
            return None
        with self._lock:
            if len(self._met) >= _MET:
                self._met.clear()
            self._met.add(values)
            if self._guests:
                return None
            run, self._visitor, self._visits = self._visitor, None, ()
            if run is None:
                run, self._resize = self._make_visitor(program)
                run.explain, run.eager = self.with_ints(self._explain), self.with_ints(self._eager)
                self.driver = run.driver
            elif not self._resize(program):
                return None
            self._visitor, self._visits = run, values
            self._guests += 1
            return run

    def _program(self, values: tuple[int, ...]) -> Program | None:
        """The Program of these sizes; None if they are too large for its kernels."""
        for n, (lo, hi) in zip(values, self.sizes.bounds, strict=True):
            if (lo is not None and n < lo) or (hi is not None and n > hi):
                raise InternalError(f"a size of {n}, where the graph was made for {lo} to {hi}")
        rows = table_of(self.sizes, values)
        if any(abs(rows[r]) > LIMIT for r in self.sizes.limits):
            return None
        return at(self.program, values)

    def _new(self, values: tuple[int, ...]) -> Run:
        program = self._program(values)
        if program is None:
            return _Eager(self)
        run = self._make(program)
        run.explain, run.eager = self.with_ints(self._explain), self.with_ints(self._eager)
        self.driver = run.driver
        self._made[values] = run
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        return run

    def with_ints(self, fn: Callable[..., object] | None) -> Callable[..., object] | None:
        """`fn`, which takes the captured graph's inputs, called with those of a Program."""
        if fn is None or not self._numbers:
            return fn

        def call(*inputs: torch.Tensor) -> object:
            return fn(*(int(x) if k in self._numbers else x for k, x in enumerate(inputs)))

        return call

    def trim(self) -> None:
        """Give back the memory that is kept between calls."""
        for run in self._runs():
            run.trim()

    def _runs(self) -> list[Run]:
        visitor = self._visitor
        return [*self._made.values(), *([] if visitor is None else [visitor])]

    @property
    def explain(self) -> Callable[..., object] | None:
        """Takes the inputs and raises eager's error; asked when a kernel reports a failure."""
        return self._explain

    @explain.setter
    def explain(self, value: Callable[..., object] | None) -> None:
        self._explain = value
        for run in self._runs():
            run.explain = self.with_ints(value)

    @property
    def eager(self) -> Callable[..., object] | None:
        """Takes the inputs and does in eager what a call does."""
        return self._eager

    @eager.setter
    def eager(self, value: Callable[..., object] | None) -> None:
        self._eager = value
        for run in self._runs():
            run.eager = self.with_ints(value)
