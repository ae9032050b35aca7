"""A compiled nn.Module is still the module: same class name, attributes, state and methods."""

from __future__ import annotations

import copy
import copyreg
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.originals import ORIGIN, ORIGINAL, Original, Remake, origin_of
from torchweld.frame.program import Dispatcher
from torchweld.frames import forget
from torchweld.pipeline import STANDS_FOR

Make = Callable[[types.FunctionType], Any]


def compiled_module(module: torch.nn.Module, make: Make) -> torch.nn.Module:
    """A module that shares everything with `module` and whose call is compiled.

    Both have one `__dict__`, so parameters, buffers, submodules, hooks and plain attributes are the
    same objects: what is written through one is seen through the other.
    """
    kind = type(module)
    if hasattr(kind, "_torchweld_origin"):
        return module
    original = Original(module, _remaker(make))
    made: torch.nn.Module = object.__new__(original.class_of(kind))
    object.__setattr__(made, "__dict__", module.__dict__)
    call = type(made).__call__
    if isinstance(call, Dispatcher):
        # the class holds what was compiled, and classes wait for the garbage collector
        weakref.finalize(made, forget, call).atexit = False
    return made


def _remaker(make: Make) -> Remake:
    """What makes the classes of one compiled module; they share what is compiled."""
    kept: list[Any] = []

    def remake(kind: type, original: Original) -> type:
        kept[:] = kept or [_call(kind, make)]
        body = {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            ORIGIN: kind,
            ORIGINAL: original,
            "_torchweld_make": staticmethod(make),
            "__call__": kept[0],
            "__reduce_ex__": _reduce,
            "__copy__": _copy,
            "__deepcopy__": _deepcopy,
            "_orig_mod": property(_original),
        }
        meta: Any = type(kind)
        made: type = meta(kind.__name__, (kind,), body)
        return made

    return remake


def _call(kind: type[torch.nn.Module], make: Make) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return origin_of(self).__call__(self, *args, **kwargs)

    setattr(call, STANDS_FOR, kind.forward)
    return make(call)  # type: ignore[arg-type]


def _original(self: Any) -> torch.nn.Module:
    """The module as it was given to compile(), sharing this one's state."""
    origin = origin_of(self)
    made: torch.nn.Module = object.__new__(origin)
    object.__setattr__(made, "__dict__", self.__dict__)
    return made


def _reduce(self: Any, protocol: Any) -> Any:
    """Pickles as the original module; unpickling gives the plain module."""
    made = _original(self).__reduce_ex__(protocol)
    if isinstance(made, tuple) and made[0] is copyreg.__newobj__ and len(made[1]) == 1:  # type: ignore[attr-defined]
        # pickle insists on the object's own class behind __newobj__
        return (copyreg._reconstructor, (made[1][0], object, None), *made[2:])  # type: ignore[attr-defined]
    return made


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    inner = copy.deepcopy(_original(self), memo)
    return compiled_module(inner, type(self)._torchweld_make)


def _copy(self: Any) -> Any:
    """A compiled module of its own, with the same parameters and submodules."""
    return compiled_module(copy.copy(_original(self)), type(self)._torchweld_make)
