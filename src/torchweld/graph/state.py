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

GRAD_SETTERS = (torch._C._set_grad_enabled, torch.set_grad_enabled)
_ENTERS: Any = torch.autograd.grad_mode._enter_inference_mode
_EXITS: Any = torch.autograd.grad_mode._exit_inference_mode

# Followed where gradients are required, and skipped where a graph is made functional without them.
GRAD_MODE: frozenset[Callable[..., Any]] = frozenset((*GRAD_SETTERS, _ENTERS, _EXITS))


class GradModes:
    """Follows the calls that change the grad mode or inference mode, in which nothing is recorded
    whatever the grad mode is: torch's own grad mode is set to whether anything is.
    """

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = False

    def run(self, target: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What the call does; what enters inference mode gets the state to return to."""
        before = (self._grad, self._inference)
        if target in GRAD_SETTERS:
            self._grad = bool(args[0])
        elif target is _ENTERS:
            self._inference = bool(args[0]) if args else True
            self._grad = not self._inference
        else:
            self._grad, self._inference = args[0]
        torch._C._set_grad_enabled(self._grad and not self._inference)
        return before if target is _ENTERS else None


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
