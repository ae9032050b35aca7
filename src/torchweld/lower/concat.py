"""Tensors put together, repeated, shifted and padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchweld.ir.expr import ZERO, Expr, as_expr
from torchweld.lower.builder import Builder
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Idx, Tensor, elements, void
from torchweld.lower.value import (
    Val,
    absolute,
    all_of,
    bounded,
    constant,
    guarded,
    inside,
    maximum,
    minimum,
    position,
)
from torchweld.lower.views import reshaped, select, sliced, wrap


def _same(idx: Idx) -> Idx:
    return idx


@lowering("aten.cat.default")
def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Each piece is stored into its window; empty pieces (of whatever rank) count for nothing."""
    pieces = [t for t in tensors if not void(t.shape)]
    if not pieces:
        return b.emit(lambda idx: constant(0, b.spec.dtype))
    d = wrap(dim, len(b.spec.shape))
    out = b.blank()
    start = ZERO
    for t in pieces:
        length = t.shape[d]
        b.store(sliced(out, d, start, length), t.shape, _same, t.load)
        start = start + length
    return out


@lowering("aten.stack.default")
def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if void(b.spec.shape):
        return b.emit(lambda idx: constant(0, b.spec.dtype))
    d = dim + len(b.spec.shape) if dim < 0 else dim
    out = b.blank()
    for k, t in enumerate(tensors):
        b.store(select(out, d, k), t.shape, _same, t.load)
    return out


@lowering("aten.repeat.default", "aten.tile.default")
def repeat(b: Builder, x: Tensor, repeats: Sequence[int] = (),
           dims: Sequence[int] = ()) -> Tensor:  # fmt: skip
    skip = len(b.spec.shape) - len(x.shape)
    if void(x.shape):
        return b.emit(lambda idx: constant(0, x.dtype))
    return b.emit(lambda idx: x.load(tuple(i % n for i, n in zip(idx[skip:], x.shape,
                                                                  strict=True))))  # fmt: skip


@lowering("aten.flip.default")
def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {wrap(d, len(x.shape)) for d in dims}
    return b.emit(lambda idx: x.load(tuple(x.shape[d] - 1 - i if d in turned else i
                                           for d, i in enumerate(idx))))  # fmt: skip


@lowering("aten.roll.default")
def roll(b: Builder, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Elements moved along dimensions, or along the flattened tensor, and around."""
    if not dims:
        n = elements(x.shape)
        if n is ZERO:
            return b.emit(x.load)
        flat = reshaped(x, (n,)).view((n,), lambda idx: (_turned(idx[0], shifts[0], n),))
        return b.emit(reshaped(flat, x.shape).load)
    by: dict[int, int] = {}
    for s, d in zip(shifts, dims, strict=True):
        k = wrap(d, len(x.shape))
        by[k] = by.get(k, 0) + s

    def at(idx: Idx) -> Idx:
        return tuple(_turned(i, by[d], n) if d in by and n is not ZERO else i
                     for d, (i, n) in enumerate(zip(idx, x.shape, strict=True)))  # fmt: skip

    return b.emit(lambda idx: x.load(at(idx)))


def _turned(i: Expr, shift: int | Expr, n: Expr) -> Expr:
    """Where position `i` of `n` comes from. Errors: TypeError for a size that may be 0."""
    if n.lo is None or n.lo < 1:
        raise TypeError(f"a dimension of {n.text()} may be empty")
    return (i + (-as_expr(shift)) % n) % n


def _padding(x: Tensor, pad: Sequence[int]) -> list[tuple[int, Expr]]:
    """(elements before, size) of each dimension; `pad` starts at the last one."""
    before = [0] * len(x.shape)
    for k in range(len(pad) // 2):
        before[-1 - k] = pad[2 * k]
    return list(zip(before, x.shape, strict=True))


@lowering("aten.constant_pad_nd.default")
def constant_pad(b: Builder, x: Tensor, pad: Sequence[int], value: int | float = 0) -> Tensor:
    before = _padding(x, pad)
    fill = constant(value, x.dtype)
    if void(x.shape):
        return b.emit(lambda idx: fill)

    def body(idx: Idx) -> Val:
        at = tuple(i - p for i, (p, _) in zip(idx, before, strict=True))
        fits = all_of([inside(i, n) for i, n in zip(at, x.shape, strict=True)])
        return guarded(fits, x.load(at), fill)

    return b.emit(body)


def _pad_by(b: Builder, x: Tensor, pad: Sequence[int],
            source: Callable[[Val, int | Val], Val]) -> Tensor:  # fmt: skip
    """Padding that reads `x` at `source(position, size)` of each padded dimension."""
    before = _padding(x, pad)
    padded = range(len(x.shape) - len(pad) // 2, len(x.shape))

    def at(idx: Idx) -> Idx:
        out: list[Expr] = []
        for d, i in enumerate(idx):
            p, n = before[d]
            inner = i - p
            if d not in padded or inside(inner, n) is None:
                out.append(inner)
            else:
                size = n.value if n.is_const else position(n)
                out.append(bounded(source(position(inner), size), n))
        return tuple(out)

    return b.emit(lambda idx: x.load(at(idx)))


@lowering(*(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)))
def replication_pad(b: Builder, x: Tensor, padding: Sequence[int]) -> Tensor:
    return _pad_by(b, x, padding, lambda i, n: minimum(maximum(i, 0), n - 1))


@lowering(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)))
def reflection_pad(b: Builder, x: Tensor, padding: Sequence[int]) -> Tensor:
    return _pad_by(b, x, padding, lambda i, n: (n - 1) - absolute((n - 1) - absolute(i)))


@lowering("aten.pixel_shuffle.default")
def pixel_shuffle(b: Builder, x: Tensor, upscale_factor: int) -> Tensor:
    """Channels spread over squares of side r."""
    r = upscale_factor

    def at(idx: Idx) -> Idx:
        *lead, c, h, w = idx
        return (*lead, c * (r * r) + (h % r) * r + w % r, h // r, w // r)

    return b.emit(lambda idx: x.load(at(idx)))


@lowering("aten.pixel_unshuffle.default")
def pixel_unshuffle(b: Builder, x: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor

    def at(idx: Idx) -> Idx:
        *lead, c, h, w = idx
        return (*lead, c // (r * r), h * r + (c // r) % r, w * r + c % r)

    return b.emit(lambda idx: x.load(at(idx)))


@lowering("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(b: Builder, x: Tensor, groups: int) -> Tensor:
    """Channels of all groups, interleaved."""
    each = x.shape[1].value // groups

    def at(idx: Idx) -> Idx:
        return (idx[0], (idx[1] % groups) * each + idx[1] // groups, *idx[2:])

    return b.emit(lambda idx: x.load(at(idx)))


@lowering("aten.diag_embed.default")
def diag_embed(b: Builder, x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """`x` on a diagonal of the last two (or given) dimensions, zeros elsewhere."""
    rank = len(b.spec.shape)
    r, c = wrap(dim1, rank), wrap(dim2, rank)

    def body(idx: Idx) -> Val:
        rest = [i for d, i in enumerate(idx) if d not in (r, c)]
        k = idx[r] + min(offset, 0)
        on = position(idx[c] - idx[r])
        hit = all_of([inside(k, x.shape[-1]), (on >= offset) & (on <= offset)])
        return guarded(hit, x.load((*rest, k)), constant(0, x.dtype))

    return b.emit(body)


@lowering("aten.rot90.default")
def rot90(b: Builder, x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Quarter turns in the plane of two dimensions."""
    p, q = (wrap(d, len(x.shape)) for d in dims)

    def at(idx: Idx) -> Idx:
        out = list(idx)
        i, j, m, n = idx[p], idx[q], x.shape[p], x.shape[q]
        out[p], out[q] = ((i, j), (j, n - 1 - i), (m - 1 - i, n - 1 - j), (m - 1 - j, i))[k % 4]
        return tuple(out)

    return b.emit(lambda idx: x.load(at(idx)))
