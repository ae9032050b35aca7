"""What the user says about tensors and about steps, where the capture can see it.

The marks of dimensions are kept as attributes of the tensor, under the names where torch keeps
them, so that marks made with either library are facts for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

__all__ = [
    "cudagraph_mark_step_begin", "graph_break", "is_exporting", "mark_dynamic", "mark_static",
    "mark_static_address", "mark_unbacked", "maybe_mark_dynamic",
]  # fmt: skip


class DimRange(NamedTuple):
    """The sizes that a marked dimension may have; None is no bound."""

    dim: int
    min: int | None
    max: int | None


def _each(index: int | Iterable[int]) -> tuple[int, ...]:
    return (index,) if isinstance(index, int) else tuple(index)


def _add(t: torch.Tensor, name: str, item: object) -> None:
    """Add to a set that is kept on the tensor."""
    kept = t.__dict__.setdefault(name, set())
    kept.add(item)
    t.__dict__["_has_dynamo_dim_marking"] = True


def _put(t: torch.Tensor, name: str, key: int, value: object) -> None:
    if value is not None:
        t.__dict__.setdefault(name, {})[key] = value


def mark_dynamic(t: torch.Tensor, index: int | Iterable[int], *, hint_override: int | None = None,
                 min: int | None = None, max: int | None = None,
                 specialize_on: list[Any] | None = None) -> None:  # fmt: skip
    """Say that these dimensions change from call to call, within the bounds.

    Call it on the tensor before the compiled function gets it. Kept, not yet used: every shape is
    compiled for itself for now.
    """
    for i in _each(index):
        _add(t, "_dynamo_dynamic_indices", i)
        _add(t, "_dynamo_dynamic_range", DimRange(i, min, max))
        _put(t, "_dynamo_hint_overrides", i, hint_override)
        _put(t, "_specialize_on", i, specialize_on)


def maybe_mark_dynamic(t: torch.Tensor, index: int | Iterable[int]) -> None:
    """Say that these dimensions may change; where code needs one size, that is no error."""
    for i in _each(index):
        _add(t, "_dynamo_weak_dynamic_indices", i)


def mark_unbacked(t: torch.Tensor, index: int | Iterable[int], *,
                  hint_override: int | None = None, strict: bool = False,
                  specialize_on: list[Any] | None = None) -> None:  # fmt: skip
    """Say that nothing may be compiled that depends on the size of these dimensions."""
    for i in _each(index):
        _add(t, "_dynamo_strict_unbacked_indices" if strict else "_dynamo_unbacked_indices", i)
        _put(t, "_dynamo_hint_overrides", i, hint_override)
        _put(t, "_specialize_on", i, specialize_on)


def mark_static(t: Any, index: int | Iterable[int] | None = None) -> None:
    """Say that these dimensions, or all, never change; of a class, its numbers."""
    if isinstance(t, type):
        t._dynamo_marked_static = True  # type: ignore[attr-defined]
        return
    for i in range(t.dim()) if index is None else _each(index):
        _add(t, "_dynamo_static_indices", i)


def mark_static_address(t: torch.Tensor, guard: bool = True) -> None:
    """Say that the memory of this tensor stays where it is."""
    t.__dict__["_dynamo_static_input_type"] = "guarded" if guard else "unguarded"


def cudagraph_mark_step_begin() -> None:
    """Say that a new step begins. Nothing needs to be done: results of CUDA graphs stay valid."""


def is_exporting() -> bool:
    """Whether torch.export is at work."""
    return bool(torch.compiler.is_exporting())


def graph_break(msg: str = "") -> None:
    """End the graph here when compiling; nothing in eager code."""


MARKS = (mark_dynamic, maybe_mark_dynamic, mark_unbacked, mark_static, mark_static_address)
