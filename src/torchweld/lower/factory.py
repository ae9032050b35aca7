"""Tensors made from numbers, and masks by position."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, as_expr
from torchweld.lower.builder import Builder, broadcast
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Tensor
from torchweld.lower.value import Operand, Val, constant, equal, lift, position, where


def _filled(b: Builder, value: Operand) -> Tensor:
    spec = b.spec
    if isinstance(value, complex) or not spec.dtype.computed:
        raise LoweringError("W203", f"fill of {spec.dtype.value} elements")
    v = lift(value, spec.dtype).to(spec.dtype)
    return b.emit(lambda idx: v)


@lowering("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(b: Builder, fill_value: int | float | bool, x: Tensor | None = None,
         size: Sequence[int] = ()) -> Tensor:  # fmt: skip
    return _filled(b, fill_value)


@lowering("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default",
          "aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default",
          "aten.zero.default", "aten.empty_strided.default", "aten.new_empty_strided.default",
          "aten.empty_permuted.default")  # fmt: skip
def zeros(b: Builder, x: Tensor | None = None, size: Sequence[int] = (),
          stride: Sequence[int] = (), physical_layout: Sequence[int] = ()) -> Tensor:  # fmt: skip
    """Zeros, also for tensors whose contents nobody promised."""
    return _filled(b, 0)


@lowering("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(b: Builder, x: Tensor | None = None, size: Sequence[int] = ()) -> Tensor:
    return _filled(b, 1)


@lowering("aten.scalar_tensor.default")
def scalar_tensor(b: Builder, s: int | float | bool) -> Tensor:
    return _filled(b, s)


@lowering("aten.fill.Scalar", "aten.fill.Tensor")
def fill(b: Builder, x: Tensor, value: int | float | bool | Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return b.emit(lambda idx: value.load(()))
    return _filled(b, value)


@lowering("aten.copy.default")
def copy(b: Builder, x: Tensor, src: Tensor) -> Tensor:
    """`src` with the shape and dtype of `x`."""
    return b.emit(lambda idx: src.load(broadcast(idx, src.shape)))


@lowering("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(b: Builder, end: int | float, start: int | float = 0,
           step: int | float = 1) -> Tensor:  # fmt: skip
    """start + i * step: in i64 for integers, else in f64."""
    ints = [as_expr(v) for v in (start, step) if isinstance(v, int | Expr)]
    whole = b.spec.dtype.is_int and len(ints) == 2 and isinstance(end, int | Expr)
    if not whole and not b.spec.dtype.is_float:
        raise LoweringError("W202", "integer range with fractional ends")
    if whole:
        return b.emit(lambda idx: position(idx[0] * ints[1] + ints[0]))
    return b.emit(lambda idx: position(idx[0]).to(DType.F64) * step + start)


@lowering("aten.linspace.default")
def linspace(b: Builder, start: int | float, end: int | float, steps: int) -> Tensor:
    """Evenly spaced, counted from the nearer end as in eager."""
    dtype = b.spec.dtype
    if not dtype.is_float:
        raise LoweringError("W202", "integer linspace")
    if steps < 2:
        return _filled(b, start)
    step = (end - start) / (steps - 1)

    def body(idx: tuple[object, ...]) -> Val:
        i = position(idx[0])  # type: ignore[arg-type]
        near = i.to(dtype.compute) * step + start
        far = constant(end, dtype.compute) - (steps - 1 - i).to(dtype.compute) * step
        return where(i < steps // 2, near, far)

    return b.emit(body)


@lowering("aten.eye.default", "aten.eye.m")
def eye(b: Builder, n: int, m: int | None = None) -> Tensor:
    return b.emit(lambda idx: equal(position(idx[0]), position(idx[1])))


@lowering("aten.tril.default")
def tril(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    """`x` where column - row <= diagonal, else 0."""
    return b.emit(lambda idx: where(position(idx[-1] - idx[-2]) <= diagonal, x.load(idx), 0))


@lowering("aten.triu.default")
def triu(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return b.emit(lambda idx: where(position(idx[-1] - idx[-2]) >= diagonal, x.load(idx), 0))


@lowering("aten._assert_tensor_metadata.default")
def metadata_holds(b: Builder, x: Tensor, size: object = None,
                   stride: object = None) -> tuple[Tensor, ...]:  # fmt: skip
    """Checked when the graph was made: the guards keep it true."""
    return ()
