"""Written inputs that share memory with other inputs: compiled code may assume that none do."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from torchweld.capture.modes import MUTATED, restoring
from torchweld.ir.graph import VAL


def safe_from_overlap(gm: GraphModule, call: Callable[..., Any],
                      meets: Callable[[tuple[Any, ...], bytes, bytes], bool],
                      ) -> Callable[..., Any]:  # fmt: skip
    """`call`, but the graph itself, operator by operator, where written inputs overlap others.

    meets: whether they do, of the inputs, the bytes of each (int64), and whether each is written.
    Cost: nothing for a graph that writes no input; else one address per tensor and call.
    """
    written = gm.meta.get(MUTATED, ())
    values = [n.meta[VAL] for n in gm.graph.nodes if n.op == "placeholder"]
    sizes = [_extent(v) if isinstance(v, torch.Tensor) else 0 for v in values]
    tensors = [i for i, n in enumerate(sizes) if n]
    if not written or len(tensors) < 2 or call in (gm, gm.forward):
        return restoring(gm, call)

    plain = restoring(gm, gm.forward)
    varying = [i for i in tensors if sizes[i] < 0]
    extents = array("q", sizes)
    fixed, changed = extents.tobytes(), bytes(i in written for i in range(len(sizes)))

    def run(*args: Any) -> Any:
        if meets(args, fixed, changed):
            return plain(*args)
        return call(*args)

    def run_varying(*args: Any) -> Any:
        now = array("q", extents)
        for i in varying:
            now[i] = _extent(args[i])
        return plain(*args) if meets(args, now.tobytes(), changed) else call(*args)

    return run_varying if varying else run


def _extent(x: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one; 0 for a tensor without elements, and
    negative if that varies."""
    if x._has_symbolic_sizes_strides:
        return -1
    if x.numel() == 0:
        return 0
    steps = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return (steps + 1) * x.element_size()
