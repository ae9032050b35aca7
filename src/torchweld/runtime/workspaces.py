"""cuBLAS's workspaces, which torch keeps for each thread and stream (32 MB on an H200).

A graph needs one only while it runs: what it was recorded with goes back to the pool that the graph
works in, and those of launch lists go back to torch before a graph takes their place. torch gives
back all of them or none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_clear: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
# threads that autograd has started and runs backwards in; they rest while no backward does
_of_autograd = weakref.WeakSet[threading.Thread]()


@contextmanager
def given_back(own_pools: set[Any], in_backward: bool) -> Iterator[None]:
    """Without workspaces from before, and leaving none, unless that could disturb somebody.

    own_pools: ids of the pools that graphs of ours work in. in_backward: autograd called.
    """
    here = threading.current_thread()
    if in_backward and isinstance(here, threading._DummyThread):  # Python did not start it
        _of_autograd.add(here)
    if _clear is None or not _is_alone() or _others_record(own_pools):
        yield
        return
    _clear()
    try:
        yield
    finally:
        if _is_alone():
            _clear()


def _is_alone() -> bool:
    """Whether no other thread can be about to multiply, with a workspace in its hands.

    Whoever started a backward waits for autograd's thread: the main thread, if there is no other.
    """
    main, here = threading.main_thread(), threading.current_thread()
    return all(t is main or t in _of_autograd for t in {here, *threading.enumerate()})


def _others_record(own_pools: set[Any]) -> bool:
    """Whether a graph of somebody else's may have a workspace inside: it has a pool of its own."""
    used = {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}  # type: ignore[no-untyped-call]
    return not used <= {(0, 0), *own_pools}
