"""The frame hook: gives compiled code a chance at the frames that eagerly run code starts.

The hook is installed only while some thread is inside a hooked region: any hook makes every Python
call of the process slower, since CPython stops inlining calls. Compiled code and the compiler run
with their region suspended, so that they are never compiled themselves.

Entries attached to code as such live until `detach`; the garbage collector does not see them.
Whoever owns them can attach weak references instead: when they die, the code is unknown again.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from types import CodeType, TracebackType
from typing import TypeAlias
from weakref import ReferenceType

from torchweld.frame import _frame
from torchweld.frame._frame import Entry, FrameView, run_hooked

__all__ = [
    "Entries",
    "FrameCallback",
    "FrameView",
    "Hooked",
    "active",
    "attach",
    "detach",
    "detach_all",
    "hook_enter",
    "hook_leave",
    "install",
    "run_hooked",
    "set_quiet",
    "set_skip",
    "state",
    "uninstall",
]

Entries: TypeAlias = Iterable[Entry | ReferenceType[Entry]]
FrameCallback: TypeAlias = Callable[[FrameView], Entries | None]

hook_enter = _frame.hook_enter
hook_leave = _frame.hook_leave


def install(callback: FrameCallback, on_miss: FrameCallback | None = None) -> None:
    """Says who is asked about frames in hooked regions.

    `callback` sees code that is unknown: None skips it for ever, no entries asks again next time.
    `on_miss` sees code none of whose entries matched: its answer replaces them; None keeps them and
    stops reporting this code. A callback that raises counts as None.
    """
    _frame.hook_install(callback, on_miss)


def uninstall() -> None:
    """Asks nobody any more; frames run as they are."""
    _frame.hook_uninstall()


def active() -> bool:
    """Whether this thread is inside a hooked region that is not suspended."""
    return _frame.hook_active()


class Hooked:
    """`with Hooked():` is a hooked region. Its two methods start no Python frame of their own."""

    __slots__ = ()

    __enter__: Callable[[], None] = staticmethod(_frame.hook_enter)
    __exit__: Callable[
        [type[BaseException] | None, BaseException | None, TracebackType | None], None
    ] = staticmethod(_frame.hook_leave)


def set_skip(code: CodeType) -> None:
    """Frames of this code are never looked at again."""
    _frame.set_skip(code)


def set_quiet(code: CodeType) -> None:
    """Frames of this code, and all that they call, are never looked at again."""
    _frame.set_quiet(code)


def attach(code: CodeType, entries: Entries) -> None:
    """Frames of this code try these entries, in order, before they run."""
    _frame.attach(code, entries)


def detach(code: CodeType) -> None:
    """The code is unknown again."""
    _frame.detach(code)


def detach_all() -> None:
    """Drops the entries of all code; what is skipped stays so."""
    _frame.detach_all()


def state(code: CodeType) -> str | tuple[Entry | ReferenceType[Entry], ...] | None:
    """None if the code is unknown, "skip", "quiet", or its entries."""
    return _frame.code_state(code)


# What the extension holds would keep its globals alive past the end, and their finalizers unrun.
atexit.register(detach_all)
atexit.register(uninstall)
