"""Symbolic sizes in kernels: which ones a kernel uses, and what is decided by their hints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchweld.ir.expr import Expr, Int, SizeSym, Sym, atoms, hinted
from torchweld.ir.loop import Axis, Index, Load, Nest, Scalar, scalars_in, walk
from torchweld.ir.plan import Bundle, Kernel, kernels_of

GUESS = 1024  # of a size without a hint


def likely(e: Expr) -> int:
    """The size, or its likely value: for what is a matter of cost alone."""
    found = hinted(e)
    return GUESS if found is None else found


def symbols_of(k: Kernel | Bundle) -> tuple[Sym, ...]:
    """The symbolic sizes that a kernel's text may need, by name: its last parameters."""
    found: set[Expr] = set()
    for kernel in kernels_of((k,)):
        for e in _exprs(kernel):
            if not isinstance(e, Int):
                found |= atoms(e)
    return tuple(sorted((s for s in found if isinstance(s, SizeSym)), key=lambda s: s.name))


def _exprs(k: Kernel) -> Iterator[Expr]:
    yield from _extents(k.grid)
    yield from _extents((k.lanes,) if k.lanes is not None else ())
    for stage in k.stages:
        yield from _extents(stage.loops)
        for n in stage.nests:
            yield from _of_nest(n)


def _extents(axes: Iterable[Axis]) -> Iterator[Expr]:
    for a in axes:
        yield a.size


def _of_nest(n: Nest) -> Iterator[Expr]:
    yield from _extents(n.all_axes)
    yield from n.out.strides
    yield from n.index
    for root in (n.body, *(s for e in n.index for s in scalars_in(e))):
        for s in walk(root):
            yield from _of_scalar(s)


def _of_scalar(s: Scalar) -> Iterable[Expr]:
    if isinstance(s, Load):
        return (*s.buffer.strides, *s.index)
    return (s.expr,) if isinstance(s, Index) else ()
