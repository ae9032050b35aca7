"""Written inputs that share memory with other inputs: compiled code may assume that none do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from torchweld.capture.modes import restoring
from torchweld.ir.graph import VAL

MUTATED = "mutated"  # GraphModule.meta: positions of the placeholders that the graph writes


def safe_from_overlap(gm: GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but the graph itself, operator by operator, where written inputs overlap others.

    Cost: nothing for a graph that writes no input; else one address per tensor and call.
    """
    written = gm.meta.get(MUTATED, ())
    values = [n.meta[VAL] for n in gm.graph.nodes if n.op == "placeholder"]
    sizes = [_extent(v) if isinstance(v, torch.Tensor) else 0 for v in values]
    tensors = [i for i, n in enumerate(sizes) if n]
    if not written or len(tensors) < 2 or call in (gm, gm.forward):
        return restoring(gm, call)

    plain = restoring(gm, gm.forward)

    def run(*args: Any) -> Any:
        spans = sorted((args[i].data_ptr(), i) for i in tensors)
        end, last = -1, -1
        for start, i in spans:
            if start < end and (i in written or last in written):
                return plain(*args)
            size = sizes[i] if sizes[i] > 0 else _extent(args[i])
            if start + size > end:
                end, last = start + size, i
        return call(*args)

    return run


def _extent(x: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one; 0 for a tensor without elements, and
    negative if that varies."""
    if x._has_symbolic_sizes_strides:
        return -1
    if x.numel() == 0:
        return 0
    steps = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return (steps + 1) * x.element_size()
