"""cuBLASLt by its C interface: the descriptors of a product, and the algorithms it offers for one.

Found at run time beside torch, so building needs no CUDA. What is declared here is in NVIDIA's
cuBLAS documentation, in the section on the cuBLASLt API; numbers were compared with the headers of
13.1 on 2026-11-30. Matrices are column-major: `rows` elements lie next to each other.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from torchweld.ir.dtype import DType

# cudaDataType_t
TYPES = {DType.F32: 0, DType.F64: 1, DType.F16: 2, DType.BF16: 14}
# cublasComputeType_t
COMPUTE_16F, COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 64, 68, 70, 77
# cublasOperation_t
PLAIN, TRANSPOSED = 0, 1
# cublasLtEpilogue_t
EPILOGUE_NONE, EPILOGUE_BIAS, EPILOGUE_RELU_BIAS, EPILOGUE_GELU_BIAS = 1, 4, 6, 36
# cublasLtReductionScheme_t: which ways of adding up parts of a sum are allowed
REDUCE_NOT, REDUCE_IN_COMPUTE_TYPE = 0, 2
# cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
# cublasLtMatmulPreferenceAttributes_t
_MOST_WORKSPACE, _REDUCTIONS = 1, 3
_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C, D

_VERSIONS = ("13", "12")
_OLDEST = 120000
_MOST_ALIGNMENT = 256


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t"""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_Number: TypeAlias = "ctypes._SimpleCData[int]"
_P, _I, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SET = (_P, _I, _P, _SIZE)
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _I, _I),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatrixLayoutCreate": (_P, _I, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, _I, _P, _P),
    "cublasLtMatmul": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _SIZE, _P),
}


class CublasError(Exception):
    """A function of cuBLASLt's that said no, and its status."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} gave status {status}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A product D = epilogue(alpha * op(A) @ op(B) + bias) of column-major matrices.

    a, b, bias: which operand of the operator is which, bias -1 if there is none. op(A) is m x k,
    op(B) k x n, D m x n; lda, ldb, ldc: elements from one column to the next; strides: elements
    from one product of a batch to the next. fused: ATen itself calls cuBLASLt for this product.
    """

    a: int
    b: int
    bias: int
    m: int
    n: int
    k: int
    transposed: tuple[bool, bool]
    lda: int
    ldb: int
    ldc: int
    dtype: DType
    batches: int = 1
    strides: tuple[int, int, int] = (0, 0, 0)
    epilogue: int = EPILOGUE_NONE
    alpha: float = 1.0
    fused: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """How a product may be computed: types, ways of reduction (None: all), bytes of workspace."""

    compute: int
    scale: DType
    reductions: int | None
    workspace: int

    @property
    def tf32(self) -> bool:
        return self.compute == COMPUTE_32F_FAST_TF32


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm that cuBLASLt offers: its description as bytes, and the workspace it needs."""

    algorithm: bytes
    workspace: int


@dataclass(frozen=True, slots=True)
class Library:
    """A library whose functions report a status, loaded. where: its path or name."""

    where: str
    found: ctypes.CDLL

    def call(self, function: str, *args: object) -> None:
        """Errors: CublasError unless the function reports success."""
        status = getattr(self.found, function)(*args)
        if status:
            raise CublasError(function, status)

    def address(self, function: str) -> int:
        return ctypes.cast(getattr(self.found, function), ctypes.c_void_p).value or 0

    def create(self, function: str, *args: object) -> int:
        """What a function makes and writes to where its first argument points."""
        made = ctypes.c_void_p()
        self.call(function, ctypes.byref(made), *args)
        return made.value or 0

    def set(self, function: str, target: int, attribute: int, value: _Number) -> None:
        self.call(function, target, attribute, ctypes.byref(value), ctypes.sizeof(value))


def open_functions(
    where: str, mode: int, functions: Mapping[str, tuple[object, ...]]
) -> Library | str:
    """A library with functions that report a status, or why it cannot be used."""
    try:
        found = ctypes.CDLL(where, mode=mode)
        for name, types in functions.items():
            entry = getattr(found, name)
            entry.argtypes, entry.restype = types, ctypes.c_int
    except OSError as error:
        return str(error)
    except AttributeError as error:
        return f"{where}: {error}"
    return Library(where, found)


def open_library(where: str, mode: int = 0) -> Library | str:
    """The cuBLASLt at a path or of a name, or why it cannot be used."""
    opened = open_functions(where, mode, _FUNCTIONS)
    if isinstance(opened, str):
        return opened
    ask = opened.found.cublasLtGetVersion
    ask.restype = ctypes.c_size_t
    version = int(ask())
    return opened if version >= _OLDEST else f"{where} is {version}, older than {_OLDEST}"


@functools.lru_cache(maxsize=1)
def library() -> Library | str:
    """The cuBLASLt that torch uses, or why there is none."""
    return first_library("libcublasLt.so", open_library)


def first_library(name: str, opener: Callable[[str, int], Library | str]) -> Library | str:
    """The first of the places where a library of CUDA's may be."""
    if torch.version.hip is not None:
        return "torch is built for ROCm"
    why = ""
    for where, mode in _places(name):
        found = opener(where, mode)
        if isinstance(found, Library):
            return found
        why = why or found
    return f"{name} was not found: {why}"


def _places(name: str) -> Iterator[tuple[str, int]]:
    """What the process has loaded, as torch has; then where its packages would have put it."""
    major = (torch.version.cuda or "").partition(".")[0]
    versions = sorted(_VERSIONS, key=lambda v: v != major)
    yield from ((f"{name}.{v}", os.RTLD_NOLOAD) for v in versions)
    packages = Path(torch.__file__).parent.parent / "nvidia"
    for version in versions:
        for folder in (f"cu{version}/lib", "cublas/lib"):
            yield str(packages / folder / f"{name}.{version}"), 0
    yield from ((f"{name}.{v}", 0) for v in versions)


# ---------------------------------------------------------------- descriptors
class Descriptors:
    """What cuBLASLt must know of a product, in its own memory for as long as this object lives."""

    def __init__(self, lib: Library, s: Shape, rules: Rules, bias: int = 0) -> None:
        self._lib = lib
        self._made: list[tuple[str, int]] = []
        self.description = self._create("cublasLtMatmulDesc", rules.compute, TYPES[rules.scale])
        self._describe(_TRANSPOSE_A, ctypes.c_int32(int(s.transposed[0])))
        self._describe(_TRANSPOSE_B, ctypes.c_int32(int(s.transposed[1])))
        self._describe(_EPILOGUE, ctypes.c_uint32(s.epilogue))
        if s.bias >= 0:
            self._describe(_BIAS_POINTER, ctypes.c_uint64(bias))
        a = (s.k, s.m) if s.transposed[0] else (s.m, s.k)
        b = (s.n, s.k) if s.transposed[1] else (s.k, s.n)
        self.layouts = (
            self._layout(s, a, s.lda, s.strides[0]),
            self._layout(s, b, s.ldb, s.strides[1]),
            self._layout(s, (s.m, s.n), s.ldc, s.strides[2]),
        )

    def _create(self, kind: str, *args: object) -> int:
        made = self._lib.create(f"{kind}Create", *args)
        self._made.append((f"{kind}Destroy", made))
        return made

    def _describe(self, attribute: int, value: _Number) -> None:
        self._lib.set("cublasLtMatmulDescSetAttribute", self.description, attribute, value)

    def _layout(self, s: Shape, size: tuple[int, int], step: int, stride: int) -> int:
        made = self._create("cublasLtMatrixLayout", TYPES[s.dtype], *size, step)
        if s.batches > 1:
            name = "cublasLtMatrixLayoutSetAttribute"
            self._lib.set(name, made, _BATCH_COUNT, ctypes.c_int32(s.batches))
            self._lib.set(name, made, _BATCH_STRIDE, ctypes.c_int64(stride))
        return made

    def preference(self, rules: Rules, alignments: Sequence[int]) -> int:
        """What an algorithm may rely on: alignments of A, B, C and D as far as they are given."""
        made = self._create("cublasLtMatmulPreference")
        name = "cublasLtMatmulPreferenceSetAttribute"
        self._lib.set(name, made, _MOST_WORKSPACE, ctypes.c_uint64(rules.workspace))
        if rules.reductions is not None:
            self._lib.set(name, made, _REDUCTIONS, ctypes.c_uint32(rules.reductions))
        for attribute, bytes_ in zip(_ALIGNMENTS, alignments, strict=False):
            self._lib.set(name, made, attribute, ctypes.c_uint32(bytes_))
        return made

    def __del__(self) -> None:
        for function, made in reversed(self._made):
            getattr(self._lib.found, function)(made)


def alignment(address: int) -> int:
    """The power of two that an address is a multiple of, as far as it matters."""
    bits = address | _MOST_ALIGNMENT
    return bits & -bits


def candidates(
    lib: Library, handle: int, d: Descriptors, preference: int, most: int
) -> list[Candidate]:
    """Algorithms for a product, the one that should be fastest first.

    Errors: CublasError if cuBLASLt has none.
    """
    found = (_Found * most)()
    n = ctypes.c_int()
    a, b, c = d.layouts
    lib.call(
        "cublasLtMatmulAlgoGetHeuristic", handle, d.description, a, b, c, c, preference, most,
        ctypes.byref(found), ctypes.byref(n),
    )  # fmt: skip
    return [Candidate(bytes(f.algorithm), f.workspace) for f in found[: n.value] if f.state == 0]


def scale_bits(value: float, scale: DType) -> bytes:
    """A factor as cuBLASLt reads it, in 8 bytes."""
    kind = {DType.F16: torch.float16, DType.F32: torch.float32, DType.F64: torch.float64}[scale]
    return bytes(torch.tensor([value], dtype=kind).view(torch.uint8).tolist()).ljust(8, b"\0")


def multiply(
    lib: Library, handle: int, d: Descriptors, chosen: Candidate, addresses: Sequence[int],
    factors: tuple[bytes, bytes], workspace: tuple[int, int], stream: int,
) -> None:  # fmt: skip
    """One product. addresses: of A, B and D; factors: alpha and beta; workspace: address, bytes.

    Errors: CublasError.
    """
    a, b, c = d.layouts
    alpha, beta = (ctypes.create_string_buffer(f, 8) for f in factors)
    lib.call(
        "cublasLtMatmul", handle, d.description, alpha, addresses[0], a, addresses[1], b, beta,
        addresses[2], c, addresses[2], c, chosen.algorithm, *workspace, stream,
    )  # fmt: skip
