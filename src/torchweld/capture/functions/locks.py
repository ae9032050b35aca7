"""Locks of threading: taken around everything that the compiled frame does.

The guards are checked again when the lock is held, so what another thread did meanwhile is seen.
One lock for each frame, and none that is still held at a break: two threads must not come to wait
for each other where they would not in eager.
"""

from __future__ import annotations

import threading
from typing import Any

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
    if kwargs or (cap.locks and real not in cap.locks):
        raise refuse("W107", "a second lock, or one with a time limit", cap.loc())
    if real in cap.held and isinstance(real, _PLAIN):
        raise refuse("W107", "a lock that the frame holds already", cap.loc())
    if not cap.locks:
        cap.note_birth(lock, stops_of(cap))
        cap.guard("is", lock.source, real)
    cap.unguarded += 1
    cap.locks.append(real)
    cap.held.append(real)
    cap.deliver(boolean(True), cont)


def _release(cap: Capture, args: list[Value], cont: Cont | None) -> None:
    lock, real = _lock(cap, args[:1])
    if real not in cap.held:
        raise Stuck("W107", "a lock that was taken elsewhere", cap.loc(), cap.birth(lock))
    cap.held.remove(real)
    cap.deliver(NONE, cont)


def release(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    if len(args) != 1 or kwargs:
        raise raised(TypeError, "release() takes no arguments")
    _release(cap, args, cont)


def leave(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    _release(cap, args, cont)
