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

oneDNN allocates its result. Where that is returned, such as the gradient of a weight, the system
gives and clears its pages anew in every call, which takes 0.45 ms a MB; BLAS writes into memory
that is kept for it (runtime/_memory.c), and is not much slower where rows of both operands are
summed. One thread, torch 2.13, 2026-11-30, milliseconds of processor time, oneDNN into new memory /
into memory that was there / aten.mm into kept memory:

    768x128 @ 128x3072      10.5   6.5   7.1
    50257x128 @ 128x768      184    --   114

Its activations are not used: the one for relu turns NaN into 0, and those for gelu and silu cost as
much as a pass of their own.

A product with inner size 1 (angles of rotary embeddings: frequencies @ positions) is the outer
product of two vectors: one multiplication an element, which what reads it computes again.

On a GPU, cuBLAS is left to itself, but for half-precision results whose rows are no multiple of 16
bytes (a vocabulary of 50257): it has slow kernels only for those. On one H200 (torch 2.11, bf16,
2026-11-30) 1024x768 @ 768x50257 takes 842 us, 840 into rows with gaps, 115 with 50304 columns. The
columns up to a multiple of 16 bytes are one product, the few that are left another, and what reads
the result reads both. Where the inner size or a row of an operand is no multiple either, nothing
is gained.
"""

from __future__ import annotations

import torch

from torchweld.base.config import current
from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr, as_expr
from torchweld.ir.loop import Extern, View
from torchweld.ir.sizes import USUAL
from torchweld.lower.builder import Builder, broadcast
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Idx, Spec, Tensor, row_major, whole
from torchweld.lower.value import Val, guarded, inside
from torchweld.lower.views import sliced, t

LINEAR = "mkldnn._linear_pointwise.default"
_LEAST_WORK = 1 << 22  # multiplications
# A result that BLAS had better write: from there on it is kept in memory, and up to there oneDNN
# gains less than new pages cost.
_LEAST_KEPT = 2 << 20  # bytes
_LONGEST_KEPT = 512  # of the dimension that is summed over
# By the times above a slow kernel loses 1 us for every 2 ** 26 multiplications. A second product
# costs 3 us, one more pass over the result as much as an inner size of 50 loses.
_LEAST_SPLIT_WORK = 1 << 28
_LEAST_SPLIT_INNER = 128
_ALIGNMENT = 16  # bytes


@lowering("aten.mm.default")
def mm(b: Builder, x: Tensor, mat2: Tensor) -> Tensor:
    if x.shape[-1] is ONE:
        return _outer(b, x, mat2, None)
    if b.spec.device != "cpu":
        return _split_columns(b, "aten.mm.default", None, x, mat2)
    return _linear(b, x, mat2, None)


@lowering("aten.addmm.default")
def addmm(b: Builder, x: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1,
          alpha: float = 1) -> Tensor:  # fmt: skip
    if (beta, alpha) != (1, 1):
        raise LoweringError("W202", "scaled product")
    if mat1.shape[-1] is ONE:
        return _outer(b, mat1, mat2, x)
    if x.shape != b.spec.shape[1:]:
        raise LoweringError("W202", "sum with a matrix")
    if b.spec.device != "cpu":
        return _split_columns(b, "aten.addmm.default", x, mat1, mat2)
    return _linear(b, mat1, mat2, x)


@lowering("aten.bmm.default")
def bmm(b: Builder, x: Tensor, mat2: Tensor) -> Tensor:
    return _outer(b, x, mat2, None)


@lowering("aten.baddbmm.default")
def baddbmm(b: Builder, x: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1,
            alpha: float = 1) -> Tensor:  # fmt: skip
    if (beta, alpha) != (1, 1):
        raise LoweringError("W202", "scaled product")
    return _outer(b, batch1, batch2, x)


def _outer(b: Builder, x: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., N, 1] @ y [.., 1, M], computed wide and rounded once, as a library does.

    Errors: LoweringError W202 for other sizes, and where TF32 may round the operands.
    """
    dtype = b.spec.dtype
    if x.shape[-1] is not ONE or not dtype.is_float:
        raise LoweringError("W202", "product left to the library")
    if b.spec.device != "cpu" and dtype is DType.F32 and not _exact():
        raise LoweringError("W202", "product left to cuBLAS, which may use TF32")

    def body(idx: Idx) -> Val:
        left, right = x.load((*idx[:-1], ZERO)), y.load((*idx[:-2], ZERO, idx[-1]))
        product = left.to(dtype.compute) * right.to(dtype.compute)
        if bias is None:
            return product
        return bias.load(broadcast(idx, bias.shape)).to(dtype.compute) + product

    return b.emit(body)


def _split_columns(b: Builder, op: str, bias: Tensor | None, x: Tensor,
                   mat2: Tensor) -> Tensor:  # fmt: skip
    """The product as one of aligned rows and one of the columns that are left.

    Errors: LoweringError W202 where cuBLAS has a fast kernel for the whole, or for no part.
    """
    dtype, (rows, columns), inner = b.spec.dtype, b.spec.shape, mat2.shape[0]
    if dtype not in (DType.BF16, DType.F16) or not (columns.is_const and inner.is_const):
        raise LoweringError("W202", "product left to cuBLAS")
    unit, width, summed = _ALIGNMENT // dtype.bytes, columns.value, inner.value
    most = width - width % unit
    if most in (0, width):
        raise LoweringError("W202", "product left to cuBLAS")
    if _usual(rows) * summed * width < _LEAST_SPLIT_WORK or summed < _LEAST_SPLIT_INNER:
        raise LoweringError("W202", "product too small for two")
    given = (b.as_view(x, row_major(x.shape)), b.as_view(t(mat2), row_major(mat2.shape[::-1])))
    if summed % unit or not all(_aligned(v, unit) for v in given):
        raise LoweringError("W202", "operands whose rows are not aligned either")
    parts = []
    for name, start, count, step in (("most", 0, most, most),
                                     ("rest", most, width - most, unit)):  # fmt: skip
        part = sliced(mat2, 1, start, count)
        views = [b.as_view(o, row_major(o.shape)) for o in (x, part)]
        if bias is not None:
            views.insert(0, b.as_view(sliced(bias, 0, start, count), (ONE,)))
        strides = (as_expr(step), ONE)
        out = b.buffer(Spec((rows, as_expr(count)), strides, dtype, b.spec.device), name)
        b.nodes.append(Extern((out,), op, tuple(views), (), (), b.origins))
        parts.append(whole(out))
    large, small = parts

    def body(idx: Idx) -> Val:
        i, j = idx
        return guarded(inside(j, as_expr(most)), large.load(idx), small.load((i, j - most)))

    return b.emit(body)


def _linear(b: Builder, x: Tensor, mat2: Tensor, bias: Tensor | None) -> Tensor:
    """x @ mat2 + bias by oneDNN. Errors: LoweringError where BLAS is as good or needed."""
    operands = (x, mat2) if bias is None else (x, mat2, bias)
    if not available() or any(o.dtype is not DType.F32 for o in operands):
        raise LoweringError("W202", "product left to BLAS")
    rows, inner, columns = (_usual(n) for n in (*x.shape, mat2.shape[1]))
    if rows * inner * columns < _LEAST_WORK or 1 in (inner, columns):
        raise LoweringError("W202", "product too small for oneDNN")
    given = [b.as_view(o, row_major(o.shape)) for o in (x, t(mat2))]
    if not all(map(_adjacent, given)) or b.spec.device != "cpu":
        raise LoweringError("W202", "operand without adjacent elements")
    kept = b.returned and bias is None and rows * columns * DType.F32.bytes >= _LEAST_KEPT
    if kept and inner <= _LONGEST_KEPT and all(v.strides[0] is ONE for v in given):
        raise LoweringError("W202", "product left to BLAS, which writes into memory that is kept")
    last: View | None = None if bias is None else b.as_view(bias, (ONE,))
    if last is not None and last.strides != (ONE,):
        raise LoweringError("W202", "bias without adjacent elements")
    out = b.blank()
    b.nodes.append(Extern((out.buffer,), LINEAR, (*given, last, "none", (), ""), (), (),
                          b.origins))  # fmt: skip
    return whole(out.buffer)


def _aligned(v: View, unit: int) -> bool:
    """Whether the rows of a matrix are dense and begin at multiples of ``unit`` elements."""
    start, step = v.strides
    return step is ONE and start.is_const and start.value % unit == 0


def _usual(n: Expr) -> int:
    """A size, or what one that varies is taken for: products of few rows lose little."""
    return n.value if n.is_const else USUAL


def _adjacent(v: View) -> bool:
    """Whether the elements along some dimension lie next to each other."""
    return any(s is ONE and n is not ONE for n, s in zip(v.shape, v.strides, strict=True))


def _exact() -> bool:
    """Whether f32 products are asked to be computed in f32."""
    return torch.get_float32_matmul_precision() == "highest"


def available() -> bool:
    """Whether oneDNN is there, on, and asked to compute f32 in f32."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.backends.mkldnn.enabled)
        and _exact()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and "contractions" not in current().skip
    )
