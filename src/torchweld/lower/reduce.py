"""Reductions: sums, extremes, positions, statistics, norms, scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Expr, as_expr
from torchweld.lower.builder import Builder
from torchweld.lower.registry import reduction
from torchweld.lower.tensor import Idx, Spec, Tensor, elements, row_major
from torchweld.lower.value import (
    Val,
    absolute,
    differ,
    isnan,
    power,
    sqrt,
    truth,
    where,
)
from torchweld.lower.views import wrap


@dataclass(frozen=True, slots=True)
class Over:
    """Which dimensions of a shape are reduced, and whether they stay with size 1."""

    shape: Idx
    dims: frozenset[int]
    keepdim: bool

    @property
    def count(self) -> int | Expr:
        """How many elements are combined; an Expr if that is symbolic."""
        n = elements(tuple(self.shape[d] for d in self.dims))
        return n.value if n.is_const else n

    def row(self, idx: Idx) -> Idx:
        """The index of the kept-dim result for an index of `shape`."""
        return tuple(ZERO if d in self.dims else i for d, i in enumerate(idx))

    def kept(self, idx: Idx) -> Idx:
        """The index of the kept-dim result for an index of the node's result."""
        if self.keepdim:
            return idx
        rest = iter(idx)
        return tuple(ZERO if d in self.dims else next(rest) for d in range(len(self.shape)))


def over(x: Tensor, dim: int | Sequence[int] | None, keepdim: bool = False) -> Over:
    """The reduced dimensions that `dim` names: all of them for None or an empty list."""
    rank = len(x.shape)
    if dim is None or (not isinstance(dim, int) and not dim):
        dims = range(rank)
    else:
        dims = [dim] if isinstance(dim, int) else dim  # type: ignore[assignment]
    return Over(x.shape, frozenset(wrap(d, rank) for d in dims) if rank else frozenset(), keepdim)


Read = Callable[[Idx], Val]


def read_as(x: Tensor, dtype: DType) -> Read:
    """Loads of `x` in the compute type of `dtype`; integers are rounded to `dtype` first."""

    def read(idx: Idx) -> Val:
        v = x.load(idx)
        return (v if v.dtype.is_float else v.to(dtype)).to(dtype.compute)

    return read


def combine(b: Builder, kind: str, o: Over, body: Read, part: str = "",
            after: Callable[[Val], Val] | None = None) -> Tensor:  # fmt: skip
    """REDUCE of `body` as the node's result: `after` and the cast in a nest of their own."""
    spec = b.spec
    probe = body(tuple(ZERO for _ in o.shape)).dtype
    if after is None and probe is spec.dtype:
        return b.reduce(kind, o.shape, tuple(o.dims), body, keepdim=o.keepdim, spec=spec)
    r = b.reduce(kind, o.shape, tuple(o.dims), body, part=part or kind)
    finish = after or (lambda v: v)
    return b.emit(lambda idx: finish(r.load(o.kept(idx))))


@reduction("aten.sum.default", "aten.sum.dim_IntList")
def sum_(b: Builder, x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    return combine(b, "sum", over(x, dim, keepdim), read_as(x, b.spec.dtype))


@reduction("aten.nansum.default")
def nansum(b: Builder, x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    read = read_as(x, b.spec.dtype)

    def body(idx: Idx) -> Val:
        v = read(idx)
        return where(isnan(v), 0, v) if v.dtype.is_float else v

    return combine(b, "sum", over(x, dim, keepdim), body)


@reduction("aten.mean.default", "aten.mean.dim")
def mean(b: Builder, x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    o = over(x, dim, keepdim)
    return combine(b, "sum", o, read_as(x, b.spec.dtype), after=lambda v: v / o.count)


@reduction("aten.prod.default", "aten.prod.dim_int")
def prod(b: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return combine(b, "prod", over(x, dim, keepdim), read_as(x, b.spec.dtype))


@reduction("aten.trace.default")
def trace(b: Builder, x: Tensor) -> Tensor:
    n = min(s.value for s in x.shape)
    read = read_as(x, b.spec.dtype)
    o = Over((as_expr(n),), frozenset({0}), False)
    return combine(b, "sum", o, lambda idx: read((idx[0], idx[0])))


@reduction("aten.amax.default", "aten.max.default")
def amax(b: Builder, x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    return _extreme(b, "max", x, over(x, dim, keepdim))


@reduction("aten.amin.default", "aten.min.default")
def amin(b: Builder, x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    return _extreme(b, "min", x, over(x, dim, keepdim))


def _extreme(b: Builder, kind: str, x: Tensor, o: Over) -> Tensor:
    if x.dtype is DType.BOOL:
        kind = {"max": "any", "min": "all"}[kind]
    return combine(b, kind, o, read_as(x, x.dtype))


@reduction("aten.aminmax.default")
def aminmax(b: Builder, x: Tensor, dim: int | None = None,
            keepdim: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    o = over(x, dim, keepdim)
    return _extreme(b, "min", x, o), _extreme(b, "max", x, o)


@reduction("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(b: Builder, x: Tensor, dim: int | list[int] | None = None,
         keepdim: bool = False) -> Tensor:  # fmt: skip
    return combine(b, "any", _dims_given(x, dim, keepdim), lambda idx: truth(x.load(idx)))


@reduction("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(b: Builder, x: Tensor, dim: int | list[int] | None = None,
         keepdim: bool = False) -> Tensor:  # fmt: skip
    return combine(b, "all", _dims_given(x, dim, keepdim), lambda idx: truth(x.load(idx)))


def _dims_given(x: Tensor, dim: int | list[int] | None, keepdim: bool) -> Over:
    """As `over`, but an empty list reduces nothing."""
    if isinstance(dim, list) and not dim:
        return Over(x.shape, frozenset(), True)
    return over(x, dim, keepdim)


@reduction("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(b: Builder, x: Tensor, dim: list[int] | int | None = None) -> Tensor:
    return combine(b, "sum", over(x, dim), lambda idx: truth(x.load(idx)).to(DType.I64))


@reduction("aten.argmax.default")
def argmax(b: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _position(b, "argmax", x, over(x, dim, keepdim), b.spec)


@reduction("aten.argmin.default")
def argmin(b: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _position(b, "argmin", x, over(x, dim, keepdim), b.spec)


def _position(b: Builder, kind: str, x: Tensor, o: Over, spec: Spec) -> Tensor:
    dtype = DType.U8 if x.dtype is DType.BOOL else x.dtype
    return b.reduce(kind, o.shape, sorted(o.dims), read_as(x, dtype), keepdim=o.keepdim,
                    spec=spec, part=kind)  # fmt: skip


@reduction("aten.max.dim")
def max_dim(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    o = over(x, dim, keepdim)
    return _extreme(b, "max", x, o), _position(b, "argmax", x, o, b.specs[1])


@reduction("aten.min.dim")
def min_dim(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    o = over(x, dim, keepdim)
    return _extreme(b, "min", x, o), _position(b, "argmin", x, o, b.specs[1])


def moments(b: Builder, read: Read, o: Over) -> tuple[Tensor, Tensor]:
    """The mean, and the sum of squared distances from it (two passes), both kept-dim."""
    dims = tuple(o.dims)
    total = b.reduce("sum", o.shape, dims, read, part="sum")
    center = b.temp(lambda idx: total.load(idx) / o.count, total, total.dtype, "mean")

    def squared(idx: Idx) -> Val:
        d = read(idx) - center.load(o.row(idx))
        return d * d

    return center, b.reduce("sum", o.shape, dims, squared, part="squares")


def _variance(b: Builder, x: Tensor, o: Over, correction: float | None,
              after: Callable[[Val], Val]) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(variance through `after` as the node's first result, kept-dim mean)."""
    if not x.dtype.is_float:
        raise LoweringError("W203", f"variance of {x.dtype.value}")
    center, squares = moments(b, read_as(x, x.dtype), o)
    freedom = _freedom(o.count, 1 if correction is None else correction)
    out = b.emit(lambda idx: after(squares.load(o.kept(idx)) / freedom))
    return out, center


def _freedom(count: int | Expr, correction: float) -> float | Expr:
    """What the squares are divided by. Errors: TypeError if a symbolic one may be negative."""
    if isinstance(count, int):
        return max(count - correction, 0)
    left = count - int(correction)
    if int(correction) != correction or left.lo is None or left.lo < 0:
        raise TypeError(f"{count.text()} - {correction} may be negative")
    return left


@reduction("aten.var.correction")
def var(b: Builder, x: Tensor, dim: list[int] | None = None, correction: float | None = None,
        keepdim: bool = False) -> Tensor:  # fmt: skip
    return _variance(b, x, over(x, dim, keepdim), correction, lambda v: v)[0]


@reduction("aten.std.correction")
def std(b: Builder, x: Tensor, dim: list[int] | None = None, correction: float | None = None,
        keepdim: bool = False) -> Tensor:  # fmt: skip
    return _variance(b, x, over(x, dim, keepdim), correction, sqrt)[0]


@reduction("aten.var_mean.correction")
def var_mean(b: Builder, x: Tensor, dim: list[int] | None = None,
             correction: float | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_mean(b, x, over(x, dim, keepdim), correction, lambda v: v)


@reduction("aten.std_mean.correction")
def std_mean(b: Builder, x: Tensor, dim: list[int] | None = None,
             correction: float | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_mean(b, x, over(x, dim, keepdim), correction, sqrt)


def _with_mean(b: Builder, x: Tensor, o: Over, correction: float | None,
               after: Callable[[Val], Val]) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, center = _variance(b, x, o, correction, after)
    return out, b.emit(lambda idx: center.load(o.kept(idx)), b.specs[1], "mean_out")


@reduction("aten.linalg_vector_norm.default")
def vector_norm(b: Builder, x: Tensor, ord: float = 2, dim: list[int] | None = None,
                keepdim: bool = False) -> Tensor:  # fmt: skip
    return _norm(b, x, float(ord), over(x, dim, keepdim))


@reduction("aten.norm.Scalar", "aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dim_dtype",
           "aten.norm.ScalarOpt_dtype")  # fmt: skip
def norm(b: Builder, x: Tensor, p: float | None = 2, dim: list[int] | None = None,
         keepdim: bool = False) -> Tensor:  # fmt: skip
    return _norm(b, x, 2.0 if p is None else float(p), over(x, dim, keepdim))


def _norm(b: Builder, x: Tensor, p: float, o: Over) -> Tensor:
    read = read_as(x, b.spec.dtype)
    if p in (float("inf"), float("-inf")):
        return combine(b, "max" if p > 0 else "min", o, lambda idx: absolute(read(idx)))
    if p == 0:
        return combine(b, "sum", o, lambda idx: differ(read(idx), 0).to(b.spec.dtype.compute))
    if p == 1:
        return combine(b, "sum", o, lambda idx: absolute(read(idx)))
    if p == 2:
        return combine(b, "sum", o, lambda idx: read(idx) * read(idx), after=sqrt)
    return combine(b, "sum", o, lambda idx: power(absolute(read(idx)), p),
                   after=lambda v: power(v, 1 / p))  # fmt: skip


@reduction("aten.cumsum.default")
def cumsum(b: Builder, x: Tensor, dim: int) -> Tensor:
    return _scan(b, "scan_sum", x, dim)


@reduction("aten.cumprod.default")
def cumprod(b: Builder, x: Tensor, dim: int) -> Tensor:
    return _scan(b, "scan_prod", x, dim)


def _scan(b: Builder, kind: str, x: Tensor, dim: int) -> Tensor:
    """An inclusive scan; floats accumulate in f64, as in eager."""
    if not x.shape:
        return b.emit(x.load)
    wide = DType.F64 if b.spec.dtype.is_float else b.spec.dtype
    read = read_as(x, b.spec.dtype)
    d = wrap(dim, len(x.shape))
    if wide is b.spec.dtype:
        return b.scan(kind, x.shape, d, read, b.spec, "")
    spec = Spec(x.shape, row_major(x.shape), wide, b.spec.device)
    s = b.scan(kind, x.shape, d, lambda idx: read(idx).to(wide), spec, "scan")
    return b.emit(s.load)
