"""Structured events: what happened during compilation, kept in memory, printed by channel."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchweld.base.config import current

_KEEP = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its channel, a short name, and JSON-ready fields."""

    channel: str
    name: str
    fields: dict[str, object] = field(default_factory=dict)
    at: float = 0.0

    def line(self) -> str:
        return json.dumps(
            {"channel": self.channel, "name": self.name, "t": round(self.at, 6), **self.fields},
            default=str,
        )


_events: deque[Event] = deque(maxlen=_KEEP)
_lock = threading.Lock()


def wants(channel: str) -> bool:
    """Whether somebody listens: ask before building an expensive text."""
    logs = current().logs
    return channel in logs or "all" in logs


def emit(channel: str, name: str, text: str = "", **fields: object) -> None:
    """Record an event; print `text` if its channel is on."""
    event = Event(channel, name, fields, time.time())
    _events.append(event)
    if wants(channel):
        shown = text or " ".join(f"{k}={v}" for k, v in fields.items())
        print(f"[torchweld {channel}] {name}: {shown}", file=sys.stderr, flush=True)
    path = current().events
    if path:
        with _lock, open(path, "a", encoding="utf-8") as f:
            f.write(event.line() + "\n")


def recent(channel: str | None = None) -> list[Event]:
    """The events kept so far, oldest first, of one channel or of all."""
    return [e for e in list(_events) if channel is None or e.channel == channel]


def clear() -> None:
    _events.clear()


@contextmanager
def timed(stage: str, **fields: object) -> Iterator[None]:
    """Emit a perf event with the seconds that the block took."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        emit("perf", stage, f"{seconds * 1e3:.1f} ms", seconds=round(seconds, 6), **fields)
