"""Element types of buffers and scalars, and what C++ calls them. Torch-free."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type. The value is its name in every text form."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    # stored, moved, chosen from and cast, never computed in:
    F8E4M3FN = "f8e4m3fn"
    F8E5M2 = "f8e5m2"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2FNUZ = "f8e5m2fnuz"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"
    # carried by buffers, never computed on by generated code:
    C64 = "c64"
    C128 = "c128"
    OTHER = "other"

    # members are compared by identity; Enum's own hash is Python code, and part of every key
    __hash__ = object.__hash__

    @property
    def bytes(self) -> int:
        """Size of one element in bytes (0 for OTHER)."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_int(self) -> bool:
        """Integer, bool excluded."""
        return self in INTS

    @property
    def computed(self) -> bool:
        """Whether generated code can load, store and cast it."""
        return self in FLOATS or self in INTS or self is DType.BOOL

    @property
    def compute(self) -> DType:
        """The type in which arithmetic on it runs: f32 for narrower floats, else itself."""
        return DType.F32 if self in _NARROWER else self

    @property
    def is_float8(self) -> bool:
        """Whether registers hold its 8-bit code, so that arithmetic needs a cast first."""
        return self in FLOAT8

    def __repr__(self) -> str:
        return self.value


FLOAT8 = frozenset({DType.F8E4M3FN, DType.F8E5M2, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ})
_NARROWER = FLOAT8 | {DType.F16, DType.BF16}
FLOATS = _NARROWER | {DType.F64, DType.F32}
INTS = frozenset({DType.I64, DType.I32, DType.I16, DType.I8, DType.U8})
_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I64: 8, DType.I32: 4,
    DType.I16: 2, DType.I8: 1, DType.U8: 1, DType.BOOL: 1, DType.C64: 8, DType.C128: 16,
    DType.OTHER: 0, DType.F8E4M3FN: 1, DType.F8E5M2: 1, DType.F8E4M3FNUZ: 1, DType.F8E5M2FNUZ: 1,
}  # fmt: skip
