"""Which of two Executables for the same calls is faster, found out by the calls themselves.

Both compute the same; calls take turns between them, and the time of each is taken: no call is made
for the measurement alone, and nothing is written or drawn that would not be anyway.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from torchweld.base.errors import WeldError
from torchweld.runtime.calls import KeepsInputs
from torchweld.runtime.sized import Done, Run, may_change

# calls of the new one before any is timed; where the old one has CUDA graphs: until the new one has
WARM, MOST_WARM = 4, 16
PAIRS = 16  # a call of each
# the new one is taken if it needs at most this part of the time, and is faster in so many pairs
PART, MOST_PAIRS = 0.95, 12
LATE = 8  # times that are not known yet, after which calls are not timed

# ends what was begun -> asks for its seconds, None while they are not known
Read = Callable[[], float | None]
Clock = Callable[[], Callable[[], Read]]


def host_clock() -> Callable[[], Read]:
    """Time on the CPU."""
    start = time.perf_counter()

    def end() -> Read:
        seconds = time.perf_counter() - start
        return lambda: seconds

    return end


def device_clock(index: int) -> Clock:
    """Time on a CUDA device between two places of its current stream; nobody waits for it."""

    def begin() -> Callable[[], Read]:
        stream = torch.cuda.current_stream(index)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record(stream)

        def end() -> Read:
            last.record(stream)
            return lambda: first.elapsed_time(last) * 1e-3 if last.query() else None  # type: ignore[no-untyped-call]

        return end

    return begin


def _may_measure(index: int | None) -> bool:
    return index is None or not torch.cuda.is_current_stream_capturing()


class Trial(KeepsInputs):
    """Runs calls by the old or by the new one until it is known which is to stay.

    make: makes the new one, when the first call comes. done: is told which stays, whether it is the
    new one, and why.
    index: of the CUDA device on which they run, None for the CPU.
    """

    def __init__(self, old: Run, make: Callable[[], Run], done: Done,
                 index: int | None = None, clock: Clock | None = None) -> None:  # fmt: skip
        self.old = old
        self.new: Run | None = None
        self._make = make
        self._done = done
        self._index = index
        self._clock = clock or (host_clock if index is None else device_clock(index))
        self._lock = threading.Lock()
        self._stays: Run | None = None
        self._warmed = 0
        self._begun = 0
        self._late: deque[tuple[int, Read]] = deque()
        self._times: tuple[list[float], list[float]] = ([], [])

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        if not may_change() or not _may_measure(self._index):
            return self.old(*inputs)
        if not self._lock.acquire(blocking=False):  # times of calls at the same time say little
            return self.old(*inputs)
        try:
            return self._turn(inputs)
        finally:
            self._lock.release()

    def _turn(self, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        self._hear()
        new = self._made() if self._stays is None else None
        if self._stays is not None:
            return self._stays(*inputs)
        if new is None or self._begun >= 2 * PAIRS or len(self._late) >= LATE:
            return self.old(*inputs)
        if self._cold(new):
            self._warmed += 1
            return self._by_new(new, inputs)
        which = (self._begun + 1) // 2 % 2  # old new new old
        end = self._clock()
        result = self._by_new(new, inputs) if which else self.old(*inputs)
        self._late.append((which, end()))
        self._begun += 1
        return result

    def _made(self) -> Run | None:
        if self.new is None:
            try:
                made = self._make()
            except WeldError as error:
                self._end(False, error.refusal().why)
                return None
            made.explain, made.eager = self.old.explain, self.old.eager
            self.new = made
        return self.new

    def _by_new(self, new: Run, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        try:
            return new(*inputs)
        except WeldError as error:
            self._end(False, error.refusal().why)
            raise

    def _cold(self, new: Run) -> bool:
        """Whether the new one is not yet as fast as it will be."""
        lacks = bool(_graphs(self.old)) and not _graphs(new)
        return self._warmed < (MOST_WARM if lacks else WARM)

    # ------------------------------------------------------------ what is known
    def _hear(self) -> None:
        """Note the times that are known by now, and decide when all are."""
        while self._late:
            which, read = self._late[0]
            seconds = read()
            if seconds is None:
                return
            self._late.popleft()
            self._times[which].append(seconds)
        if len(self._times[0]) + len(self._times[1]) == 2 * PAIRS:
            self._decide()

    def _decide(self) -> None:
        old, new = self._times
        faster = sum(b < a for a, b in zip(old, new, strict=True))
        part = statistics.median(new) / max(statistics.median(old), 1e-9)
        why = f"{part:.2f} of the time, faster in {faster} of {PAIRS} pairs"
        self._end(part <= PART and faster >= MOST_PAIRS, why)

    def _end(self, better: bool, why: str) -> None:
        if better and self.new is not None:
            self.old = self.new
        self.new, self._stays = None, self.old
        self._times = ([], [])
        self._done(self.old, better, why)

    # ------------------------------------------------------------ as an Executable
    def runs(self) -> list[Run]:
        """Both, as far as there are."""
        return [self.old] if self.new is None else [self.old, self.new]

    @property
    def driver(self) -> str:
        return self.old.driver

    @property
    def explain(self) -> Callable[..., object] | None:
        """As of the Executables."""
        return self.old.explain

    @explain.setter
    def explain(self, value: Callable[..., object] | None) -> None:
        for run in self.runs():
            run.explain = value

    @property
    def eager(self) -> Callable[..., object] | None:
        """As of the Executables."""
        return self.old.eager

    @eager.setter
    def eager(self, value: Callable[..., object] | None) -> None:
        for run in self.runs():
            run.eager = value

    def trim(self) -> None:
        """Give back the memory that is kept between calls."""
        for run in self.runs():
            run.trim()


def _graphs(run: Run) -> object:
    """What the native driver says of a run's CUDA graphs; nothing for other drivers."""
    found = getattr(run, "graphs", "")
    return () if isinstance(found, str) else found
