"""Functions that stand around others and only do bookkeeping: what is called behind them."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
from typing import Any

from torchweld.capture.attrs import closure_of
from torchweld.capture.session import Capture
from torchweld.capture.values.base import Const, DictValue, PartialValue, Value, constant
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
