"""Where buffers live inside of a kernel: tensors in memory, or arrays private to the thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.base.errors import Unsupported
from torchweld.codegen.cpp_index import depends, flat
from torchweld.codegen.cpp_types import stored
from torchweld.codegen.sizes import likely
from torchweld.ir.dtype import DType
from torchweld.ir.expr import (
    ONE,
    ZERO,
    Expr,
    Int,
    SizeSym,
    Sym,
    as_expr,
    atoms,
    from_terms,
    terms_of,
)
from torchweld.ir.loop import Buffer, contiguous
from torchweld.ir.symbolic_div import fits

Idx = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor: `name` is the pointer to its first element."""

    name: str
    buffer: Buffer

    @property
    def private(self) -> bool:
        return False

    @property
    def empty(self) -> bool:
        return any(isinstance(n, Int) and n.n == 0 for n in self.buffer.shape)

    def offset(self, index: tuple[Expr, ...]) -> Expr:
        return flat(self.buffer.strides, index)


@dataclass(frozen=True, slots=True)
class Array:
    """A row local: one value per iteration of the loops, reused at each grid point.

    `strides`: per dimension of the buffer, 0 where only the grid moves. `base`: the first lane of
    the strip of lanes that the array covers, if the kernel works in strips.
    """

    name: str
    dtype: DType
    elements: Expr
    strides: Idx
    grid: frozenset[Sym]
    lane: Sym | None
    base: Sym | None

    @property
    def private(self) -> bool:
        return True

    @property
    def empty(self) -> bool:
        return False

    @property
    def bytes(self) -> int:
        """Its size, the likely one if that is symbolic."""
        return likely(self.elements) * max(self.dtype.bytes, 1)

    def offset(self, index: tuple[Expr, ...]) -> Expr:
        moving = (within(e, self.grid, self.lane, self.base) for e in index)
        return flat(self.strides, tuple(moving))


def within(e: Expr, grid: frozenset[Sym], lane: Sym | None, base: Sym | None) -> Expr:
    """`e` without what only the grid moves, and counted from the start of the strip of lanes."""
    kept = {m: c for m, c in terms_of(e).items() if not _only(m, grid)}
    out = from_terms(kept)
    if base is not None and lane is not None and _linear_in(out, lane):
        out = out - base
    return out


def _only(monomial: Idx, grid: frozenset[Sym]) -> bool:
    """Whether the grid moves a term, and nothing else does."""
    found = set().union(*(atoms(f) for f in monomial))
    return bool(found & grid) and all(a in grid or isinstance(a, SizeSym) for a in found)


def _linear_in(e: Expr, lane: Sym) -> bool:
    terms = terms_of(e)
    if terms.get((lane,)) != 1:
        return False
    return not any(m != (lane,) and any(depends(f, lane) for f in m) for m in terms)


def array_for(name: str, b: Buffer, indices: Sequence[tuple[Expr, ...]], grid: frozenset[Sym],
              lane: Sym | None, base: Sym | None, strip: int) -> Array:  # fmt: skip
    """The array that holds local `b`, which is written at each of `indices` (piece by piece).

    Errors: Unsupported W204 when an extent has no bound.
    """
    stored(b.dtype)
    extents: list[Expr] = [ONE] * len(b.shape)
    for index in indices:
        for d, e in enumerate(index):
            rel = within(e, grid, None, None)
            if base is not None and lane is not None and _linear_in(rel, lane):
                needed = _extent(b, rel - lane, d) - 1 + strip
            else:
                needed = _extent(b, rel, d)
            extents[d] = _larger(extents[d], needed)
    steps = contiguous(tuple(extents))
    strides = tuple(ZERO if n is ONE else s for n, s in zip(extents, steps, strict=True))
    total = ONE
    for n in extents:
        total = total * n
    return Array(name, b.dtype, total, strides, grid, lane, base)


def _larger(a: Expr, b: Expr) -> Expr:
    """A size that is not below either: symbolic ones are those of whole dimensions."""
    if a.is_const and b.is_const:
        return a if a.value >= b.value else b
    return a if b.is_const else b


def _extent(b: Buffer, e: Expr, dim: int) -> Expr:
    """The positions that `e` needs of a dimension."""
    if e.lo is not None and e.lo >= 0 and e.hi is not None:
        return as_expr(e.hi + 1)
    if len(b.shape) > dim and fits(e, b.shape[dim]):
        return b.shape[dim]
    raise Unsupported("W204", f"local {b.name} is written at {e.text()}, which has no bound")


Place = Memory | Array
