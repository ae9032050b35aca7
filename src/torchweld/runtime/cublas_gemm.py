"""cuBLAS's own product, cublasGemmEx: what ATen calls for products without a bias.

It chooses an algorithm by itself, from the same arguments the same one for everybody: so where no
algorithm of cuBLASLt's gives ATen's bits, this does, at the price of choosing in every call. The
C driver calls it (_gemm.c); declarations are those of NVIDIA's cuBLAS documentation.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.ir.dtype import DType
from torchweld.runtime.cublas import (
    TYPES,
    Library,
    Rules,
    Shape,
    first_library,
    open_functions,
)

# cublasMath_t
_MODE_DEFAULT, _MODE_TF32, _MODE_UNROUNDED = 0, 3, 16
_TENSOR_OP = 99  # CUBLAS_GEMM_DEFAULT_TENSOR_OP
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "cublasCreate_v2": (_P,),
    "cublasSetStream_v2": (_P, _P),
    "cublasSetWorkspace_v2": (_P, _P, ctypes.c_size_t),
    "cublasSetMathMode": (_P, _I),
    "cublasGemmEx": (_P, _I, _I, _I, _I, _I, _P, _P, _I, _I, _P, _I, _I, _P, _P, _I, _I, _I, _I),
    "cublasGemmStridedBatchedEx": (
        _P, _I, _I, _I, _I, _I, _P, _P, _I, _I, _L, _P, _I, _I, _L, _P, _P, _I, _I, _L, _I, _I, _I,
    ),
}  # fmt: skip
# as gemm_library takes them
DRIVEN = (
    "cublasGemmEx", "cublasGemmStridedBatchedEx", "cublasSetStream_v2", "cublasSetWorkspace_v2",
    "cublasSetMathMode",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gemm:
    """How cuBLAS is asked for a product. mode: how it may round; workspace: bytes it may use."""

    mode: int
    compute: int
    workspace: int


def gemm_for(s: Shape, rules: Rules) -> Gemm | None:
    """What ATen would ask of cuBLAS, None where it asks cuBLASLt."""
    if s.fused or rules.reductions == 0:
        return None
    mode = _MODE_DEFAULT
    if s.dtype is DType.F32 and rules.tf32:
        mode = _MODE_TF32
    elif rules.reductions is not None and s.batches == 1:
        mode = _MODE_UNROUNDED
    return Gemm(mode, rules.compute, rules.workspace)


def open_cublas(where: str, mode: int = 0) -> Library | str:
    return open_functions(where, mode, _FUNCTIONS)


@functools.lru_cache(maxsize=1)
def library() -> Library | str:
    """The cuBLAS that torch uses, or why there is none."""
    return first_library("libcublas.so", open_cublas)


def arguments(s: Shape, g: Gemm) -> tuple[object, ...]:
    """The rows for gemm_parse in _gemm.c."""
    sizes = (int(s.transposed[0]), int(s.transposed[1]), s.m, s.n, s.k, s.lda, s.ldb, s.ldc)
    return g.mode, (*sizes, s.batches), (TYPES[s.dtype], g.compute), s.strides


def multiply(
    lib: Library, handle: int, s: Shape, g: Gemm, addresses: Sequence[int],
    factors: tuple[bytes, bytes], workspace: int, stream: int,
) -> None:  # fmt: skip
    """One product. addresses: of A, B and D; factors: alpha and beta; workspace: its address.

    Errors: CublasError.
    """
    lib.call("cublasSetStream_v2", handle, stream)
    lib.call("cublasSetWorkspace_v2", handle, workspace, g.workspace)
    lib.call("cublasSetMathMode", handle, g.mode)
    alpha, beta = (ctypes.create_string_buffer(f, 8) for f in factors)
    a, b, out = addresses
    kind, (ta, tb) = TYPES[s.dtype], map(int, s.transposed)
    head = (handle, ta, tb, s.m, s.n, s.k, alpha, a, kind, s.lda)
    tail = (g.compute, _TENSOR_OP)
    if s.batches == 1:
        lib.call("cublasGemmEx", *head, b, kind, s.ldb, beta, out, kind, s.ldc, *tail)
        return
    x, y, z = s.strides
    lib.call("cublasGemmStridedBatchedEx", *head, x, b, kind, s.ldb, y, beta, out, kind, s.ldc, z,
             s.batches, *tail)  # fmt: skip


_handles: dict[tuple[str, str, bool], int] = {}
TRIALS = threading.Lock()
"""Held while the trials' handle is told of a product and asked for it."""


def handle_of(lib: Library, where: str, driven: bool) -> int:
    """A handle of the current device, which torch calls `where`. Errors: CublasError.

    driven: the C driver's own, which knows what it told it; trials have another one.
    """
    key = (lib.where, where, driven)
    if key not in _handles:
        _handles[key] = lib.create("cublasCreate_v2")
    return _handles[key]
