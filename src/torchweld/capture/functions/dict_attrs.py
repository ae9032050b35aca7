"""Attributes that ordered dicts have themselves: what `state_dict` says besides its tensors."""

from __future__ import annotations

import collections

from torchweld.capture.attrs import MISSING, builtin_attr, mro_lookup
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont
from torchweld.capture.tables import GETATTR
from torchweld.capture.values.base import DictValue, Value
from torchweld.ir.source import InstanceDict, Item


def dict_attr(cap: Capture, obj: DictValue, name: str, cont: Cont | None) -> None:
    """An attribute of a dict, and of what an OrderedDict has besides."""
    if obj.kind is collections.OrderedDict and mro_lookup(obj.kind, name) is MISSING:
        found = own_attr(cap, obj, name)
        if found is not None:
            cap.deliver(found, cont)
            return
    builtin_attr(cap, obj, name, cont)


def own_attr(cap: Capture, obj: DictValue, name: str) -> Value | None:
    """An entry of the dictionary of attributes, or None; guards what was found out."""
    if name in obj.attrs or obj.real is None:
        return obj.attrs.get(name)
    assert obj.source is not None
    table, own = vars(obj.real), InstanceDict.make(obj.source)
    if name not in table:
        cap.guard("lacks_key", own, name)
        return None
    found = obj.attrs[name] = cap.wrap(table[name], Item.make(own, name, False))
    return found


def all_attrs(cap: Capture, obj: DictValue) -> dict[str, Value]:
    """Every attribute that an ordered dict has itself."""
    if obj.kind is collections.OrderedDict and obj.real is not None:
        assert obj.source is not None
        cap.guard("keys", InstanceDict.make(obj.source), tuple(vars(obj.real)))
        for name in vars(obj.real):
            own_attr(cap, obj, name)
    return obj.attrs


GETATTR.add(DictValue, dict_attr)
