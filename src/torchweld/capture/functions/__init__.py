"""Handlers of functions and methods, by topic. Importing this package fills the tables."""

from torchweld.capture.functions import (
    builtin,
    containers,
    iterators,
    objects,
    stdlib,
    torch_calls,
    torch_state,
)

__all__ = [
    "builtin", "containers", "iterators", "objects", "stdlib", "torch_calls", "torch_state",
]  # fmt: skip
