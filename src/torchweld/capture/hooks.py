"""Modules: what they hold, and whether a call of one does anything but call its forward."""

from __future__ import annotations

import torch

from torchweld.capture.instances import instance_get
from torchweld.capture.session import Capture
from torchweld.capture.values.base import Const, DictValue, InstanceValue, Value
from torchweld.capture.wrap import read_key
from torchweld.ir.source import InstanceDict, Item

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks",
                 "_global_forward_pre_hooks")  # fmt: skip


def module_member(cap: Capture, obj: InstanceValue, name: str) -> Value | None:
    """What nn.Module.__getattr__ finds: a parameter, buffer or submodule."""
    for table in ("_parameters", "_buffers", "_modules"):
        holder = instance_get(cap, obj, table)
        if isinstance(holder, DictValue):
            found = read_key(cap, holder, name)
            if found is not None:
                return found
    return None


def plain_module_call(cap: Capture, module: InstanceValue) -> bool:
    """Whether nn.Module.__call__ does nothing but call forward: no hook is registered."""
    if instance_get(cap, module, "_compiled_call_impl") is not None:
        found = module.attrs["_compiled_call_impl"]
        if not (isinstance(found, Const) and found.obj is None):
            return False
    for name in _HOOKS:
        hooks = instance_get(cap, module, name)
        if isinstance(hooks, DictValue) and length(cap, hooks):
            return False
    for name in _GLOBAL_HOOKS:
        hooks = _global_hooks(cap, name)
        if isinstance(hooks, DictValue) and length(cap, hooks):
            return False
    return True


def _global_hooks(cap: Capture, name: str) -> Value:
    module_py = torch.nn.modules.module
    place = Item.make(InstanceDict.make(cap.pin(module_py)), name, False)
    return cap.wrap(getattr(module_py, name), place)


def length(cap: Capture, d: DictValue) -> int:
    """Number of entries of a dict, guarded."""
    if not d.complete and not d.changed and d.source is not None:
        assert isinstance(d.real, dict)
        cap.guard("length", d.source, len(d.real))
        return len(d.real)
    return len(d.items)
