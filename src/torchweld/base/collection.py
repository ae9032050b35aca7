"""Python's garbage collector, kept away while something runs.

Compiling makes many objects that stay, so each full collection walks more of them: a tenth to a
third of the time of a large model's compilation, and the reason why it would grow faster than the
model. Reference counting goes on; what is in cycles waits.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0  # how many blocks are open, in all threads
_was_on = False


@contextmanager
def collection_paused() -> Iterator[None]:
    """`with collection_paused():` no cycles are looked for, in any thread."""
    global _inside, _was_on
    with _lock:
        if _inside == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _was_on:
                gc.enable()
