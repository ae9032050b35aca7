"""Locks of the store: in a module of their own, since what is compiled already needs none."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock


def acquired(path: Path, seconds: float) -> FileLock:
    """A lock that is held by now. Errors: OSError, also when it is not free for that long;
    NotImplementedError where the system has none."""
    lock = FileLock(path, timeout=seconds, thread_local=False)
    lock.acquire()
    return lock
