"""A compiled nn.Module is still the module: same class name, attributes, state and methods.

Modules of one class that are compiled alike have one class and use what was compiled for one
another; limits, and what is learned of numbers and sizes, are each module's own.
"""

from __future__ import annotations

import copy
import copyreg
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.originals import (
    ALIKE,
    ORIGIN,
    ORIGINAL,
    is_compiled_class,
    origin_of,
    original_of,
)
from torchweld.frame.program import Dispatcher
from torchweld.pipeline import STANDS_FOR
from torchweld.sites import Kin

OWN_CALL, KIN = "_torchweld_call", "_torchweld_kin"
Make = Callable[[types.FunctionType, Kin], Any]


class Alike:
    """How some modules are compiled: one class for each class of modules.

    make: what a function that calls a module becomes. each: once for each module (a Dispatcher);
    else once for all of a class.
    """

    def __init__(self, make: Make, each: bool = True) -> None:
        self._make, self._each = make, each
        self._classes = weakref.WeakValueDictionary[int, type]()

    def class_of(self, kind: type[torch.nn.Module]) -> type:
        """The class of the compiled modules that are made of a `kind`."""
        found = self._classes.get(id(kind))  # the class refers to it
        if found is None:
            found = self._classes[id(kind)] = _class_of(kind, self)
            call, slot = _call(kind), getattr(found, OWN_CALL)
            type.__setattr__(found, "__call__", Dispatcher(call, _settle, slot) if self._each
                             else self._make(call, getattr(found, KIN)))  # fmt: skip
        return found

    def compiled(self, module: torch.nn.Module, call: Dispatcher | None = None) -> torch.nn.Module:
        """A module that shares everything with `module` and whose call is compiled.

        Both have one `__dict__`, so parameters, buffers, submodules, hooks and plain attributes are
        the same objects: what is written through one is seen through the other. call: what was
        compiled of it before.
        """
        made: Any = object.__new__(self.class_of(type(module)))
        object.__setattr__(made, "__dict__", module.__dict__)
        self.settle(made, module, call)
        return made  # type: ignore[no-any-return]

    def settle(self, made: Any, module: torch.nn.Module, call: Dispatcher | None = None) -> None:
        """Have a compiled module know its original, and its own call."""
        object.__setattr__(made, ORIGINAL, module)
        if self._each:
            shared: Any = type(made).__call__
            call = call or self._make(shared.fn, getattr(type(made), KIN))
            object.__setattr__(made, OWN_CALL, call)


class _Compiled:
    """What compiled modules have that their originals have not."""

    __slots__ = (ORIGINAL, OWN_CALL)


def uncompiled(fn: Any) -> Any:
    """What a compiled module was made of; anything else as it is."""
    return fn._orig_mod if is_compiled_class(type(fn)) else fn


def own_call(module: Any) -> Any:
    """What was compiled of a compiled module."""
    return getattr(module, OWN_CALL)


def _settle(made: Dispatcher, args: tuple[object, ...]) -> None:
    """An instance that a compiled class made when it was called gets an original, as others have;
    its first call runs eagerly."""
    getattr(type(args[0]), ALIKE).settle(args[0], _plain(args[0]))


def _plain(module: Any) -> torch.nn.Module:
    """A module of the original class that shares the attributes of a compiled one."""
    made: torch.nn.Module = object.__new__(getattr(type(module), ORIGIN))
    object.__setattr__(made, "__dict__", module.__dict__)
    return made


def _class_of(kind: type[torch.nn.Module], alike: Alike) -> type:
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        ORIGIN: kind,
        ALIKE: alike,
        KIN: Kin(),
        "__reduce_ex__": _reduce,
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
        "_orig_mod": property(_original),
    }
    meta: Any = type(kind)
    slots = [n for k in kind.__mro__ for n, v in vars(k).items()
             if isinstance(v, types.MemberDescriptorType)]  # fmt: skip
    if not slots:
        made: type = meta(kind.__name__, (kind, _Compiled), body)
        return made
    body.update({n: _of_original(n) for n in slots}, __slots__=_Compiled.__slots__)
    return meta(kind.__name__, (kind,), body)  # type: ignore[no-any-return]


def _of_original(name: str) -> property:
    """A slot of the original, which is no part of the attributes that both share."""
    return property(
        lambda self: getattr(original_of(self), name),
        lambda self, value: setattr(original_of(self), name, value),
        lambda self: delattr(original_of(self), name),
    )


def _call(kind: type[torch.nn.Module]) -> types.FunctionType:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return origin_of(self).__call__(self, *args, **kwargs)

    setattr(call, STANDS_FOR, kind.forward)
    return call  # type: ignore[return-value]


def _original(self: Any) -> torch.nn.Module:
    """The module as it was given to compile(), sharing this one's state."""
    found = original_of(self)
    return _plain(self) if found is None else found


def _reduce(self: Any, protocol: Any) -> Any:
    """Pickles as the original module; unpickling gives the plain module."""
    made = _original(self).__reduce_ex__(protocol)
    if isinstance(made, tuple) and made[0] is copyreg.__newobj__ and len(made[1]) == 1:  # type: ignore[attr-defined]
        # pickle insists on the object's own class behind __newobj__
        return (copyreg._reconstructor, (made[1][0], object, None), *made[2:])  # type: ignore[attr-defined]
    return made


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    return getattr(type(self), ALIKE).compiled(copy.deepcopy(_original(self), memo))


def _copy(self: Any) -> Any:
    """A compiled module of its own, with the same parameters and submodules."""
    return getattr(type(self), ALIKE).compiled(copy.copy(_original(self)))
