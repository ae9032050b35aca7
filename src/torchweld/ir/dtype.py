"""Element types of buffers and scalars, and what C++ calls them. Torch-free."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type. The value is its name in every text form."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
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
        """The type in which arithmetic on it runs: f32 for f16 and bf16, else itself."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self

    def __repr__(self) -> str:
        return self.value


FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
INTS = frozenset({DType.I64, DType.I32, DType.I16, DType.I8, DType.U8})
_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I64: 8, DType.I32: 4,
    DType.I16: 2, DType.I8: 1, DType.U8: 1, DType.BOOL: 1, DType.C64: 8, DType.C128: 16,
    DType.OTHER: 0,
}  # fmt: skip
