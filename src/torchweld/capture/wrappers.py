"""Functions that stand around others and only do bookkeeping: what is called behind them."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
from typing import Any

import torch
from torch.jit._state import _try_get_jit_cached_function

from torchweld.capture.attrs import closure_of
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import (
    Const,
    DictValue,
    InstanceValue,
    PartialValue,
    TensorValue,
    Value,
    constant,
)
from torchweld.capture.wrap import complete, read_key
from torchweld.ir.nested import transformed
from torchweld.ir.source import Attr

# wrappers that only watch for endless recursion
_TRANSPARENT = frozenset(
    decorate(lambda self: "").__code__
    for decorate in (dataclasses._recursive_repr, reprlib.recursive_repr())  # type: ignore[attr-defined]
)
# the wrapper of functools.singledispatch
DISPATCH = functools.singledispatch(lambda x: x).__code__  # type: ignore[attr-defined]
# its function that chooses
_CHOOSE = functools.singledispatch(lambda x: x).dispatch.__code__
# once torch.compile has run, nn.Module's own methods are wrapped to count modules: (module, name)
# of the wrapper -> the variable of its closure that holds the method
_COUNTED = {
    ("torch._dynamo.mutation_guard", "patched_init"): "init",
    ("torch._dynamo.mutation_guard", "patched_setstate"): "setstate",
}

# code of functions that torch.func and torch.vmap have made -> (what made them, its parameters)
TRANSFORMS: dict[types.CodeType, tuple[Any, tuple[str, ...]]] = {}


def behind_transform(cap: Capture, fn: Const) -> PartialValue | None:
    """What a function does that torch.func or torch.vmap has made, said in one call; or None."""
    real: Any = fn.obj
    found = TRANSFORMS.get(getattr(real, "__code__", None))  # type: ignore[arg-type]
    if found is None:
        return None
    api, names = found
    cells = closure_of(cap, real, fn.source)
    given = {n: cap.force(cells[n].contents) for n in names if n in cells}
    inner = given.pop("func")
    options = tuple((n, constant(cap.unwrap(x))) for n, x in given.items())
    args: list[Value] = [Const(api), Const(options), inner]
    return PartialValue(Const(transformed), args, {}, functools.partial)


def watched(real: Any) -> Any:
    """What a wrapper that only does bookkeeping calls; None if `real` is not one."""
    if not isinstance(real, types.FunctionType):
        return None
    if real.__code__ in _TRANSPARENT:
        wrapped = getattr(real, "__wrapped__", None)
        return wrapped if wrapped is not None else _held(real, "user_function")
    name = _COUNTED.get((real.__module__, real.__name__))
    if name is None or name not in real.__code__.co_freevars:
        return None
    return _held(real, name)


def _held(real: types.FunctionType, name: str) -> Any:
    """What a variable of a closure holds."""
    assert real.__closure__ is not None
    return real.__closure__[real.__code__.co_freevars.index(name)].cell_contents


def dispatched(cap: Capture, fn: Const, args: list[Value]) -> Any:
    """The function that functools.singledispatch chooses; None if `fn` is not made by it."""
    real: Any = fn.obj
    if getattr(real, "__code__", None) is not DISPATCH or not args:
        return None
    cap.wrap(real.registry, Attr.make(fn.source or cap.pin(real), "registry"))
    return real.dispatch(args[0].cls())


def chosen(cap: Capture, fn: Const, args: list[Value]) -> Value | None:
    """What `dispatch` of a singledispatch function gives; None if `fn` is something else."""
    real: Any = fn.obj
    if getattr(real, "__code__", None) is not _CHOOSE or len(args) != 1:
        return None
    registry = cap.force(closure_of(cap, real, fn.source)["registry"].contents)
    kind: Any = constant(args[0])
    if not isinstance(registry, DictValue) or registry.changed or registry.real is None:
        return None
    complete(cap, registry)
    found = real(kind)
    key = next(k for k, v in registry.real.items() if v is found)  # type: ignore[attr-defined]
    return read_key(cap, registry, key)


# what torch.jit.script makes of functions and modules, and torch.jit.trace
SCRIPTED = (torch.jit.ScriptFunction, torch.jit.ScriptModule)
_SCRIPTED_NUMBERS = {"int": int, "float": float, "bool": bool, "str": str}


def behind_script(cap: Capture, fn: InstanceValue, args: list[Value],
                  kwargs: dict[str, Value]) -> Value:  # fmt: skip
    """The Python function that a scripted one was made of, where both do the same.

    Errors: GraphBreak for what was traced, for modules, and where TorchScript may differ.
    """
    real: Any = fn.real
    original = getattr(real, "_torchdynamo_inline", None)
    same = (isinstance(real, torch.jit.ScriptFunction) and type(original) is types.FunctionType
            and _scripted_name(original) == real.qualified_name
            and _is_timeless(original) and _takes(real.schema, args, kwargs))
    if not same or fn.source is None:
        raise refuse("W103", "TorchScript, which runs outside of Python", cap.loc(),
                     "call what was scripted or traced itself")  # fmt: skip
    cap.guard("is", fn.source, real)
    return cap.wrap(original, Attr.make(fn.source, "_torchdynamo_inline"))


def _scripted_name(fn: types.FunctionType) -> str | None:
    """What TorchScript calls a function; None of one that was traced only."""
    made: Any = _try_get_jit_cached_function(fn)  # type: ignore[no-untyped-call]
    return made.qualified_name if made is not None else None


def _is_timeless(fn: types.FunctionType) -> bool:
    """Whether a function reads nothing that it was scripted with, and does not ask about that."""
    names = fn.__code__.co_names
    if fn.__closure__ or "is_scripting" in names or "is_tracing" in names:
        return False
    return all(isinstance(fn.__globals__.get(n), types.ModuleType | None) for n in names)


def _takes(schema: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether arguments are of the declared types; TorchScript raises for others, or converts."""
    wanted = schema.arguments
    given = dict(zip((a.name for a in wanted), args, strict=False)) | kwargs
    if len(args) > len(wanted) or not given.keys() <= {a.name for a in wanted}:
        return False
    for a in wanted:
        x, kind = given.get(a.name), str(a.type)
        fits = isinstance(x, TensorValue) if kind == "Tensor" else (
            isinstance(x, Const) and x.cls() is _SCRIPTED_NUMBERS.get(kind))  # fmt: skip
        if x is not None and not fits:
            return False
    return True
