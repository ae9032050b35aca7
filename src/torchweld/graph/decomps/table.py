"""The table of torchweld's own decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from torchweld.base.registry import Registry

OWN: Registry[OpOverload, Callable[..., Any]] = Registry("decompositions")


def decomposes(*ops: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: run this function instead of the operators; it takes their arguments.

    It runs on fake tensors below functionalization, so it may call only functional operators. It
    returns NotImplemented to keep the operator as it is.
    """
    return OWN.register(*ops)
