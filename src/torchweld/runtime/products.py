"""Calls of matrix products -> what cuBLASLt would have to compute, or why ATen computes it.

ATen's tensors are row-major, cuBLASLt's matrices column-major: a row-major matrix is the column-
major one of its transpose. So a row-major product x @ w is computed as w' @ x'. How operands are
named follows ATen, for cuBLASLt's choice of an algorithm depends on it, and with it the last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, TensorArg, TensorSpec
from torchweld.runtime.cublas import (
    EPILOGUE_BIAS,
    EPILOGUE_GELU_BIAS,
    EPILOGUE_RELU_BIAS,
    TYPES,
    Shape,
)

MM, BMM = "aten.mm.default", "aten.bmm.default"
ADDMM, ACTIVATION = "aten.addmm.default", "aten._addmm_activation.default"
# How many tensors each takes.
PRODUCTS: Mapping[str, int] = MappingProxyType({MM: 2, BMM: 2, ADDMM: 3, ACTIVATION: 3})
_FACTORS = MappingProxyType({"alpha": 1.0, "beta": 1.0, "use_gelu": False})
_MOST = (1 << 31) - 1  # of a dimension, as in ATen

# 40 us and more at an H200's best, in multiplications and in bytes: ATen's launch takes half of it
_LONG_WORK, _LONG_BYTES = 1 << 34, 1 << 27

_Matrix = tuple[bool, int]
"""(whether the columns lie in one piece, elements between pieces)"""


def operands(c: Call) -> tuple[int, ...]:
    """The tensors that a product takes, () if something else is among the arguments."""
    numbers = tuple(a.tensor for a in c.args if isinstance(a, TensorArg))
    return numbers if len(numbers) == len(c.args) == PRODUCTS.get(c.op, 0) else ()


def shape_of(c: Call, tensors: tuple[TensorSpec, ...]) -> Shape | str:
    """The product that a call stands for, or why it is left to ATen."""
    given = [tensors[n] for n in operands(c)]
    if not given or len(c.results) != 1:
        return "not a product of tensors"
    factors = {**_FACTORS, **dict(c.kwargs)}
    if factors.keys() != _FACTORS.keys() or not all(
        isinstance(v, (int, float)) for v in factors.values()
    ):
        return "arguments of an unknown kind"
    out = tensors[c.results[0]]
    if any(s.dtype is not out.dtype or s.device != out.device for s in given):
        return "operands of several types or devices"
    if out.dtype not in TYPES or any(0 in s.sizes for s in (*given, out)):
        return f"no product of {out.dtype.name} {out.sizes}"
    if max(n for s in (*given, out) for n in s.sizes) > _MOST:
        return "a dimension is too large"
    if c.op == BMM:
        return _batched(given[0], given[1], out)
    if len(given) == 2:
        return _rows_by(given[0], given[1], out, 0)
    return _with_bias(c.op, given, out, factors)


def is_long(s: Shape) -> bool:
    """Whether a GPU works on a product for so long that the host's share of it is hidden."""
    read = (s.m * s.k + s.k * s.n + s.m * s.n) * s.batches * s.dtype.bytes
    return s.m * s.n * s.k * s.batches > _LONG_WORK or read > _LONG_BYTES


def _with_bias(
    op: str, given: list[TensorSpec], out: TensorSpec, factors: Mapping[str, object]
) -> Shape | str:
    bias, x, w = given
    alpha, beta, gelu = factors["alpha"], factors["beta"], factors["use_gelu"]
    assert isinstance(alpha, (int, float))
    if beta != 1 or bias.sizes != out.sizes[1:] or (bias.strides != (1,) and bias.sizes != (1,)):
        return "not a bias of one number per column"
    if min(*x.sizes, *w.sizes) < 2:
        return "ATen computes a row or a column with its bias in several steps"
    if out.strides != (out.sizes[1], 1):
        return "ATen computes a product with gaps and its bias in several steps"
    found = _rows_by(x, w, out, 1)
    if isinstance(found, str):
        return found
    activated = EPILOGUE_GELU_BIAS if gelu else EPILOGUE_RELU_BIAS
    return replace(
        found, bias=0, alpha=float(alpha), fused=True,
        epilogue=EPILOGUE_BIAS if op == ADDMM else activated,
    )  # fmt: skip


def _rows_by(x: TensorSpec, w: TensorSpec, out: TensorSpec, first: int) -> Shape | str:
    """x @ w into rows: out' = w' @ x'. first: the position of x among the operands."""
    left, right = _matrix(w.sizes, w.strides), _matrix(x.sizes, x.strides)
    if left is None or right is None:
        return "ATen copies an operand first"
    if len(out.sizes) != 2 or (out.strides[1] != 1 and out.sizes[1] != 1):
        return "the result is not made of rows"
    (rows, inner), columns = x.sizes, w.sizes[1]
    step = out.strides[0] if rows > 1 else columns
    return _settled(first + 1, first, (columns, rows, inner), left, right, step, out.dtype)


def _matrix(sizes: tuple[int, ...], strides: tuple[int, ...]) -> _Matrix | None:
    """How a matrix lies in memory, None if neither its rows nor its columns are in one piece.

    What both would describe is described as ATen does: dense memory first, then with gaps.
    """
    rows, columns = sizes
    down, along = strides
    if _lies(sizes, strides, (columns, 1)):
        return False, columns if rows == 1 else down
    if _lies(sizes, strides, (1, rows)):
        return True, along
    if down == 1 and along >= rows:
        return True, along
    return (False, down) if along == 1 and down >= columns else None


def _lies(sizes: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether the strides are those, where they matter."""
    return all(n == 1 or s == w for n, s, w in zip(sizes, strides, wanted, strict=True))


def _batched(x: TensorSpec, w: TensorSpec, out: TensorSpec) -> Shape | str:
    """x @ w for every product of a batch: by rows, as in `_rows_by`, unless the results are single
    columns.
    """
    batches, rows, columns = out.sizes
    inner = x.sizes[2]
    if out.strides[1:] != (columns, 1):
        return "the results have gaps"
    by_columns = columns == 1
    left, right = (x, w) if by_columns else (w, x)
    m, n = (rows, 1) if by_columns else (columns, rows)
    a = _in_batch(left, by_columns, m, inner)
    b = _in_batch(right, by_columns, inner, n)
    if a is None or b is None:
        return "ATen copies an operand first"
    first = int(not by_columns)
    found = _settled(first, 1 - first, (m, n, inner), a, b, m, out.dtype)
    if batches == 1 or isinstance(found, str):
        return found
    strides = (left.strides[0], right.strides[0], out.strides[0])
    return replace(found, batches=batches, strides=strides)


def _in_batch(s: TensorSpec, by_columns: bool, least: int, other: int) -> _Matrix | None:
    """`_matrix` of the products of a batch: as it is described there, or transposed."""
    fast, slow = (1, 2) if by_columns else (2, 1)
    if s.strides[fast] == 1 and s.strides[slow] >= least:
        return by_columns, s.strides[slow]
    if s.strides[slow] == 1 and s.strides[fast] >= other:
        return not by_columns, s.strides[fast]
    return None


def _settled(
    a: int, b: int, size: tuple[int, int, int], left: _Matrix, right: _Matrix, ldc: int,
    dtype: DType,
) -> Shape | str:  # fmt: skip
    """The product out' = left' @ right', or out = left @ right; steps that do not matter are set
    to the least that is allowed, as in ATen.
    """
    m, n, k = size
    flipped = b < a
    ta, tb = left[0] is flipped, right[0] is flipped
    lda = (k if m <= 1 else left[1]) if ta else (m if k <= 1 else left[1])
    ldb = (n if k <= 1 else right[1]) if tb else (k if n <= 1 else right[1])
    ldc = m if n <= 1 else ldc
    if lda < (k if ta else m) or ldb < (n if tb else k) or ldc < m:
        return "rows of an operand overlap"
    if max(lda, ldb, ldc) > _MOST:
        return "rows are too far apart"
    return Shape(a, b, -1, m, n, k, (ta, tb), lda, ldb, ldc, dtype)
