"""What the process wants done when something would be compiled: one stance for all threads.

A stance that was set with torch.compiler.set_stance counts as well, for what is about to be
compiled; it is looked up in `sys.modules`, since torch._dynamo is never imported here.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from torchweld.base.errors import UsageError
from torchweld.capture.marks import Mark, set_mark
from torchweld.frame.program import Dispatcher

# stance -> what it means
STANCES = {
    "default": "compile what is not compiled yet",
    "force_eager": "run everything eagerly, what is compiled included",
    "eager_on_recompile": "run eagerly what is not compiled yet",
    "fail_on_recompile": "raise an error where something would be compiled",
    "eager_then_compile": "run the first call of each function eagerly, compile at the second",
    "aot_eager_then_compile": "the same",
}

_stance = "default"
_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def current() -> str:
    """The stance in force: ours, unless only torch's differs from the default."""
    if _stance != "default":
        return _stance
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    theirs = getattr(getattr(dynamo, "_stance", None), "stance", "default")
    return theirs if theirs in STANCES else "default"


def follow(dispatcher: Dispatcher) -> None:
    """Keep a compiled function informed of the stance, as long as it lives."""
    _dispatchers.add(dispatcher)
    dispatcher.enabled = _stance != "force_eager"


def followers() -> list[Dispatcher]:
    """The compiled functions that are alive."""
    return list(_dispatchers)


def _change(stance: str) -> str:
    """Set the stance; what it was before."""
    global _stance
    before, _stance = _stance, stance
    for dispatcher in followers():
        dispatcher.enabled = stance != "force_eager"
    return before


# in a compiled function it ends the graph: what follows is compiled or not under another stance
set_mark(_change, Mark.DISABLED, "it decides what is compiled")


class set_stance:
    """set_stance(name): set it now, `with set_stance(name):` inside the block, or decorate.

    stance: "default"; "force_eager"; "eager_on_recompile": what is not compiled yet runs eagerly;
        "fail_on_recompile": it raises RecompileError; "eager_then_compile": compiled at the second
        call.
    skip_guard_eval_unsafe: accepted; guards are always checked.
    Errors: ValueError for an unknown stance, and for `force_backend`, which torchweld has not.
    """

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False,
                 force_backend: object = None) -> None:  # fmt: skip
        if stance not in STANCES:
            raise UsageError("W401", f"stance is {stance!r}, not one of {', '.join(STANCES)}")
        if force_backend is not None:
            raise UsageError("W401", "force_backend: pass backend= to torchweld.compile")
        self.stance = stance
        self.before = _change(stance)

    def __enter__(self) -> None:
        _change(self.stance)

    def __exit__(self, *exc: object) -> None:
        _change(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _change(self.before)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = _change(self.stance)
            try:
                return fn(*args, **kwargs)
            finally:
                _change(before)

        return call
