"""Keys that are told apart by identity: tensors, as in the state of an optimizer, and weak
references."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torchweld.capture.instances import TARGET
from torchweld.capture.predicates import RefersTo
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import DictValue, IdKey, InstanceValue, TensorValue, Value
from torchweld.ir.source import Keyed


def read_under_tensor(cap: Capture, d: DictValue, filed: IdKey, key: TensorValue) -> Value | None:
    """The value under a tensor of a dict from outside that was not read in full; None if there is
    none. Guards what was found out: whichever tensor is there in a later call is the key then."""
    real = cap.builder.reals.get(id(key))
    if real is None:
        return None  # it was made in the frame
    if type(real).__hash__ is not torch.Tensor.__hash__ or hash(real) != id(real):
        raise refuse("W107", f"a {type(real).__name__} as a key", cap.loc())
    assert isinstance(d.real, dict)
    assert d.source is not None
    assert key.source is not None
    if not dict.__contains__(d.real, real):
        if d.real:
            cap.guard("lacks_tensor", d.source, key.source)
        else:
            cap.guard("length", d.source, 0)
        d.absent.add(filed)
        return None
    found = cap.wrap(dict.__getitem__(d.real, real), Keyed.make(d.source, key.source))
    d.items[filed], d.keys[filed] = found, key
    return found


def _by_identity(kind: Any) -> bool:
    return kind.__hash__ is object.__hash__


def weak_key(cap: Capture, x: InstanceValue) -> Any:
    """What a weak reference that was made in the frame is filed under: a real one to the same
    object, which is the same one in every call then; of an object of the frame, what only a
    reference to it is filed under."""
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
