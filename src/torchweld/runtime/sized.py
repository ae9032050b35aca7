"""A Program for a range of sizes, ready to be called: one Executable per choice that is in use.

All of them share the compiled functions. What a new choice costs is the launch list with its
numbers put in, never a compiler.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch

from torchweld.base.errors import InternalError
from torchweld.ir.program import Program
from torchweld.ir.program_sizes import at, table_of

LIMIT = (1 << 31) - (1 << 22)  # of what GPU kernels compute with in 32 bits
KEPT = 16  # choices of sizes whose Executables are kept, the latest


class Run(Protocol):
    """What the Program of one choice of sizes became (see executable.Executable)."""

    explain: Callable[..., object] | None
    eager: Callable[..., object] | None

    @property
    def driver(self) -> str: ...

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]: ...

    def trim(self) -> None: ...


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
            raise InternalError("sizes that are too large for the kernels of this graph")
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

    make: from a Program without symbolic sizes to what runs it. driver: of the latest.
    """

    def __init__(self, program: Program, make: Callable[[Program], Run]) -> None:
        if program.sizes is None:
            raise InternalError("a Program without symbolic sizes")
        self.program = program
        self.sizes = program.sizes
        self._make = make
        self._read = [(k, _READERS[kind](dim)) for kind, k, dim in program.sizes.readings]
        self._numbers = {k for kind, k, _ in program.sizes.readings if kind == "number"}
        self._made: OrderedDict[tuple[int, ...], Run] = OrderedDict()
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
        return (self._new(values) if run is None else run)(*inputs)

    def _new(self, values: tuple[int, ...]) -> Run:
        for n, (lo, hi) in zip(values, self.sizes.bounds, strict=True):
            if (lo is not None and n < lo) or (hi is not None and n > hi):
                raise InternalError(f"a size of {n}, where the graph was made for {lo} to {hi}")
        rows = table_of(self.sizes, values)
        if any(abs(rows[r]) > LIMIT for r in self.sizes.limits):
            return _Eager(self)
        run = self._make(at(self.program, values))
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
        for run in list(self._made.values()):
            run.trim()

    @property
    def explain(self) -> Callable[..., object] | None:
        """Takes the inputs and raises eager's error; asked when a kernel reports a failure."""
        return self._explain

    @explain.setter
    def explain(self, value: Callable[..., object] | None) -> None:
        self._explain = value
        for run in list(self._made.values()):
            run.explain = self.with_ints(value)

    @property
    def eager(self) -> Callable[..., object] | None:
        """Takes the inputs and does in eager what a call does."""
        return self._eager

    @eager.setter
    def eager(self, value: Callable[..., object] | None) -> None:
        self._eager = value
        for run in list(self._made.values()):
            run.eager = self.with_ints(value)
