"""Stores at indices that are loaded, and into windows: a copy, then a nest that stores into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE
from torchweld.lower.builder import Body, Builder, broadcast
from torchweld.lower.gather import advanced, ranked
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Idx, Tensor, elements, void
from torchweld.lower.value import Check, Val, checked, constant, where
from torchweld.lower.views import diagonal, reshaped, select, slice_, wrap


def _same(idx: Idx) -> Idx:
    return idx


def _reader(value: Tensor | int | float | bool, dtype: DType) -> Body:
    """Loads of a broadcast tensor, or the number."""
    if isinstance(value, Tensor):
        t = value
        return lambda idx: t.load(broadcast(idx, t.shape))
    c = constant(value, dtype)
    return lambda idx: c


@lowering("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(b: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
              accumulate: bool = False, unsafe: bool = False) -> Tensor:  # fmt: skip
    if accumulate and x.dtype.is_float8:
        raise LoweringError("W203", f"accumulating store of {x.dtype.value}")
    if any(i is not None and i.dtype is DType.BOOL for i in indices):
        return _masked_put(b, x, indices, values, accumulate)
    how = advanced(x, indices)
    mode = _mode("add", x.dtype) if accumulate else "set"
    out = b.based_on(x)
    b.store(out, how.shape, how.at, _reader(values, x.dtype), mode)
    return out


def _masked_put(b: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
                accumulate: bool) -> Tensor:  # fmt: skip
    """x[mask] = one value: a selection."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or elements(values.shape) is not ONE:
        raise LoweringError("W202", "masked store of several values")
    m = mask
    one = reshaped(values, ())

    def body(idx: Idx) -> Val:
        old = x.load(idx)
        new = one.load(())
        return where(m.load(idx[: len(m.shape)]), old + new if accumulate else new, old)

    return b.emit(body)


def _mode(mode: str, dtype: DType) -> str:
    """A combining mode. Errors: LoweringError for dtypes whose rounding between steps differs."""
    if dtype in (DType.BOOL, DType.F16, DType.BF16) or dtype.is_float8:
        raise LoweringError("W203", f"accumulating store of {dtype.value}")
    return mode


def _scatter(b: Builder, x: Tensor, dim: int, index: Tensor, value: Body,
             mode: str = "set") -> Tensor:  # fmt: skip
    out = b.based_on(x)
    if void(index.shape):
        return out
    target, i = ranked(out), ranked(index)
    d = wrap(dim, len(target.shape))

    def at(idx: Idx) -> Idx:
        return (*idx[:d], checked(i.load(idx), target.shape[d], Check.BOUND), *idx[d + 1 :])

    b.store(target, i.shape, at, value, mode)
    return out


def _source(src: Tensor) -> Body:
    s = ranked(src)
    return lambda idx: s.load(idx)


@lowering("aten.scatter.src")
def scatter_src(b: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(b, x, dim, index, _source(src))


@lowering("aten.scatter.value")
def scatter_value(b: Builder, x: Tensor, dim: int, index: Tensor,
                  value: int | float | bool) -> Tensor:  # fmt: skip
    return _scatter(b, x, dim, index, _reader(value, x.dtype))


_REDUCE = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max",
           "amin": "min"}  # fmt: skip


@lowering("aten.scatter.reduce")
def scatter_combine(b: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor,
                    reduce: str) -> Tensor:  # fmt: skip
    return _scatter(b, x, dim, index, _source(src), _mode(_REDUCE[reduce], x.dtype))


@lowering("aten.scatter.value_reduce")
def scatter_combine_value(b: Builder, x: Tensor, dim: int, index: Tensor,
                          value: int | float, reduce: str) -> Tensor:  # fmt: skip
    return _scatter(b, x, dim, index, _reader(value, x.dtype), _mode(_REDUCE[reduce], x.dtype))


@lowering("aten.scatter_add.default")
def scatter_add(b: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(b, x, dim, index, _source(src), _mode("add", x.dtype))


@lowering("aten.scatter_reduce.two")
def scatter_reduce(b: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str,
                   include_self: bool = True) -> Tensor:  # fmt: skip
    if not include_self or reduce not in _REDUCE:
        raise LoweringError("W202", f"scatter_reduce {reduce}, include_self={include_self}")
    return _scatter(b, x, dim, index, _source(src), _mode(_REDUCE[reduce], x.dtype))


def _along(b: Builder, x: Tensor, dim: int, index: Tensor, value: Body, how: Check,
           mode: str = "set") -> Tensor:  # fmt: skip
    """Stores whole slices at positions of one dimension."""
    out = b.based_on(x)
    target = ranked(out)
    d = wrap(dim, len(target.shape))
    i = reshaped(index, (elements(index.shape),))
    shape = (*target.shape[:d], i.shape[0], *target.shape[d + 1 :])

    def at(idx: Idx) -> Idx:
        return (*idx[:d], checked(i.load((idx[d],)), target.shape[d], how), *idx[d + 1 :])

    b.store(target, shape, at, value, mode)
    return out


@lowering("aten.index_copy.default")
def index_copy(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if len(source.shape) != len(x.shape):
        raise LoweringError("W202", "index_copy of another rank")
    return _along(b, x, dim, index, _source(source), Check.INDEX)


@lowering("aten.index_add.default")
def index_add(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor,
              alpha: int | float = 1) -> Tensor:  # fmt: skip
    if len(source.shape) != len(x.shape):
        raise LoweringError("W202", "index_add of another rank")
    read = _source(source)

    def body(idx: Idx) -> Val:
        return read(idx) if alpha == 1 else read(idx) * alpha

    how = Check.BOUND if len(x.shape) > 1 else Check.INDEX
    return _along(b, x, dim, index, body, how, _mode("add", x.dtype))


@lowering("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(b: Builder, x: Tensor, dim: int, index: Tensor,
               value: Tensor | int | float | bool) -> Tensor:  # fmt: skip
    return _along(b, x, dim, index, _reader(value, x.dtype), Check.WRAP)


def _into(b: Builder, x: Tensor, src: Tensor, window: Tensor, out: Tensor) -> Tensor:
    """`out`, after storing `src` (broadcast) into its `window`."""
    b.store(window, window.shape, _same, lambda idx: src.load(broadcast(idx, src.shape)))
    return out


@lowering("aten.slice_scatter.default")
def slice_scatter(b: Builder, x: Tensor, src: Tensor, dim: int = 0, start: int | None = None,
                  end: int | None = None, step: int = 1) -> Tensor:  # fmt: skip
    d = wrap(dim, len(x.shape))
    out = b.based_on(x)
    window = slice_(out, d, start, end, step, (replace(b.spec, shape=src.shape),))
    return _into(b, x, src, window, out)


@lowering("aten.select_scatter.default")
def select_scatter(b: Builder, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    out = b.based_on(x)
    return _into(b, x, src, select(out, dim, index), out)


@lowering("aten.diagonal_scatter.default")
def diagonal_scatter(b: Builder, x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0,
                     dim2: int = 1) -> Tensor:  # fmt: skip
    out = b.based_on(x)
    return _into(b, x, src, diagonal(out, offset, dim1, dim2), out)
