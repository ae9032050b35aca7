"""The mode-changing calls that a captured graph may hold, and undoing those left open."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

_ENTER: Any = torch.amp.autocast_mode._enter_autocast
_EXIT: Any = torch.amp.autocast_mode._exit_autocast

# Executed around the nodes that follow: the casts appear as operators, the calls themselves never.
AUTOCAST: frozenset[Callable[..., Any]] = frozenset((_ENTER, _EXIT))

# Skipped: a graph is made functional without gradients anyway (autograd.py says when it may be).
GRAD_MODE: frozenset[Callable[..., Any]] = frozenset(
    (
        torch._C._set_grad_enabled,
        torch.set_grad_enabled,
        torch.autograd.grad_mode._enter_inference_mode,
        torch.autograd.grad_mode._exit_inference_mode,
    )
)


class ContextStack:
    """Runs autocast enter and exit calls; leaving the block closes what is still open."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def run(self, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = target(*args, **kwargs)
        if target is _ENTER:
            self._open.append(result)
        else:
            self._open = [mode for mode in self._open if mode is not args[0]]
        return result

    def __enter__(self) -> ContextStack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._open:
            _EXIT(self._open.pop())
