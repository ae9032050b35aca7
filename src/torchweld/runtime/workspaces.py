"""cuBLAS's workspaces, which torch keeps for each thread and stream (32 MB on an H200).

A graph needs one only while it runs: what it was recorded with goes back to the pool that the graph
works in, and those of launch lists go back to torch before a graph takes their place. torch gives
back all of them or none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_clear: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
# threads in which autograd runs backwards; they rest while no backward does
_of_autograd = set[int]()


@contextmanager
def given_back(own_pools: set[Any], in_backward: bool) -> Iterator[None]:
    """Without workspaces from before, and leaving none, unless that could disturb somebody.

    own_pools: ids of the pools that graphs of ours work in. in_backward: autograd called.
    """
    if in_backward:
        _of_autograd.add(threading.get_ident())
    if _clear is None or not _is_alone(in_backward) or _others_record(own_pools):
        yield
        return
    _clear()
    try:
        yield
    finally:
        if _is_alone(in_backward):
            _clear()


def _is_alone(in_backward: bool) -> bool:
    """Whether no other thread can be about to multiply, with a workspace in its hands.

    The thread that started a backward waits for it.
    """
    main, here = threading.main_thread(), threading.current_thread()
    others = {t.ident for t in threading.enumerate() if t is not here and t is not main}
    return (here is main or in_backward) and others <= _of_autograd


def _others_record(own_pools: set[Any]) -> bool:
    """Whether a graph of somebody else's may have a workspace inside: it has a pool of its own."""
    used = {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}  # type: ignore[no-untyped-call]
    return not used <= {(0, 0), *own_pools}
