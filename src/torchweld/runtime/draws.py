"""The state of torch's CUDA generators, which compiled calls read and advance as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchweld.ir.philox import WORDS
from torchweld.ir.program import Draw, Program

Methods = tuple[Callable[[], int], Callable[[], int], Callable[[int], Any]]


def generator_of(device: str) -> torch.Generator:
    """Torch's default generator of a CUDA device: manual_seed and set_rng_state act on it."""
    return torch.cuda.default_generators[torch.device(device).index or 0]


def methods(device: str) -> Methods:
    """What tells a generator's seed, what tells its offset in words, and what sets that."""
    found = generator_of(device)
    return found.initial_seed, found.get_offset, found.set_offset


def take(device: str, count: int) -> tuple[int, int]:
    """The seed, as i64, and the first of the blocks that hold the next `count` words.

    Errors: RuntimeError while a stream is being captured.
    """
    seed, get, move = methods(device)
    offset = get()
    move(offset + count)
    number = seed() & ((1 << 64) - 1)
    return number - ((number >> 63) << 64), offset // WORDS


def captured() -> bool:
    """Whether the user captures the current stream: a generator then counts when it is replayed."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def draws(p: Program) -> bool:
    """Whether calls of a Program take random numbers."""
    return any(isinstance(s, Draw) for s in p.steps)
