"""Weak references as keys: what a reference that was made in the frame is filed under."""

from __future__ import annotations

import weakref
from typing import Any

from torchweld.capture.instances import TARGET
from torchweld.capture.predicates import RefersTo
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import InstanceValue


def _by_identity(kind: Any) -> bool:
    return kind.__hash__ is object.__hash__


def weak_key(cap: Capture, x: InstanceValue) -> Any:
    """A real reference to the same object, which is the same one in every call then."""
    target = x.attrs[TARGET]
    real = getattr(target, "real", None)
    if target is None or real is None or not _by_identity(type(real)):
        raise refuse("W107", "a weak reference as a key", cap.loc())
    ref = weakref.ref(real)
    cap.guard("predicate", target.source, RefersTo(ref))
    return ref
