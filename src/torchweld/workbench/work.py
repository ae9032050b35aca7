"""Work: something to call, and what to call it with; Step: the same with a backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Work:
    """A callable and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, fn: Callable[..., Any] | None = None) -> Any:
        """Call `fn`, or the work's own callable, with the work's arguments."""
        return (self.fn if fn is None else fn)(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True)
class Step(Work):
    """A module that gives a loss. A call differentiates it: the loss, then every gradient."""

    def call(self, fn: Callable[..., Any] | None = None) -> Any:
        parameters = list(self.fn.parameters())  # type: ignore[attr-defined]
        for p in parameters:
            p.grad = None
        with torch.enable_grad():
            loss = (self.fn if fn is None else fn)(*self.args, **self.kwargs)
            loss.backward()
        return (loss, *(p.grad for p in parameters))
