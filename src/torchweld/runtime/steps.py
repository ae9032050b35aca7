"""Runs a graph in steps: compiled pieces, and between them what makes sizes (ADR 0028).

The symbols are numbers in a table that grows: those of the inputs are read first, then those of
what each step has made. Memory for what depends on them is allocated by the piece that computes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchweld.ir.conditions import Fact, check, suppose
from torchweld.ir.expr import Expr, evaluate
from torchweld.ir.graph import Cause
from torchweld.ir.steps import Asked, Found, Step, Steps

Call = Callable[..., Sequence[Any]]
Table = dict[Expr, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A step, ready to run. call: compiled, where it is. plain: the graph of the step, as it is.
    facts: what must hold for `call` beyond what is asked anyway."""

    step: Step
    call: Call
    plain: Call
    facts: tuple[Fact, ...] = ()


def _read(found: Iterable[Found], values: Sequence[Any], table: Table) -> None:
    for f in found:
        x = values[f.place]
        if f.kind == "number":
            table[f.symbol] = int(x)
        else:
            table[f.symbol] = x.size(f.dim) if f.kind == "size" else x.stride(f.dim)


def _ask(asked: Iterable[Asked], table: Table) -> None:
    """Errors: LateFactError; RuntimeError for a check of the user's."""
    for a in asked:
        parts = [(r.op, evaluate(r.expr, table)) for r in a.relations]
        if a.message is not None:
            check(a.message, *parts)
        else:
            for op, difference in parts:
                suppose(op, difference)


def _as_expected(x: Tensor, sizes: Sequence[Expr], strides: Sequence[Expr], table: Table) -> bool:
    """Whether a tensor looks as it is taken to be; steps of sizes 0 and 1 never count."""
    shape = x.shape
    if shape != tuple(evaluate(e, table) for e in sizes):
        return False
    return 0 in shape or all(
        n == 1 or step == evaluate(e, table)
        for n, step, e in zip(shape, x.stride(), strides, strict=True)
    )


class StepsRunner:
    """Called with the inputs of the captured graph; returns its outputs."""

    def __init__(self, steps: Steps, pieces: Sequence[Piece]) -> None:
        self.steps = steps
        self.pieces = tuple(pieces)
        _alive.add(self)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Errors: what the operators raise; LateFactError where the frame has to run eagerly."""
        values = [*inputs, *[None] * (self.steps.places - len(inputs))]
        table: Table = {}
        _read(self.steps.found, values, table)
        usual = True
        for piece in self.pieces:
            step = piece.step
            args = [values[t] if isinstance(t, int) else table[t] for t in step.takes]
            fits = usual and (not piece.facts or all(f.holds(table) for f in piece.facts))
            outs = (piece.call if fits else piece.plain)(*args)
            del args
            for place, out in zip(step.gives, outs, strict=True):
                values[place] = out
            del outs
            if step.makes:
                _read(step.found, values, table)
                _ask(step.asked, table)
                usual = usual and all(
                    _as_expected(values[at], sizes, strides, table)
                    for at, sizes, strides in step.layouts
                )
            for place in step.drops:
                values[place] = None
        return tuple(values[place] for place in self.steps.outputs)


@dataclass(frozen=True, slots=True)
class PiecesReport:
    """A graph in which the data decides sizes. pieces: those that are compiled. causes: what makes
    the sizes between them."""

    pieces: int
    causes: tuple[Cause, ...]

    def text(self) -> str:
        """What it is, and why it is no CUDA graph."""
        making = [c for c in self.causes if c.makes]
        one = len(making) == 1
        said = ", ".join(c.text() for c in making)
        makes = "makes a size" if one else "make sizes"
        return (f"{self.pieces} pieces, no CUDA graph around them: {said} {makes} that the host "
                "has to read")  # fmt: skip


_alive: weakref.WeakSet[StepsRunner] = weakref.WeakSet()


def alive() -> Iterator[PiecesReport]:
    """The graphs in pieces that some entry still uses."""
    for runner in list(_alive):
        causes = tuple(c for gap in runner.steps.gaps for c in gap)
        yield PiecesReport(runner.steps.compiled, causes)
