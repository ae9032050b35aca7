"""Matrix products: which library call computes them.

Measured on 2026-11-29 (AMD EPYC Zen 4, torch 2.13, 2 threads, median of 15), f32, microseconds of
aten.addmm and of oneDNN's linear, for rows x inner x columns:

    128x768x768     1151   838      1x1024x4096     488   163
    128x768x3072    5346  3304      1x768x50257   12181  4921
    128x3072x768    4684  3235      1x768x768        46    44
    1024x512x512    2958  2795      8x768x768       124   123
    197x768x3072    7388  4791      64x128x128       21    33
    128x1024x2816   5996  3825      128x128x128      35    46
                                    128x256x256     105   111

A weight that is stored as inner x columns (GPT-2's Conv1D, 128x768x3072) gains as much through its
transposed view: 4923 and 3271. In bf16 the two were equal (one thread).

Its activations are not used: the one for relu turns NaN into 0, and those for gelu and silu cost as
much as a pass of their own.

On a GPU, cuBLAS is left to itself, but for rows of half-precision results whose length is no
multiple of 16 bytes (a vocabulary of 50257): it has slow kernels only for those. Such a result gets
rows that start at multiples of 16 bytes, with gaps in between.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torchweld.base.config import current
from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, as_expr
from torchweld.ir.loop import Extern, View
from torchweld.lower.builder import Builder
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Tensor, row_major, whole
from torchweld.lower.views import t

LINEAR = "mkldnn._linear_pointwise.default"
_LEAST_WORK = 1 << 22  # multiplications
_LEAST_GPU_WORK = 1 << 27
_ALIGNMENT = 16  # bytes


@lowering("aten.mm.default")
def mm(b: Builder, x: Tensor, mat2: Tensor) -> Tensor:
    if b.spec.device != "cpu":
        return _aligned_rows(b, "aten.mm.default", (x, mat2))
    return _linear(b, x, mat2, None)


@lowering("aten.addmm.default")
def addmm(b: Builder, x: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1,
          alpha: float = 1) -> Tensor:  # fmt: skip
    if (beta, alpha) != (1, 1) or x.shape != b.spec.shape[1:]:
        raise LoweringError("W202", "scaled product or sum with a matrix")
    if b.spec.device != "cpu":
        return _aligned_rows(b, "aten.addmm.default", (x, mat1, mat2))
    return _linear(b, mat1, mat2, x)


def _aligned_rows(b: Builder, op: str, operands: tuple[Tensor, ...]) -> Tensor:
    """The product in a buffer whose rows are aligned. Errors: LoweringError where they are so."""
    dtype, (rows, columns) = b.spec.dtype, b.spec.shape
    inner = operands[-1].shape[0]
    unit = _ALIGNMENT // dtype.bytes
    if dtype not in (DType.BF16, DType.F16) or inner.value % unit or not columns.value % unit:
        raise LoweringError("W202", "product left to cuBLAS")
    if rows.value * inner.value * columns.value < _LEAST_GPU_WORK:
        raise LoweringError("W202", "product too small for rows of its own")
    step = as_expr(-(-columns.value // unit) * unit)
    out = b.buffer(replace(b.spec, strides=(step, ONE)))
    given = tuple(b.as_view(o, row_major(o.shape)) for o in operands)
    b.nodes.append(Extern((out,), op, given, (), (), b.origins))
    return whole(out)


def _linear(b: Builder, x: Tensor, mat2: Tensor, bias: Tensor | None) -> Tensor:
    """x @ mat2 + bias by oneDNN. Errors: LoweringError where BLAS is as good or needed."""
    operands = (x, mat2) if bias is None else (x, mat2, bias)
    if not available() or any(o.dtype is not DType.F32 for o in operands):
        raise LoweringError("W202", "product left to BLAS")
    (rows, inner), columns = (n.value for n in x.shape), mat2.shape[1].value
    if rows * inner * columns < _LEAST_WORK or 1 in (inner, columns):
        raise LoweringError("W202", "product too small for oneDNN")
    given = [b.as_view(o, row_major(o.shape)) for o in (x, t(mat2))]
    if not all(map(_adjacent, given)) or b.spec.device != "cpu":
        raise LoweringError("W202", "operand without adjacent elements")
    last: View | None = None if bias is None else b.as_view(bias, (ONE,))
    if last is not None and last.strides != (ONE,):
        raise LoweringError("W202", "bias without adjacent elements")
    out = b.blank()
    b.nodes.append(Extern((out.buffer,), LINEAR, (*given, last, "none", (), ""), (), (),
                          b.origins))  # fmt: skip
    return whole(out.buffer)


def _adjacent(v: View) -> bool:
    """Whether the elements along some dimension lie next to each other."""
    return any(s is ONE and n is not ONE for n, s in zip(v.shape, v.strides, strict=True))


def available() -> bool:
    """Whether oneDNN is there, on, and asked to compute f32 in f32."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.backends.mkldnn.enabled)
        and torch.get_float32_matmul_precision() == "highest"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and "contractions" not in current().skip
    )
