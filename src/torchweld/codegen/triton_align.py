"""Rows that start anywhere: steps counted from an aligned address, so that loads are 16 bytes wide.

A row of 50257 bf16 starts at an odd address in most rows, and a tile that starts there is loaded
element by element. Counted from the last multiple of 16 bytes before the row, the tile is aligned:

    w = s + arange     from the aligned address
    r = w - shift      the step of the row; negative, or beyond the end, in a few masked lanes

A load takes whole groups of 16 bytes of which one element lies in the row. What lies beside it is
memory of the same buffer, or of the same 16 bytes as its last element: readable, and not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.codegen.cpp_index import depends, flat
from torchweld.codegen.sizes import likely
from torchweld.codegen.tiles import TiledStage
from torchweld.ir.expr import ZERO, Expr, Ind, Int, Sym, atoms
from torchweld.ir.loop import Buffer, Load, loads

GRANULE = 16  # bytes
LEAST = 256  # shorter rows do not pay for the masks


@dataclass(frozen=True, slots=True)
class Shift:
    """`amount` elements lie between the aligned address and the row; `group` elements are 16 bytes.

    Shared by all rows whose start has the same remainder.
    """

    amount: Expr
    group: int


def row_start(x: Load, step: Sym) -> Expr | None:
    """Where the row begins that `x` reads one element after the other; None for other loads."""
    e = flat(x.buffer.strides, x.index)
    start = e - step
    if depends(start, step) or any(isinstance(a, Ind) for a in atoms_of(start)):
        return None
    return start


def atoms_of(e: Expr) -> set[Expr]:
    return set() if isinstance(e, Int) else atoms(e)


def shift_of(x: Load, step: Sym) -> Shift | None:
    """How far the rows that `x` reads are from aligned, if that is known and they are not."""
    start = row_start(x, step)
    if start is None or x.buffer.offset * x.dtype.bytes % GRANULE is not ZERO:
        return None
    group = GRANULE // x.dtype.bytes
    amount = start % group
    return None if amount is ZERO else Shift(amount, group)


def shift_for(stages: Iterable[TiledStage], step: Sym, written: set[Buffer],
              private: frozenset[Buffer]) -> Shift | None:  # fmt: skip
    """The shift that serves the first load of the stages that needs one."""
    for stage in stages:
        if stage.step is not step or likely(stage.extent) < LEAST:
            continue
        for n in stage.nests:
            for x in loads(n.body):
                if x.buffer in written or x.buffer in private or x.dtype.bytes > 4:
                    continue
                found = shift_of(x, step)
                room = stage.looped or (found and likely(stage.extent) + found.group <= stage.lanes)
                if found is not None and room:
                    return found
    return None
