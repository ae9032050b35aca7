"""Locks of threading: taken around everything that the compiled frame does.

The guards are checked again when the lock is held, so what another thread did meanwhile is seen.
None is still held at a break: two threads must not come to wait for each other where they would not
in eager.
"""

from __future__ import annotations

import threading
from typing import Any

from torchweld.capture.functions.effects import perform
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Stuck, raised, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.values.base import NONE, InstanceValue, Value, boolean

_PLAIN: Any = type(threading.Lock())


def _lock(cap: Capture, args: list[Value]) -> tuple[InstanceValue, Any]:
    """The lock that a method is called of, and the real one. Errors: GraphBreak."""
    lock = args[0]
    if len(args) > 1 or not isinstance(lock, InstanceValue) or lock.source is None:
        raise refuse("W107", "a lock made in the frame, or with a time limit", cap.loc())
    if cap.pure or cap.builder.bodies:
        raise refuse("W106", "a lock in a function that may not run now", cap.loc())
    return lock, lock.real


def take(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    lock, real = _lock(cap, args)
    if kwargs or cap.released:
        raise refuse("W107", "a lock with a time limit, or behind one that is released", cap.loc())
    if real in cap.held and isinstance(real, _PLAIN):
        raise refuse("W107", "a lock that the frame holds already", cap.loc())
    if real not in cap.locks:
        cap.note_birth(lock, stops_of(cap))
        cap.guard("is", lock.source, real)
        cap.locks.append(real)
    cap.unguarded += 1
    cap.held.append(real)
    cap.deliver(boolean(True), cont)


def _release(cap: Capture, args: list[Value], cont: Cont | None) -> None:
    lock, real = _lock(cap, args[:1])
    if real not in cap.held:
        _release_later(cap, lock, real)
    else:
        cap.held.remove(real)
    cap.deliver(NONE, cont)


def is_held(lock: Any) -> bool:
    """Whether this thread may release a lock."""
    held: bool = lock.locked() if isinstance(lock, _PLAIN) else lock._is_owned()
    return held


def _release_later(cap: Capture, lock: InstanceValue, real: Any) -> None:
    """Release a lock that was taken before a break: behind the graph, in which no other is taken.

    Errors: GraphBreak for one that is not held, or that the frame took itself and released.
    """
    if real in cap.locks or not is_held(real):
        raise Stuck("W107", "a lock that was taken elsewhere", cap.loc(), cap.birth(lock))
    cap.guard("predicate", lock.source, is_held)
    cap.guard("is", lock.source, real)
    cap.unguarded += 1
    cap.released = True
    perform(cap, type(real).release, [lock], {})


def release(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    if len(args) != 1 or kwargs:
        raise raised(TypeError, "release() takes no arguments")
    _release(cap, args, cont)


def leave(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    _release(cap, args, cont)
