"""View operators as index maps, never as nests."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.base.errors import LoweringError
from torchweld.ir.expr import ONE, ZERO, Expr, as_expr, hinted
from torchweld.ir.symbolic_div import least
from torchweld.lower.registry import view
from torchweld.lower.tensor import (
    Idx,
    Spec,
    Tensor,
    dense,
    elements,
    exprs,
    numel,
    row_major,
    same_layout,
    strided,
    void,
)

MINUS_ONE = as_expr(-1)
Specs = tuple[Spec, ...]  # what torch says that the results are like


def wrap(dim: int, rank: int) -> int:
    """A dimension number counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


@view("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default",
      "aten.view_as.default")  # fmt: skip
def identity(x: Tensor, other: object = None) -> Tensor:
    return x


@view("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def reshape(x: Tensor, shape: Sequence[int] = (), size: Sequence[int] = ()) -> Tensor:
    """Same elements in row-major order under another shape."""
    given = exprs(size or shape)
    if any(n is MINUS_ONE for n in given):
        known = elements(tuple(n for n in given if n is not MINUS_ONE))
        rest = ZERO if known is ZERO else elements(x.shape) // known
        given = tuple(rest if n is MINUS_ONE else n for n in given)
    return reshaped(x, given)


@view("aten._reshape_alias.default")
def reshape_alias(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return reshaped(x, exprs(size))


@view("aten.flatten.using_ints")
def flatten(x: Tensor, start_dim: int, end_dim: int) -> Tensor:
    rank = len(x.shape)
    a, b = wrap(start_dim, rank), wrap(end_dim, rank)
    if not rank:
        return reshaped(x, (ONE,))
    return reshaped(x, (*x.shape[:a], elements(x.shape[a : b + 1]), *x.shape[b + 1 :]))


def reshaped(x: Tensor, shape: Idx) -> Tensor:
    """`x` under `shape`: runs of dimensions with equal products are mapped one by one."""
    if shape == x.shape:
        return x
    if void(shape):
        return x.view(shape, lambda idx: (ZERO,) * len(x.shape))
    groups = _matching_runs(x.shape, shape)
    old = x.shape
    if any(old[d].lo is None or old[d].lo < 1 for olds, _ in groups for d in olds[1:]):  # type: ignore[operator]
        raise LoweringError("W204", f"a view of {list(old)}, which may be empty")

    def at(idx: Idx) -> Idx:
        out: list[Expr] = [ZERO] * len(old)
        for olds, news in groups:
            linear: Expr = ZERO
            for d in news:
                linear = linear * shape[d] + idx[d]
            for d in reversed(olds[1:]):
                out[d] = linear % old[d]
                linear = linear // old[d]
            if olds:
                out[olds[0]] = linear
        return tuple(out)

    return x.view(shape, at)


def _matching_runs(old: Idx, new: Idx) -> list[tuple[list[int], list[int]]]:
    """Dimensions (sizes over 1) of both shapes, in runs with the same number of elements."""
    a = [d for d, n in enumerate(old) if n is not ONE]
    b = [d for d, n in enumerate(new) if n is not ONE]
    runs = []
    i = j = 0
    while i < len(a) and j < len(b):
        i0, j0 = i, j
        m, n = old[a[i]], new[b[j]]
        i, j = i + 1, j + 1
        while m is not n:
            if j == len(b) or (i < len(a) and (hinted(m) or 0) < (hinted(n) or 0)):
                if i == len(a):
                    raise LoweringError("W204", f"{list(old)} is not seen to be {list(new)}")
                m, i = m * old[a[i]], i + 1
            else:
                n, j = n * new[b[j]], j + 1
        runs.append((a[i0:i], b[j0:j]))
    if i < len(a) or j < len(b):
        raise LoweringError("W204", f"{list(old)} is not seen to be {list(new)}")
    return runs


@view("aten.permute.default")
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    rank = len(x.shape)
    order = [wrap(d, rank) for d in dims]
    back = [order.index(d) for d in range(rank)]
    return x.view(tuple(x.shape[d] for d in order), lambda idx: tuple(idx[b] for b in back))


def in_order(x: Tensor, order: Sequence[int]) -> bool:
    """Whether the elements of `x` are side by side in memory with its dimensions in this order."""
    t = permute(x, order)
    dense = row_major(t.shape)
    seen = strided(t, dense)
    return seen is not None and same_layout(seen, dense)


@view("aten.transpose.int")
def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    rank = len(x.shape)
    if not rank:
        return x
    order = list(range(rank))
    a, b = wrap(dim0, rank), wrap(dim1, rank)
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


@view("aten.t.default", "aten.numpy_T.default")
def t(x: Tensor) -> Tensor:
    return permute(x, range(len(x.shape))[::-1])


@view("aten.mT.default")
def matrix_transpose(x: Tensor) -> Tensor:
    return transpose(x, -2, -1)


@view("aten.movedim.intlist")
def movedim(x: Tensor, source: Sequence[int], destination: Sequence[int]) -> Tensor:
    rank = len(x.shape)
    moved = {wrap(d, rank): wrap(s, rank) for s, d in zip(source, destination, strict=True)}
    rest = iter([d for d in range(rank) if d not in moved.values()])
    return permute(x, [moved[d] if d in moved else next(rest) for d in range(rank)])


@view("aten.expand.default", "aten.broadcast_to.default")
def expand(x: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    new = len(size) - len(x.shape)
    shape = tuple(x.shape[d - new] if n is MINUS_ONE else n for d, n in enumerate(exprs(size)))
    if shape == x.shape:
        return x
    old = x.shape

    def at(idx: Idx) -> Idx:
        return tuple(ZERO if n is ONE else i for i, n in zip(idx[new:], old, strict=True))

    return x.view(shape, at)


@view("aten.expand_as.default")
def expand_as(x: Tensor, other: Tensor) -> Tensor:
    return expand(x, other.shape)  # type: ignore[arg-type]


@view("aten.slice.Tensor")
def slice_(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1, like: Specs = ()) -> Tensor:  # fmt: skip
    dim = wrap(dim, len(x.shape))
    n = x.shape[dim]
    if like and not all(e is None or e.is_const for e in (n, _given(start), _given(end))):
        return sliced(x, dim, _from_front(start or 0, n), like[0].shape[dim], step)
    first, length = slice_range(n.value, start, end, step)
    return sliced(x, dim, first, length, step)


def _given(n: int | Expr | None) -> Expr | None:
    return None if n is None else as_expr(n)


def _from_front(start: int | Expr, n: Expr) -> Expr:
    """A position counted from the front. Errors: TypeError if it is not known to be inside."""
    e = as_expr(start)
    e = e + n if e.hi is not None and e.hi < 0 else e
    room = least(e)
    if room is None or room < 0:
        raise TypeError(f"{e.text()} may be negative")
    return e


def slice_range(n: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """First position and number of positions of a slice of `n` elements."""
    a, b, _ = slice(start, end, step).indices(n)
    return a, len(range(a, b, step))


def sliced(
    x: Tensor, dim: int, start: int | Expr, length: int | Expr, step: int | Expr = 1
) -> Tensor:
    """`length` positions of `dim` from `start` on."""
    if x.shape[dim] is as_expr(length) and as_expr(start) is ZERO and as_expr(step) is ONE:
        return x
    shape = (*x.shape[:dim], as_expr(length), *x.shape[dim + 1 :])

    def at(idx: Idx) -> Idx:
        return (*idx[:dim], idx[dim] * step + start, *idx[dim + 1 :])

    return x.view(shape, at)


@view("aten.narrow.default")
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    dim = wrap(dim, len(x.shape))
    return sliced(x, dim, _from_front(start, x.shape[dim]), length)


@view("aten.select.int")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    dim = wrap(dim, len(x.shape))
    where = _from_front(index, x.shape[dim])
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return x.view(shape, lambda idx: (*idx[:dim], where, *idx[dim:]))


@view("aten.squeeze.default")
def squeeze(x: Tensor) -> Tensor:
    return without(x, [d for d, n in enumerate(x.shape) if n is ONE])


@view("aten.squeeze.dim", "aten.squeeze.dims")
def squeeze_dims(x: Tensor, dim: int | Sequence[int]) -> Tensor:
    dims = [dim] if isinstance(dim, int) else dim
    rank = len(x.shape)
    return without(x, [wrap(d, rank) for d in dims if rank and x.shape[wrap(d, rank)] is ONE])


def without(x: Tensor, dims: Sequence[int]) -> Tensor:
    """`x` without dimensions of size 1."""
    gone = set(dims)
    if not gone:
        return x
    rank = len(x.shape)

    def at(idx: Idx) -> Idx:
        rest = iter(idx)
        return tuple(ZERO if d in gone else next(rest) for d in range(rank))

    return x.view(tuple(n for d, n in enumerate(x.shape) if d not in gone), at)


@view("aten.unsqueeze.default")
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    dim = dim + len(x.shape) + 1 if dim < 0 else dim
    shape = (*x.shape[:dim], ONE, *x.shape[dim:])
    return x.view(shape, lambda idx: (*idx[:dim], *idx[dim + 1 :]))


@view("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default",
      "aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default")  # fmt: skip
def split(x: Tensor, split_size: int | Sequence[int] = 0, split_sizes: Sequence[int] = (),
          dim: int = 0, like: Specs = ()) -> tuple[Tensor, ...]:  # fmt: skip
    dim = wrap(dim, len(x.shape))
    if like:
        return _pieces(x, dim, [s.shape[dim] for s in like])
    n = x.shape[dim].value
    if isinstance(split_size, int) and not split_sizes:
        step = split_size
        lengths = [min(step, n - a) for a in range(0, n, step)] if step and n else [n]
    else:
        lengths = list(split_sizes or split_size)  # type: ignore[arg-type]
    return _pieces(x, dim, exprs(lengths))


def _pieces(x: Tensor, dim: int, lengths: Sequence[Expr]) -> tuple[Tensor, ...]:
    """Neighbouring parts of a dimension."""
    out, start = [], ZERO
    for n in lengths:
        out.append(sliced(x, dim, start, n))
        start = start + n
    return tuple(out)


@view("aten.chunk.default")
def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    n = x.shape[wrap(dim, len(x.shape))].value
    if not n:
        return split(x, 0, [0] * chunks, dim)
    return split(x, -(-n // chunks), (), dim)


@view("aten.unbind.int")
def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim = wrap(dim, len(x.shape))
    return tuple(select(x, dim, k) for k in range(x.shape[dim].value))


@view("aten.unfold.default")
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along a dimension; the position in the window is a new last dimension."""
    if not x.shape:
        return x.view(exprs([size]), lambda idx: ())
    dim = wrap(dimension, len(x.shape))
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], as_expr(size))

    def at(idx: Idx) -> Idx:
        return (*idx[:dim], idx[dim] * step + idx[-1], *idx[dim + 1 : -1])

    return x.view(shape, at)


@view("aten.diagonal.default")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    a, b = wrap(dim1, rank), wrap(dim2, rank)
    rows, cols = x.shape[a].value, x.shape[b].value
    length = max(min(rows + min(offset, 0), cols - max(offset, 0)), 0)
    rest = [d for d in range(rank) if d not in (a, b)]
    shape = (*(x.shape[d] for d in rest), as_expr(length))

    def at(idx: Idx) -> Idx:
        found = dict(zip(rest, idx[:-1], strict=True))
        found[a] = idx[-1] + max(-offset, 0)
        found[b] = idx[-1] + max(offset, 0)
        return tuple(found[d] for d in range(rank))

    return x.view(shape, at)


@view("aten.as_strided.default")
def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int],
               storage_offset: int | None = None) -> Tensor:  # fmt: skip
    """A window onto the storage of `x`, which must be dense so that its elements have names."""
    b = x.buffer
    if storage_offset is None:
        if not x.whole:
            raise LoweringError("W202", "as_strided of a view without an offset")
        storage_offset = b.offset.value
    if not dense(b.shape, b.strides):
        raise LoweringError("W202", "as_strided of a tensor with gaps or overlaps")
    start = as_expr(storage_offset) - b.offset
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not (0 <= start.value <= last.value < numel(b.shape)):
        raise LoweringError("W202", "as_strided beyond the tensor")
    by_stride = sorted((d for d, n in enumerate(b.shape) if n is not ONE),
                       key=lambda d: b.strides[d].value)  # fmt: skip

    def at(idx: Idx) -> Idx:
        linear = start
        for i, s in zip(idx, stride, strict=True):
            linear = linear + i * s
        out: list[Expr] = [ZERO] * len(b.shape)
        for d in by_stride:
            out[d] = linear % b.shape[d] if d != by_stride[-1] else linear
            linear = linear // b.shape[d]
        return tuple(out)

    return Tensor(b, exprs(size), at)
