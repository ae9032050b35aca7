"""Floats that are known when the graph runs, as torch.SymFloats that operators hand on.

torch's C++ takes a SymFloat wherever an operator takes a number, and keeps it for the backward.
What is decided by its value asks for it: then the float is no argument that may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchweld.ir.size_node import SizeNode, node_of, symbolic
from torchweld.ir.size_values import Leaf, leaves_of
from torchweld.ir.sizes import SizeEnv


def run_time_float(of: object, now: float, ask: Callable[[], Any]) -> Any:
    """A torch.SymFloat that stands for `of`. ask: called by who needs to know its value."""
    return symbolic(SizeEnv(), Leaf(ask, (), of), now)


def run_time_node(x: object) -> SizeNode | None:
    """What a float that is made of such ones holds; None for every other object."""
    node = node_of(x) if type(x) is torch.SymFloat else None
    return node if node is not None and any(leaves_of(node.value)) else None


def with_samples(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Arguments of an operator on fakes, whose results look the same whatever these floats are."""
    if not any(type(x) is torch.SymFloat for x in (*args, *kwargs.values())):
        return args, kwargs
    return type(args)(map(_sample, args)), {k: _sample(x) for k, x in kwargs.items()}


def _sample(x: Any) -> Any:
    node = run_time_node(x)
    return x if node is None else float(node.hint)
