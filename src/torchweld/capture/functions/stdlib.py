"""functools, dataclasses, copy, warnings, logging, inspect, typing, contextlib."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
import typing
from typing import Any

import torch
from torch import nn

from torchweld.capture.arrays.functions import copied
from torchweld.capture.attrs_write import set_attr
from torchweld.capture.functions.builtin import callable_, get_attr_or
from torchweld.capture.functions.dict_attrs import all_attrs
from torchweld.capture.functions.torch_calls import parameter_of
from torchweld.capture.instances import load_all_attrs
from torchweld.capture.ops import user_method
from torchweld.capture.private import real_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import function, klass, method
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    DictValue,
    FunctionValue,
    InstanceValue,
    ListValue,
    NotConstant,
    PartialValue,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    boolean,
    constant,
    is_constant,
)
from torchweld.capture.values.sequences import DequeValue
from torchweld.capture.wrap import complete

Args = list[Value]
Kwargs = dict[str, Value]


@klass(functools.partial)
def partial(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        raise raised(TypeError, "type 'partial' takes at least one argument")

    def made(known: Value) -> None:
        if not constant(known):
            raise raised(TypeError, "the first argument must be callable")
        _partial(cap, args, kwargs, cont)

    callable_(cap, args[:1], {}, made)


def _partial(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    fn, rest = args[0], args[1:]
    if isinstance(fn, PartialValue) and fn.kind is functools.partial:
        rest, kwargs = [*fn.args, *rest], {**fn.kwargs, **kwargs}
        fn = fn.func
    cap.deliver(PartialValue(fn, rest, kwargs, functools.partial), cont)


@function(functools.wraps)
def wraps(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(PartialValue(Const(_update), list(args), kwargs, functools.partial), cont)


def _update(wrapped: Any, *rest: Any, **named: Any) -> Any:
    *choice, wrapper = rest
    return functools.update_wrapper(wrapper, wrapped, *choice, **named)


@function(_update)
def update(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    update_wrapper(cap, [args[-1], args[0], *args[1:-1]], kwargs, cont)


def _choice(cap: Capture, given: Kwargs, name: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """Which attributes a wrapper gets."""
    try:
        chosen = tuple(constant(cap.unwrap(given[name]))) if name in given else otherwise
    except NotConstant:
        raise refuse("W107", "attributes of a wrapper that are not constant", cap.loc()) from None
    return chosen


@function(functools.update_wrapper)
def update_wrapper(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Copies the names of a function to a function made in the frame."""
    wrapper, wrapped = args[:2]
    if not isinstance(wrapper, FunctionValue):
        raise refuse("W107", f"update_wrapper of a {wrapper.cls().__name__}", cap.loc())
    given = dict(zip(("assigned", "updated"), args[2:], strict=False)) | kwargs
    names = [*_choice(cap, given, "assigned", functools.WRAPPER_ASSIGNMENTS),
             *_choice(cap, given, "updated", functools.WRAPPER_UPDATES)]  # fmt: skip
    if "__annotations__" in names:
        names.remove("__annotations__")

    def step(_: Value | None) -> None:
        if not names:
            wrapper.attrs["__wrapped__"] = wrapped
            cap.deliver(wrapper, cont)
            return
        name = names.pop(0)

        def keep(value: Value) -> None:
            if name == "__dict__":
                if not isinstance(value, DictValue):
                    raise refuse("W107", "the attributes of a wrapped object", cap.loc())
                complete(cap, value)
                wrapper.attrs.update({str(k): cap.force(v) for k, v in value.items.items()})
                step(None)
            else:
                set_attr(cap, wrapper, name, value, step)

        get_attr_or(cap, wrapped, name, keep, lambda: step(None))

    step(None)


# ------------------------------------------------------------------ dataclasses
@function(dataclasses.fields)
def fields(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind = args[0].obj if isinstance(args[0], Const) and isinstance(args[0].obj, type) \
        else args[0].cls()  # fmt: skip
    try:
        found = dataclasses.fields(kind)
    except TypeError as error:
        raise raised(TypeError, *error.args) from None
    cap.deliver(TupleValue([cap.wrap(f, cap.pin(f, f.name)) for f in found]), cont)


@function(dataclasses.is_dataclass)
def is_dataclass(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    x = args[0]
    kind = x.obj if isinstance(x, Const) and isinstance(x.obj, type) else x.cls()
    cap.deliver(boolean(dataclasses.is_dataclass(kind)), cont)


# ------------------------------------------------------------------------- copy
@function(copy.copy)
def copy_copy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    hook = user_method(cap, args[0], "__copy__")
    if hook is not None:
        cap.call(Const(hook), [args[0]], {}, cont)
        return
    if _has_state(cap, args[0]):
        cap.call(Const(copied_by_state), [args[0], Const(None)], {}, cont)
        return
    cap.deliver(_copy(cap, args[0], None), cont)


def _is_plain_module(kind: type) -> bool:
    """Whether instances of a class are copied attribute by attribute, as modules are."""
    return issubclass(kind, nn.Module) and all(
        getattr(kind, n, None) is getattr(nn.Module, n, None)
        for n in ("__getstate__", "__setstate__"))  # fmt: skip


def _has_state(cap: Capture, x: Value) -> bool:
    """Whether the class of an object says itself what copies are made of, and nothing else."""
    if _is_plain_module(x.cls()):
        return False
    hooks = (user_method(cap, x, "__getstate__"), user_method(cap, x, "__setstate__"))
    return isinstance(x, InstanceValue) and x.payload is None and any(hooks) and not any(
        user_method(cap, x, n) for n in ("__reduce_ex__", "__reduce__", "__getnewargs__",
                                         "__getnewargs_ex__"))  # fmt: skip


def copied_by_state(x: Any, deep: Any) -> Any:
    """What `copy` makes of an object that has __getstate__ or __setstate__."""
    state = x.__getstate__()
    kind: Any = type(x)
    made = kind.__new__(kind)
    if deep and state:
        state = copy.deepcopy(state)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif state:
        made.__dict__.update(state)
    return made


@function(copy.deepcopy)
def copy_deepcopy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    hook = user_method(cap, args[0], "__deepcopy__")
    if hook is not None:
        memo = args[1] if len(args) > 1 and not is_constant(args[1]) else DictValue(dict)
        cap.call(Const(hook), [args[0], memo], {}, cont)
        return
    if len(args) == 1 and _has_state(cap, args[0]):
        cap.call(Const(copied_by_state), [args[0], Const(True)], {}, cont)
        return
    cap.deliver(_copy(cap, args[0], {}), cont)


def _copy(cap: Capture, x: Value, memo: dict[int, Value] | None) -> Value:
    """A copy; with `memo` a deep one. Errors: GraphBreak for what has its own way of copying."""
    if memo is not None and id(x) in memo:
        return memo[id(x)]
    if isinstance(x, Const | FunctionValue):
        return x
    if isinstance(x, ArrayValue):
        made = copied(cap, x)
        if memo is not None:
            memo[id(x)] = made
        return made
    if isinstance(x, TensorValue):
        if x.kind is torch.nn.Parameter and memo is not None and not cap.builder.bodies:
            memo[id(x)] = _copy_parameter(cap, x)
            return memo[id(x)]
        if x.fake.requires_grad or x.kind is not torch.Tensor:
            raise refuse("W107", "a copy of a Tensor that requires grad or is a Parameter",
                         cap.loc())  # fmt: skip
        if memo is None:  # another object for the same memory
            return cap.builder.call("call_method", "detach", [x], {}, cap.loc())
        out: Value = cap.builder.call("call_method", "clone", [x], {}, cap.loc())
        memo[id(x)] = out
        return out
    if isinstance(x, InstanceValue):
        return _copy_instance(cap, x, memo)
    return _copy_container(cap, x, memo)


def _copy_parameter(cap: Capture, x: TensorValue) -> Value:
    data = cap.builder.call("call_method", "detach", [x], {}, cap.loc())
    data = cap.builder.call("call_method", "clone", [data], {}, cap.loc())
    assert isinstance(data, TensorValue)
    return parameter_of(cap, data, x.fake.requires_grad)


def _copy_container(cap: Capture, x: Value, memo: dict[int, Value] | None) -> Value:
    def item(slot: Any) -> Value:
        value = cap.force(slot)
        return value if memo is None else _copy(cap, value, memo)

    match x:
        case TupleValue():
            return TupleValue([item(i) for i in x.items], x.kind)
        case ListValue():
            made = DequeValue([], x.maxlen) if isinstance(x, DequeValue) else ListValue([])
            if memo is not None:
                memo[id(x)] = made
            made.items.extend(item(i) for i in list(x.items))
            return made
        case DictValue():
            complete(cap, x)
            out = DictValue(x.kind)
            out.factory = x.factory
            if memo is not None:
                memo[id(x)] = out
            for key, slot in list(x.items.items()):
                out.items[key] = item(slot)
                out.keys[key] = x.keys[key]
            out.attrs.update({k: item(v) for k, v in all_attrs(cap, x).items()})
            return out
        case SetValue():
            same = SetValue(x.kind)
            same.items.update(x.items)
            same.twin = same.past = None
            return same
    raise refuse("W107", f"copy of {x.cls().__name__}", cap.loc())


def _copy_instance(cap: Capture, x: InstanceValue, memo: dict[int, Value] | None) -> Value:
    special = "__copy__" if memo is None else "__deepcopy__"
    plain = nn.Module if _is_plain_module(x.klass) else object
    if hasattr(x.klass, special) or any(
        getattr(x.klass, n, None) is not getattr(plain, n, None)
        for n in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
    ):
        raise refuse("W107", f"copy of {x.klass.__name__}", cap.loc())
    out = InstanceValue(x.klass)
    if memo is not None:
        memo[id(x)] = out
    load_all_attrs(cap, x)
    for name, value in list(x.attrs.items()):
        if value is not None and not (plain is nn.Module and name == "_compiled_call_impl"):
            out.attrs[name] = value if memo is None else _copy(cap, value, memo)
    if x.payload is not None:
        out.payload = _copy_container(cap, x.payload, memo)
    return out


# ------------------------------------------------------------- typing, inspect
@function(typing.cast)
def cast(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(args[1], cont)


@method(typing.NewType, "__call__")
def new_type(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(args[1], cont)


@function(inspect.signature)
def signature(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    fn: Any = args[0]
    while not isinstance(fn, Const | FunctionValue):
        fn = getattr(fn, "func", None)
        if fn is None:
            raise refuse("W107", f"signature of a {args[0].cls().__name__}", cap.loc())
    try:
        found = inspect.signature(real_of(cap, fn))
    except (TypeError, ValueError) as error:
        raise raised(type(error), *error.args) from None
    if fn is not args[0] and found.parameters:
        found = found.replace(parameters=list(found.parameters.values())[1:])
    cap.deliver(cap.wrap(found, cap.pin(found, "signature")), cont)


@function(inspect.isfunction)
def isfunction(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(issubclass(args[0].cls(), types.FunctionType)), cont)


@function(inspect.ismethod)
def ismethod(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(issubclass(args[0].cls(), types.MethodType)), cont)
