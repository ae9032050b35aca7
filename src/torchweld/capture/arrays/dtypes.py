"""NumPy's dtypes and torch's: which of them have a twin that computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# the unsigned ones above 8 bits are missing: torch has few operators for them
TORCH: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(n): t for n, t in (
        ("bool", torch.bool), ("uint8", torch.uint8), ("int8", torch.int8),
        ("int16", torch.int16), ("int32", torch.int32), ("int64", torch.int64),
        ("float16", torch.float16), ("float32", torch.float32), ("float64", torch.float64),
        ("complex64", torch.complex64), ("complex128", torch.complex128),
    )
}  # fmt: skip
NUMPY: dict[torch.dtype, np.dtype[Any]] = {t: n for n, t in TORCH.items()}
# NumPy 1 chooses dtypes by the values of scalars
BY_DTYPE_ALONE = not np.__version__.startswith(("0.", "1."))

# bool, signed, unsigned, f32 and f64, f16, complex
_KINDS = {"b": "b", "i": "i", "u": "u", "f": "f", "c": "c"}


def kind_of(dtype: np.dtype[Any]) -> str:
    """One letter for the arithmetic of a dtype: b, i, u, f, c as NumPy's, e for half precision."""
    return "e" if dtype == np.float16 else _KINDS.get(dtype.kind, "?")


def is_plain(x: np.ndarray[Any, Any]) -> bool:
    """Whether torch can share the memory of an array as it is, and may write to it."""
    size = x.itemsize
    return (x.dtype in TORCH and x.dtype.isnative and x.flags.writeable and x.flags.aligned
            and all(s >= 0 and s % size == 0 for s in x.strides))  # fmt: skip


def raises_on_errors() -> bool:
    """Whether NumPy does something else at overflow and the like than to warn or to go on."""
    return not {*np.geterr().values()} <= {"warn", "ignore"}
