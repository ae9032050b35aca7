"""Modes of torch that are not as they were when a captured stretch of a frame ends.

The graph itself sets them back at its end, since only part of what can run a graph minds its mode
changes; the residual program sets them again.
"""

from __future__ import annotations

from typing import Any

import torch

from torchweld.base.errors import GraphBreak
from torchweld.capture.modes import SET_GRAD, STEPS
from torchweld.capture.session import Capture
from torchweld.capture.state import Stuck, refuse

Calls = list[tuple[Any, tuple[Any, ...]]]


def keep_modes(cap: Capture) -> Calls:
    """The calls that bring modes other than grad mode to what they are; the graph undoes them."""
    log = [(fn, args, old) for fn, args, old in cap.modes if fn is not SET_GRAD]
    nesting = sum(_step(fn) for fn, _, _ in log)
    differ = any(getter is not torch.is_grad_enabled and getter() != old
                 for getter, old in cap.modes_before.values())  # fmt: skip
    if not differ and not nesting:
        return []
    for fn, args, old in reversed(log):
        if _step(fn):
            cap.builder.graph.call_function(STEPS[fn], ())
        elif fn not in STEPS:
            cap.builder.graph.call_function(fn, (*args[:-1], old))
    return [(fn, args) for fn, args, _ in log]


def _step(fn: Any) -> int:
    """How a call changes the depth to which autocast is nested."""
    return (fn is torch.autocast_increment_nesting) - (fn is torch.autocast_decrement_nesting)


def left_in_inference(cap: Capture) -> GraphBreak:
    """Why the frame cannot end here: inference mode is left by an object, which is not rebuilt."""
    why = "inference_mode is on or off at the end"
    opened = next(iter(cap.inference), None)
    born = cap.birth(opened)
    if born:
        return Stuck("W106", why, cap.loc(), born)
    return refuse("W106", why, cap.loc())
