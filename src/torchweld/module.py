"""A compiled nn.Module is still the module: same class name, attributes, state and methods."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

Make = Callable[[types.FunctionType], Any]


def compiled_module(module: torch.nn.Module, make: Make) -> torch.nn.Module:
    """A module that shares everything with `module` and whose call is compiled.

    Both have one `__dict__`, so parameters, buffers, submodules, hooks and plain attributes are the
    same objects: what is written through one is seen through the other.
    """
    kind = type(module)
    if hasattr(kind, "_torchweld_origin"):
        return module
    made = object.__new__(_compiled_class(kind, make))
    object.__setattr__(made, "__dict__", module.__dict__)
    return made


def _compiled_class(kind: type[torch.nn.Module], make: Make) -> type[torch.nn.Module]:
    base_call = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return base_call(self, *args, **kwargs)

    body = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "_torchweld_origin": kind,
        "_torchweld_make": staticmethod(make),
        "__call__": make(call),
        "__reduce_ex__": _reduce,
        "__deepcopy__": _deepcopy,
        "_orig_mod": property(_original),
    }
    return type(kind)(kind.__name__, (kind,), body)


def _original(self: Any) -> torch.nn.Module:
    """The module as it was given to compile(), sharing this one's state."""
    origin = type(self)._torchweld_origin
    made: torch.nn.Module = object.__new__(origin)
    object.__setattr__(made, "__dict__", self.__dict__)
    return made


def _reduce(self: Any, protocol: Any) -> Any:
    """Pickles as the original module; unpickling gives the plain module."""
    return _original(self).__reduce_ex__(protocol)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    inner = copy.deepcopy(_original(self), memo)
    return compiled_module(inner, type(self)._torchweld_make)

