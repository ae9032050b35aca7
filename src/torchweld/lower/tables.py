"""All lowerings, loaded: importing this module fills the registry."""

from __future__ import annotations

from torchweld.lower import (
    activation,
    activation_backward,
    arithmetic,
    backward,
    compare,
    concat,
    contractions,
    factory,
    gather,
    loss,
    norm,
    reduce,
    resize,
    scatter,
    softmax,
    views,
    window,
)
from torchweld.lower.registry import LOWERINGS, Rule

MODULES = (
    activation, activation_backward, arithmetic, backward, compare, concat, contractions, factory,
    gather, loss, norm, reduce, resize, scatter, softmax, views, window,
)  # fmt: skip


def rule_for(op: str) -> tuple[Rule | None, bool]:
    """The rule of an overload, and whether its result is a copy of what a view rule gives."""
    found = LOWERINGS.get(op)
    if found is not None or "_copy." not in op:
        return found, False
    found = LOWERINGS.get(op.replace("_copy.", "."))
    return (found, True) if found is not None and found.kind == "view" else (None, False)
