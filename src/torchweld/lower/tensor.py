"""Tensor: what an FX value is during lowering: a buffer and an index map into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Expr, as_expr, index_symbol, stride_of, substitute
from torchweld.ir.loop import Buffer, Load, View
from torchweld.lower.dtypes import dtype_of
from torchweld.lower.value import Val

Idx: TypeAlias = tuple[Expr, ...]


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


def exprs(sizes: object) -> Idx:
    """Sizes as Exprs. Errors: LoweringError W204 for a symbolic one."""
    out = []
    for n in sizes:  # type: ignore[attr-defined]
        if not isinstance(n, int):
            raise LoweringError("W204", f"size {n} is symbolic")
        out.append(as_expr(n))
    return tuple(out)


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
    n = 1
    for s in shape:
        n *= s.value
    return n


def row_major(shape: Idx) -> Idx:
    """Strides of a contiguous tensor, as torch computes them."""
    out: list[Expr] = []
    step = 1
    for n in reversed(shape):
        out.append(as_expr(step))
        step *= max(n.value, 1)
    return tuple(reversed(out))


def strided(t: Tensor, strides: Idx) -> View | None:
    """`t` as a window with strides and offset, or None if its map is not of that form.

    `strides`: what to say for dimensions whose stride has no effect (size 0 or 1).
    """
    b = t.buffer
    if t.whole:
        return View(b, b.shape, b.strides, b.offset)
    if numel(t.shape) == 0:
        return View(b, t.shape, strides, b.offset)
    syms = tuple(ZERO if n.value == 1 else index_symbol(f"v{d}", n)
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
        if step is None or not step.is_const or step.value < 0:
            return None
        found.append(step)
        rest = rest + step * sym
    return (tuple(found), offset) if rest is linear and offset.is_const else None


def same_layout(v: View, strides: Idx) -> bool:
    """Whether `v` has these strides where they matter."""
    return numel(v.shape) == 0 or all(
        a is b for n, a, b in zip(v.shape, v.strides, strides, strict=True) if n.value != 1
    )


def dense(shape: Idx, strides: Idx) -> bool:
    """Whether the strides address every element once and without gaps."""
    step = 1
    dims = sorted((s.value, n.value) for n, s in zip(shape, strides, strict=True) if n.value != 1)
    for s, n in dims:
        if s != step:
            return numel(shape) == 0
        step *= n
    return True


def disjoint(shape: Idx, strides: Idx) -> bool:
    """Whether the strides provably address every element once (gaps are allowed)."""
    reach = 0
    dims = sorted((s.value, n.value) for n, s in zip(shape, strides, strict=True) if n.value != 1)
    for s, n in dims:
        if s <= reach:
            return numel(shape) == 0
        reach += s * (n - 1)
    return True
