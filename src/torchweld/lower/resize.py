"""Upsampling by the nearest element, and linearly along two dimensions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, as_expr
from torchweld.lower.builder import Builder
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Idx, Tensor
from torchweld.lower.value import Val, bounded, floor, maximum, minimum, position
from torchweld.lower.value import where as where_
from torchweld.lower.views import in_order


def _single(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def _factors(scale_factors: Sequence[float] | None, n: int) -> list[float | None]:
    return [None] * n if scale_factors is None else list(scale_factors)


def _ratio(size: int, out: int, scale: float | None) -> float:
    """Source elements per output element, in f32 as in eager."""
    return _single(1.0 / scale) if scale is not None and scale > 0 else _single(size / out)


def _nearest_index(i: Expr, size: int, out: int, scale: float | None, exact: bool) -> Expr:
    """The source position of output position `i`: floor(i * ratio) in f32."""
    ratio = _ratio(size, out, scale)
    shift = 0.5 if exact else 0.0
    table = [min(int(_single(_single(k + shift) * ratio)), size - 1) for k in range(out)]
    if table == [k * size // out for k in range(out)]:
        return (i * size) // out
    x = floor((position(i).to(DType.F32) + shift) * ratio).to(DType.I64)
    return bounded(maximum(minimum(x, size - 1), 0), as_expr(size))


def _nearest(b: Builder, x: Tensor, n: int, scales: Sequence[float | None],
             exact: bool) -> Tensor:  # fmt: skip
    sizes = [e.value for e in x.shape[-n:]]
    outs = [e.value for e in b.spec.shape[-n:]]

    def at(idx: Idx) -> Idx:
        return (*idx[:-n], *(
            _nearest_index(i, size, out, scale, exact)
            for i, size, out, scale in zip(idx[-n:], sizes, outs, scales, strict=True)
        ))  # fmt: skip

    return b.emit(lambda idx: x.load(at(idx)))


def _register_nearest(n: int) -> None:
    names = ("scales",) if n == 1 else (("scales_h", "scales_w") if n == 2 else
                                        ("scales_d", "scales_h", "scales_w"))  # fmt: skip

    def by_vec(exact: bool) -> object:
        def lower_vec(b: Builder, x: Tensor, output_size: Sequence[int] | None,
                      scale_factors: Sequence[float] | None) -> Tensor:  # fmt: skip
            return _nearest(b, x, n, _factors(scale_factors, n), exact)

        return lower_vec

    def by_size(exact: bool) -> object:
        def lower_size(b: Builder, x: Tensor, output_size: Sequence[int],
                       **scales: float | None) -> Tensor:  # fmt: skip
            return _nearest(b, x, n, [scales[k] for k in names], exact)

        return lower_size

    for prefix, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        lowering(f"aten.{prefix}{n}d.vec")(by_vec(exact))  # type: ignore[type-var]
        lowering(f"aten.{prefix}{n}d.default")(by_size(exact))  # type: ignore[type-var]


for _n in (1, 2, 3):
    _register_nearest(_n)


Neighbours: TypeAlias = tuple[tuple[Expr, Val], tuple[Expr, Val]]


def _neighbours(i: Expr, size: int, out: int, align_corners: bool, scale: float | None,
                weights: DType) -> Neighbours:  # fmt: skip
    """The two source positions around output position `i` and their weights, kept in `weights`."""
    x = position(i).to(DType.F32)
    if align_corners:
        at = x * (_single((size - 1) / (out - 1)) if out > 1 else 0.0)
    else:
        at = maximum((x + 0.5) * _ratio(size, out, scale) - 0.5, 0)
    low = minimum(floor(at).to(DType.I64), size - 1)
    second = minimum(maximum(at - low.to(DType.F32), 0), 1).to(weights).to(DType.F32)
    first = (1 - second).to(weights).to(DType.F32)
    high = where_(low < size - 1, low + 1, low)
    n = as_expr(size)
    return (bounded(maximum(low, 0), n), first), (bounded(maximum(high, 0), n), second)


def _rounds_weights(x: Tensor, n: int) -> bool:
    """Whether eager keeps the weights in the dtype of `x`; its bilinear kernels, and the one for
    more than 3 channels that lie next to each other, keep them in f32 (measured, torch 2.13)."""
    if n == 2 or x.dtype is DType.F32:
        return False
    channels = x.shape[1]
    if n == 1 or channels.value <= 3:
        return True
    return not in_order(x, (0, *range(2, n + 2), 1))


def _linear(b: Builder, x: Tensor, align_corners: bool,
            scales: Sequence[float | None]) -> Tensor:  # fmt: skip
    """Weighted means of the two neighbours along each of the last dimensions."""
    if x.dtype not in (DType.F32, DType.BF16, DType.F16):
        raise LoweringError("W203", f"linear upsampling of {x.dtype.value}")
    n = len(scales)
    sizes = [e.value for e in x.shape[-n:]]
    outs = [e.value for e in b.spec.shape[-n:]]
    weights = x.dtype if _rounds_weights(x, n) else DType.F32

    def body(idx: Idx) -> Val:
        near = [_neighbours(i, size, out, align_corners, scale, weights)
                for i, size, out, scale in zip(idx[-n:], sizes, outs, scales, strict=True)]

        def mix(at: Idx, d: int) -> Val:
            if d == n:
                return x.load(at).to(DType.F32)
            (low, first), (high, second) = near[d]
            return mix((*at, low), d + 1) * first + mix((*at, high), d + 1) * second

        return mix(idx[:-n], 0)

    return b.emit(body)


def _register_linear(name: str, scales: tuple[str, ...]) -> None:
    def by_vec(b: Builder, x: Tensor, output_size: Sequence[int] | None, align_corners: bool,
               scale_factors: Sequence[float] | None) -> Tensor:  # fmt: skip
        return _linear(b, x, align_corners, _factors(scale_factors, len(scales)))

    def by_size(b: Builder, x: Tensor, output_size: Sequence[int], align_corners: bool,
                **given: float | None) -> Tensor:  # fmt: skip
        return _linear(b, x, align_corners, [given[k] for k in scales])

    lowering(f"aten.{name}.vec")(by_vec)
    lowering(f"aten.{name}.default")(by_size)


_register_linear("upsample_linear1d", ("scales",))
_register_linear("upsample_bilinear2d", ("scales_h", "scales_w"))
_register_linear("upsample_trilinear3d", ("scales_d", "scales_h", "scales_w"))
