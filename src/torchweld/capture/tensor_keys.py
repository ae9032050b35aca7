"""Dicts whose keys are tensors, as the state of an optimizer: what is found under such a key."""

from __future__ import annotations

import torch

from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import DictValue, IdKey, TensorValue, Value
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
