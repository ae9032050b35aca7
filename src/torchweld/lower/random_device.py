"""How a CUDA device numbers random elements: asked once, and tested against eager's own numbers.

Eager's kernels give every thread a subsequence of Philox, so which words an element gets depends on
how many threads the device runs. Where a torch numbers them otherwise than this package believes,
its operators are called.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torchweld.base.errors import LoweringError
from torchweld.ir.philox import WORDS

BLOCK = 256  # threads of eager's kernels
SEED = 0xD1342543DE82EF95  # of the test: all of its bytes matter

# The first number of a draw, and how much later draws are: (dtype, normal, n, threads, offset,
# elements) -> what eager should give at those elements.
Predict = Callable[[torch.dtype, bool, int, int, int, Sequence[int]], list[float]]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Which word an element gets. threads: of a launch over `n` elements; each takes `unroll`
    numbers at a time (4, or 2 doubles).
    """

    n: int
    threads: int
    unroll: int

    @property
    def words(self) -> int:
        """How far a draw moves the generator."""
        return ((self.n - 1) // (self.threads * self.unroll) + 1) * WORDS


def mapping(n: int, most: int, unroll: int) -> Mapping:
    """The mapping of `n` > 0 elements on a device that runs `most` threads."""
    return Mapping(n, min(most, -(-n // BLOCK) * BLOCK), unroll)


def threads_of(device: str, predict: Predict) -> int:
    """How many threads eager's random kernels have at most on a device.

    Errors: LoweringError W202 if they do not number elements as expected, or nobody can tell.
    """
    index = torch.device(device).index or 0
    try:
        if torch.cuda.is_current_stream_capturing():
            raise LoweringError("W202", "a stream is being captured: numbers cannot be compared")
        found = _tested(index, predict)
    except (RuntimeError, AssertionError) as error:
        raise LoweringError("W202", f"no numbers from {device} to compare: {error}") from None
    if isinstance(found, str):
        raise LoweringError("W202", found)
    return found


@functools.lru_cache(maxsize=64)
def _tested(index: int, predict: Predict) -> int | str:
    facts = torch.cuda.get_device_properties(index)
    most = facts.multi_processor_count * (facts.max_threads_per_multi_processor // BLOCK) * BLOCK
    device = torch.device("cuda", index)
    own = torch.Generator(device)
    own.manual_seed(SEED)
    for dtype in (torch.float32, torch.float64):
        for normal in (False, True):
            for n in (1000, 5 * most + 77):
                start = own.get_offset()
                drawn = (torch.randn if normal else torch.rand)(
                    n, generator=own, dtype=dtype, device=device
                )
                where = mapping(n, most, 4 if dtype is torch.float32 else 2)
                probes = sorted({k for k in _probes(most) if k < n} | {n - 1})
                given = drawn[torch.tensor(probes, device=device)].tolist()
                wanted = predict(dtype, normal, n, most, start, probes)
                same = all(_equal(a, b, normal) for a, b in zip(given, wanted, strict=True))
                if not same or own.get_offset() != start + where.words:
                    return f"torch {torch.__version__} numbers the elements of {dtype} differently"
    return most


def _probes(most: int) -> tuple[int, ...]:
    steps = (0, 1, 2, 3, 4, 5)
    return tuple(k * most + j for k in steps for j in (-1, 0, 1, 76) if k * most + j >= 0)


def _equal(a: float, b: float, normal: bool) -> bool:
    """Uniform numbers agree in every bit; logarithm, sine and cosine are a device's own."""
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=5e-6) if normal else a == b
