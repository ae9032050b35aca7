"""Work: something to call, and what to call it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """A callable and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, fn: Callable[..., Any] | None = None) -> Any:
        """Call `fn`, or the work's own callable, with the work's arguments."""
        return (self.fn if fn is None else fn)(*self.args, **self.kwargs)
