"""What a graph node finds by name while it runs, and what must hold for it to find the same.

A Python function of torch that is one node is not interpreted, but the functions that it calls may
be replaced all the same. And code that FX generates calls functions of torch by their names.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.node import _get_qualified_name

from torchweld.capture.session import Capture
from torchweld.capture.wrap import IMMUTABLE
from torchweld.frame.decode import decode
from torchweld.ir.source import InstanceDict, Item

# where functions are followed; what else torch calls is not an operator of its own
_FOLLOWED = ("torch.nn.functional", "torch.functional", "torch._tensor", "torch.nn._reduction",
             "torch._jit_internal", "torch._lowrank", "torch.special", "torch.fft", "torch.linalg",
             "torch.signal")  # fmt: skip
_INSTALLED = frozenset(("torch", *sys.stdlib_module_names))


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """The chains of names, such as ("torch", "softmax"), that code reads from its globals."""
    chains: dict[tuple[str, ...], None] = {}
    last: tuple[str, ...] = ()
    for i in decode(code).instrs:
        if i.op == "LOAD_GLOBAL":
            last = (i.arg,)
        elif i.op == "LOAD_ATTR" and last:
            last = (*last, i.arg)
        else:
            last = ()
        if last:
            chains[last] = None
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(chains) + tuple(chain for c in inner for chain in _names(c))


def _found(fn: types.FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the code of a function reads: the dict of a module and the name in it."""
    for chain in _names(fn.__code__):
        places = fn.__globals__
        for name in chain[:-1]:
            owner = places.get(name)
            if not isinstance(owner, types.ModuleType):
                break
            places = vars(owner)
        else:
            if chain[-1] in places:
                yield places, chain[-1]


def _called(fn: types.FunctionType) -> Iterator[types.FunctionType]:
    """The functions in the closure, such as the two that `boolean_dispatch` chooses from."""
    for cell in fn.__closure__ or ():
        try:
            inner = cell.cell_contents
        except ValueError:
            continue
        if isinstance(inner, types.FunctionType):
            yield inner


def _is_installed(fn: types.FunctionType) -> bool:
    return str(fn.__module__).split(".")[0] in _INSTALLED


def guard_leaf(cap: Capture, fn: types.FunctionType) -> bool:
    """Guard what `fn`, and what it calls, reads from modules. False: some of it is the user's."""
    seen: dict[types.FunctionType, None] = {fn: None}
    own = True
    for reader in (todo := list(seen)):
        callees = list(_called(reader))
        for places, name in _found(reader):
            value = places[name]
            source = Item.make(cap.pin(places, str(places.get("__name__", "globals"))), name, False)
            cap.guard("equal" if isinstance(value, IMMUTABLE) else "is", source, value)
            if isinstance(value, types.FunctionType):
                callees.append(value)
        for callee in callees:
            own &= _is_installed(callee)
            if callee not in seen and str(callee.__module__).startswith(_FOLLOWED):
                seen[callee] = None
                todo.append(callee)
    return own


def by_name(cap: Capture, fn: Any) -> Any:
    """`fn` if its name leads to it, which is guarded; else a function that calls it."""
    if not str(getattr(fn, "__module__", "")).startswith("torch") or not isinstance(
            fn, types.FunctionType | types.BuiltinFunctionType):  # fmt: skip
        return fn
    owner: Any = torch
    for name in _get_qualified_name(fn).split(".")[1:]:
        if not isinstance(owner, types.ModuleType | type) or name not in vars(owner):
            return _standing_for(fn)
        inner = vars(owner)[name]
        base = (cap.pin(vars(owner), owner.__name__) if isinstance(owner, types.ModuleType)
                else InstanceDict.make(cap.pin(owner)))  # fmt: skip
        cap.guard("is", Item.make(base, name, False), inner)
        owner = inner
    return fn if owner is fn else _standing_for(fn)


def _standing_for(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call
