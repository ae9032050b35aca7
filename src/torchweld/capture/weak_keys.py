"""Weak references as keys: what a reference that was made in the frame is filed under."""

from __future__ import annotations

import weakref
from typing import Any

from torchweld.capture.instances import TARGET
from torchweld.capture.predicates import RefersTo
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import IdKey, InstanceValue


def _by_identity(kind: Any) -> bool:
    return kind.__hash__ is object.__hash__


def weak_key(cap: Capture, x: InstanceValue) -> Any:
    """A real reference to the same object, which is the same one in every call then; of an object
    of the frame, what only a reference to it is filed under."""
    target = x.attrs[TARGET]
    own = isinstance(target, InstanceValue) and target.source is None and target.payload is None
    if own and _by_identity(target.cls()):  # type: ignore[union-attr]
        cap.unguarded += 1
        return (TARGET, IdKey(target))  # type: ignore[arg-type]
    real = getattr(target, "real", None)
    if target is None or real is None or not _by_identity(type(real)):
        raise refuse("W107", "a weak reference as a key", cap.loc())
    ref = weakref.ref(real)
    cap.guard("predicate", target.source, RefersTo(ref))
    return ref
