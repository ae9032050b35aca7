"""Numbers read of counters that hold the same: one of them stands for all.

An optimizer has a counter for each parameter, raises all of them, and computes the same of each.
That they hold the same when the frame begins is guarded, bit for bit; what the frame adds to them
is known. So the graph reads one of them, and computes once what follows from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from torchweld.base import config
from torchweld.base.errors import GraphBreak
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import TensorValue
from torchweld.capture.values.number import GraphNumber
from torchweld.ir.nested import memory_of


def read(cap: Capture, x: TensorValue) -> GraphNumber:
    """The number that a tensor holds, read of the first one that holds the same."""
    held = _held(cap, x)
    if held is None:
        return cap.builder.item(x, cap.loc())
    found: GraphNumber | None = cap.counters.get(held)
    if found is None:
        found = cap.counters[held] = cap.builder.item(x, cap.loc())
        found.added = held[-1]
    (first,) = found.args
    if x is not first and x.source is not None:
        assert first.source is not None
        cap.guard("same_value", x.source, first.source)
    return found


def _held(cap: Capture, x: TensorValue) -> tuple[bool, str, torch.dtype, tuple[float, ...]] | None:
    """What a counter on the CPU holds now, as far as the capture knows: equal for equal ones. None
    if it may be anything else."""
    if not cap.sizes.varying.counters or (cap.slices is not None and cap.slices.open) or (
            "counters" in config.current().skip):  # fmt: skip
        return None
    if x.fake.device.type != "cpu" or x.fake.dim() or x.fake.requires_grad or (
            x.fake.dtype not in _TYPES):  # fmt: skip
        return None
    begun = _begun(cap, x)
    if begun is None or begun != begun:  # there are several NaNs
        return None
    try:
        added = tuple(added_before(cap, x, None))
    except GraphBreak:
        return None
    return x.source is None, repr(begun), x.fake.dtype, added


_TYPES = (torch.float32, torch.float64)


def _begun(cap: Capture, x: TensorValue) -> float | None:
    """What a tensor held when the frame began, or was made; None if that is not known."""
    if x.source is None:
        return constant_of(x)
    real = cap.builder.reals.get(id(x))
    return real.item() if real is not None and type(real) is torch.Tensor else None


def computed(cap: Capture, fn: Callable[..., float], operands: tuple[object, ...],
             make: Callable[[], GraphNumber]) -> GraphNumber:  # fmt: skip
    """fn of nodes and constants, computed once. make: makes the node of it."""
    key = fn, *(x if isinstance(x, Node) else (type(x), repr(x)) for x in operands)
    found = cap.counters.get(key)
    if found is None:
        found = cap.counters[key] = make()
    return found


# ------------------------------------------------------------------------ what is done to them
def constant_of(tensor: TensorValue) -> float | None:
    """The number that a tensor was made with in the frame; None if it was not made of one."""
    node = tensor.node
    if node.target in (torch.tensor, torch.as_tensor) and type(node.args[0]) in (int, float):
        return float(node.args[0])  # type: ignore[arg-type]
    return _FILLED.get(node.target) if not tensor.fake.dim() else None


_FILLED: dict[Any, float] = {torch.zeros: 0.0, torch.ones: 1.0}


def added_before(cap: Capture, tensor: TensorValue, until: Node | None) -> list[float]:
    """What the frame has added to a tensor before a node, or so far. Errors: GraphBreak W101 if it
    was changed in another way."""
    added: list[float] = []
    found = until_then = 0
    for user in tensor.node.users:  # in the order of the graph
        if user is until:
            until_then = found
        elif _writes(user, tensor.node):
            added.append(_added(cap, user))
            found += 1
    if found != cap.builder.mode.writes.count(memory_of(tensor.fake)):
        raise not_known(cap)
    return added if until is None else added[:until_then]


def _writes(node: Node, x: Node) -> bool:
    """Whether an operator changes its operand x."""
    first = node.args[0]
    if x is not first and not (isinstance(first, list | tuple) and x in first):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    return node.target is operator.iadd or (name.endswith("_") and not name.endswith("__"))


def _added(cap: Capture, node: Node) -> float:
    """The number that an in-place operator adds."""
    name = str(getattr(node.target, "__name__", node.target))
    if name not in ("iadd", "add_", "_foreach_add_") or len(node.args) != 2:
        raise not_known(cap)
    value, alpha = node.args[1], node.kwargs.get("alpha", 1)
    if isinstance(value, Node) and value.target is torch.tensor and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, int | float) or not isinstance(alpha, int | float):
        raise not_known(cap)
    return float(value * alpha)


def not_known(cap: Capture) -> GraphBreak:
    """Why a frame breaks that has to know a number now."""
    return refuse("W101", "the value is known only when the graph runs", cap.loc())
