"""Whether a written input shares memory with another one: asked in every call of such a graph."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import torch

from torchweld.runtime.native import native

try:
    from torchweld.runtime import _driver
except ImportError:  # built without a C compiler
    _driver = None  # type: ignore[assignment]


Meets = Callable[[tuple[object, ...], bytes, bytes], bool]


def overlap_check() -> Meets:
    """What says whether a written input shares memory with another one.

    Of the inputs; for each an int64, the bytes from its first to its last element, 0 for what has
    none; and for each a byte, whether it is written. Errors: TypeError for an input without memory.
    Cost: natively 35 ns per tensor (AMD EPYC, 64 to 600 tensors).
    """
    return meets if _driver is None or isinstance(native(), str) else _driver.overlap


def meets(inputs: tuple[object, ...], extents: bytes, written: bytes) -> bool:
    """`overlap_check`, without the extension."""
    spans = []
    for x, size, changed in zip(inputs, array("q", extents), written, strict=True):
        if size > 0:
            if not isinstance(x, torch.Tensor):
                raise TypeError("an input without memory")
            spans.append((x.data_ptr(), size, changed))
    end, last = -1, 0
    for start, size, changed in sorted(spans):
        if start < end and (changed or last):
            return True
        if start + size > end:
            end, last = start + size, changed
    return False
