"""Tensor: what an FX value is during lowering: a buffer and an index map into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import (
    ONE,
    ZERO,
    Expr,
    SizeSym,
    as_expr,
    atoms,
    hinted,
    index_symbol,
    stride_of,
    substitute,
)
from torchweld.ir.loop import Buffer, Load, View
from torchweld.ir.symbolic_div import least
from torchweld.lower.dtypes import dtype_of
from torchweld.lower.sizes import size
from torchweld.lower.value import Val

Idx: TypeAlias = tuple[Expr, ...]
_LONGER = 64  # elements that rows may be longer by, see graph/rewrites/aligned.py


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape, layout and dtype of a tensor that torch would make."""

    shape: Idx
    strides: Idx
    dtype: DType
    device: str


def spec_of(val: torch.Tensor) -> Spec:
    """The Spec of a fake tensor. Errors: LoweringError for what buffers cannot describe."""
    if val.layout is not torch.strided:
        raise LoweringError("W203", f"layout {val.layout} has no loop form")
    return Spec(exprs(val.shape), exprs(val.stride()), dtype_of(val.dtype), str(val.device))


def exprs(sizes: Iterable[object]) -> Idx:
    """Sizes as Exprs. Errors: LoweringError W204 for a symbolic one that is not ours."""
    return tuple([as_expr(n) if isinstance(n, int) else size(n) for n in sizes])


def _identity(idx: Idx) -> Idx:
    return idx


@dataclass(frozen=True, slots=True)
class Tensor:
    """`buffer` seen through `at`, which maps an index of `shape` to an index of the buffer."""

    buffer: Buffer
    shape: Idx
    at: Callable[[Idx], Idx] = _identity

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def whole(self) -> bool:
        return self.at is _identity

    def load(self, idx: Idx) -> Val:
        if not self.buffer.dtype.computed:
            raise LoweringError("W203", f"load of {self.buffer.dtype.value} elements")
        return Val(Load.make(self.buffer, self.at(idx)))

    def view(self, shape: Idx, at: Callable[[Idx], Idx]) -> Tensor:
        """This tensor seen through one more map, from `shape` to an index of this."""
        if self.whole:
            return Tensor(self.buffer, shape, at)
        outer = self.at
        return Tensor(self.buffer, shape, lambda idx: outer(at(idx)))


def whole(buffer: Buffer) -> Tensor:
    return Tensor(buffer, buffer.shape)


def numel(shape: Idx) -> int:
    """How many elements there are. Errors: TypeError if that is symbolic."""
    n = 1
    for s in shape:
        n *= s.value
    return n


def elements(shape: Idx) -> Expr:
    """How many elements there are."""
    n = ONE
    for s in shape:
        n = n * s
    return n


def void(shape: Idx) -> bool:
    """Whether it is known that there are no elements."""
    return any(n is ZERO for n in shape)


def row_major(shape: Idx) -> Idx:
    """Strides of a contiguous tensor, as torch computes them."""
    out: list[Expr] = []
    step = ONE
    for n in reversed(shape):
        out.append(step)
        step = step if n is ZERO else step * n
    return tuple(reversed(out))


def strided(t: Tensor, strides: Idx) -> View | None:
    """`t` as a window with strides and offset, or None if its map is not of that form.

    `strides`: what to say for dimensions whose stride has no effect (size 0 or 1).
    """
    b = t.buffer
    if t.whole:
        return View(b, b.shape, b.strides, b.offset)
    if void(t.shape):
        return View(b, t.shape, strides, b.offset)
    syms = tuple(ZERO if n is ONE else index_symbol(f"v{d}", n)
                 for d, n in enumerate(t.shape))  # fmt: skip
    found = _window(syms, tuple(t.at(syms)), b.strides, b.offset, strides)
    return None if found is None else View(b, t.shape, *found)


@lru_cache(maxsize=4096)
def _window(
    syms: Idx, index: Idx, steps: Idx, start: Expr, strides: Idx
) -> tuple[Idx, Expr] | None:
    """Strides and offset of memory with `steps`, seen at `index`, a function of `syms`."""
    linear = start
    for i, s in zip(index, steps, strict=True):
        linear = linear + i * s
    offset = substitute(linear, dict.fromkeys(syms, ZERO))
    found: list[Expr] = []
    rest = offset
    for sym, given in zip(syms, strides, strict=True):
        step = given if sym is ZERO else stride_of(linear, sym)
        if step is None or step.lo is None or step.lo < 0 or not made_of_sizes(step):
            return None
        found.append(step)
        rest = rest + step * sym
    return (tuple(found), offset) if rest is linear and made_of_sizes(offset) else None


def made_of_sizes(e: Expr) -> bool:
    """Whether `e` is known when a call begins."""
    return e.is_const or all(isinstance(a, SizeSym) for a in atoms(e))


def same_layout(v: View, strides: Idx) -> bool:
    """Whether `v` has these strides where they matter."""
    return void(v.shape) or all(
        a is b for n, a, b in zip(v.shape, v.strides, strides, strict=True) if n is not ONE
    )


def dense(shape: Idx, strides: Idx) -> bool:
    """Whether the strides address every element once and without gaps."""
    left = [(s, n) for n, s in zip(shape, strides, strict=True) if n is not ONE]
    step = ONE
    while left:
        at = next((k for k, (s, _) in enumerate(left) if s is step), None)
        if at is None:
            return void(shape)
        step = step * left.pop(at)[1]
    return True


def lengthened(shape: Idx, strides: Idx) -> bool:
    """Whether the strides are row-major, of rows that are a little longer than what they hold."""
    if len(shape) < 2 or void(shape) or strides[-1] is not ONE:
        return False
    columns, row = shape[-1], strides[-2]
    if not (columns.is_const and row.is_const and 0 < row.value - columns.value < _LONGER):
        return False
    return strides == row_major((*shape[:-1], row))


def disjoint(shape: Idx, strides: Idx) -> bool:
    """Whether the strides provably address every element once (gaps are allowed)."""
    if void(shape):
        return True
    reach = ZERO
    dims = [(s, n) for n, s in zip(shape, strides, strict=True) if n is not ONE]
    for s, n in sorted(dims, key=lambda x: (hinted(x[0]) or 0, hinted(x[1]) or 0)):
        room = least(s - reach)
        if room is None or room <= 0:
            return False
        reach = reach + s * (n - 1)
    return True
