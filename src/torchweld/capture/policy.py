"""What to do with a callable that has no handler of its own: one table of policies.

inline      interpret its bytecode
graph       record it as an operator call
pure        run it now, on constants
refuse      stop the capture, with a reason
"""

from __future__ import annotations

import collections
import functools
import importlib
import math
import operator
import os
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torchweld.base.errors import GraphBreak
from torchweld.capture import polyfills
from torchweld.capture.attrs import from_python, mro_lookup, watch_class
from torchweld.capture.class_state import users_hook
from torchweld.capture.kernels import inner_function
from torchweld.capture.late import LateNumber, is_time, takes_late
from torchweld.capture.leaf_reads import by_name, guard_leaf
from torchweld.capture.marks import Mark, mark_of
from torchweld.capture.ops import says_its_keys, user_method
from torchweld.capture.plain_classes import is_plain, is_pure
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, raised, refuse
from torchweld.capture.tables import FUNCTIONS, METHODS
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    DictValue,
    InstanceValue,
    IteratorValue,
    ListValue,
    Mutable,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.base import is_plain as sees_plain
from torchweld.capture.values.owned import OwnedValue
from torchweld.capture.wrap import IMMUTABLE, complete, frozen, need_frozen
from torchweld.frame.points import is_rest

Run = Callable[[Capture, Any, list[Value], dict[str, Value], Cont | None], None]


@dataclass(frozen=True, slots=True)
class Policy:
    """A way of treating a call. `run` is not used by INLINE."""

    name: str
    run: Run

    INLINE: ClassVar[Policy]
    GRAPH: ClassVar[Policy]
    METHOD: ClassVar[Policy]
    PURE: ClassVar[Policy]
    BUILTIN: ClassVar[Policy]
    REFUSE: ClassVar[Policy]
    DISABLED: ClassVar[Policy]
    ALLOWED: ClassVar[Policy]
    CONSTANT: ClassVar[Policy]


def _inline(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
            cont: Cont | None) -> None:  # fmt: skip
    raise AssertionError("inlined calls are made by calls.py")


def graph_call(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
               cont: Cont | None) -> None:  # fmt: skip
    """Record fn(*args, **kwargs) as a call_function node."""
    if "generator" in kwargs and _drawn(cap, "call_function", fn, args, kwargs, cont):
        return
    if any(isinstance(x, InstanceValue | ListValue | TupleValue) for x in (
            *args, *kwargs.values())) and _overridden(cap, fn, args, kwargs, cont):  # fmt: skip
        return
    inner = inner_function(fn, (*args, *kwargs.values()))
    if inner is not None:
        cap.call(cap.wrap(inner, cap.pin(inner)), args, kwargs, cont)
        return
    if isinstance(fn, types.FunctionType):
        if not guard_leaf(cap, fn) or _has_late_float(fn, args, kwargs):
            inline_anyway(cap, fn, args, kwargs, cont)
            return
        try:
            out = _node(cap, fn, args, kwargs)
        except NotConstant:
            inline_anyway(cap, fn, args, kwargs, cont)
            return
        except GraphBreak as broken:
            if broken.code != "W102" or not cap.builder.takes_data:
                raise
            # it may look at values only to raise
            inline_anyway(cap, fn, args, kwargs, cont)
            return
        cap.deliver(out, cont)
    else:
        allowed_call(cap, fn, args, kwargs, cont)


def _overridden(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None) -> bool:  # fmt: skip
    """Whether an argument's class says with __torch_function__ what a function of torch does; then
    that is called. Errors: GraphBreak where several classes do."""
    items: list[Value] = []
    for x in (*args, *kwargs.values()):
        items += cap.force_items(x.items) if isinstance(x, ListValue | TupleValue) else [x]
    objects = [x for x in items if isinstance(x, InstanceValue)
               and isinstance(mro_lookup(x.klass, _HOOK), _METHODS_OF_CLASSES)]  # fmt: skip
    if not objects:
        return False
    kinds = list(dict.fromkeys(x.klass for x in objects))
    if len(kinds) > 1:
        raise refuse("W107", "several classes with a __torch_function__", cap.loc())
    hook: Any = mro_lookup(kinds[0], _HOOK)
    whole = isinstance(hook, classmethod)
    bound = BoundValue(Const(hook.__func__ if whole else hook),
                       Const(kinds[0]) if whole else objects[0])  # fmt: skip
    named = DictValue(dict)
    for key, value in kwargs.items():
        named.items[key], named.keys[key] = value, Const(key)
    watch_class(cap, kinds[0])

    def done(made: Value) -> None:
        if isinstance(made, Const) and made.obj is NotImplemented:
            raise refuse("W107", "a __torch_function__ that gives NotImplemented", cap.loc())
        cap.deliver(made, cont)

    given = [Const(fn), TupleValue([Const(kinds[0])]), TupleValue(list(args)), named]
    cap.call(bound, given, {}, done)
    return True


_HOOK = "__torch_function__"
_METHODS_OF_CLASSES = (types.FunctionType, classmethod)


def _has_late_float(fn: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a function gets a number that changes, which what it calls may take."""
    given: list[tuple[int | str, Value]] = [*enumerate(args), *kwargs.items()]
    return any(isinstance(x, LateNumber) and not x.fixed and type(x.now) is not int
               and not takes_late(fn, at, args) for at, x in given)  # fmt: skip


def _node(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of a call_function node. Errors: NotConstant, GraphBreak."""
    args = [cap.unwrap(a) for a in args]
    kwargs = {k: cap.unwrap(v) for k, v in kwargs.items()}
    return cap.builder.call("call_function", by_name(cap, fn), args, kwargs, cap.loc())


def allowed_call(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                 cont: Cont | None) -> None:  # fmt: skip
    """Record fn(*args, **kwargs) as a node, whatever `fn` is."""
    try:
        out = _node(cap, fn, args, kwargs)
    except NotConstant:
        raise refuse("W103", f"{_name(fn)} gets an argument that a graph cannot hold",
                     cap.loc()) from None  # fmt: skip
    cap.deliver(out, cont)


def inline_anyway(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                  cont: Cont | None) -> None:  # fmt: skip
    """Interpret a function that would normally be one graph node."""
    cap.inline_next.add(fn)
    try:
        cap.call(from_python(fn), args, kwargs, cont)
    finally:
        cap.inline_next.discard(fn)


def _drawn(*args: Any) -> bool:
    """See torch_generators.py, which is loaded when somebody draws with a generator of his own."""
    name = "torchweld.capture.functions.torch_generators"
    found: bool = importlib.import_module(name).drawn(*args)
    return found


def _method_call(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                 cont: Cont | None) -> None:  # fmt: skip
    """Record a Tensor method as a call_method node."""
    if "generator" in kwargs and _drawn(cap, "call_method", fn, args, kwargs, cont):
        return
    args = [cap.unwrap(a) for a in args]
    kwargs = {k: cap.unwrap(v) for k, v in kwargs.items()}
    try:
        out = cap.builder.call("call_method", fn.__name__, args, kwargs, cap.loc())
    except NotConstant:
        raise refuse("W103", f"Tensor.{fn.__name__} gets an argument that a graph cannot hold",
                     cap.loc()) from None  # fmt: skip
    cap.deliver(out, cont)


# what functions ask their argument for, the first that it has; what gives the result itself
_ASKED: dict[Any, tuple[str, ...]] = {
    math.floor: ("__floor__", "__float__"), math.ceil: ("__ceil__", "__float__"),
    math.trunc: ("__trunc__",), operator.length_hint: ("__len__", "__length_hint__"),
    operator.index: ("__index__",), bytes: ("__bytes__",),
    **dict.fromkeys((hex, oct, bin, chr), ("__index__",)),
}  # fmt: skip
_RESULTS = frozenset(("__floor__", "__ceil__", "__trunc__", "__len__", "__length_hint__",
                      "__bytes__"))  # fmt: skip


def _asks_object(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                 cont: Cont | None) -> bool:  # fmt: skip
    """Whether an argument of a class of the user's answered: by a method that the function is for,
    or that tells which number it is."""
    at = next((i for i, a in enumerate(args) if isinstance(a, InstanceValue)), None)
    if at is None:
        return False
    names = _ASKED.get(fn, ("__float__",) if fn in _OF_FLOATS else ())
    name = next((n for n in names if user_method(cap, args[at], n) is not None), None)
    if name is None:
        return False
    hook = user_method(cap, args[at], name)
    rest = [*args[:at]], [*args[at + 1 :]]

    def again(number: Value) -> None:
        cap.call(Const(fn), [*rest[0], number, *rest[1]], kwargs, cont)

    cap.call(Const(hook), [args[at]], {}, cont if name in _RESULTS else again)
    return True


_OF_FLOATS = frozenset(fn for fn in vars(math).values() if callable(fn))


def _pure(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
          cont: Cont | None) -> None:  # fmt: skip
    """Run a function without side effects on constants."""
    if args and _asks_object(cap, fn, args, kwargs, cont):
        return
    for x in (*args, *kwargs.values()):
        if isinstance(x, InstanceValue) and x.payload is not None and not sees_plain(x):
            raise refuse("W103", f"{_name(fn)} of a {x.klass.__name__}", cap.loc())
    try:
        args = [_in_memory(a) for a in args]
        real_args = [constant(cap.unwrap(a)) for a in args]
        real_kwargs = {k: constant(cap.unwrap(v)) for k, v in kwargs.items()}
    except NotConstant:
        if any(isinstance(a, TensorValue) for a in args):
            raise refuse("W102", f"{_name(fn)} of a Tensor", cap.loc()) from None
        raise refuse("W103", f"{_name(fn)} of a value that is not constant", cap.loc()) from None
    for x in (*args, *kwargs.values()):
        need_frozen(cap, x)
    try:
        out = fn(*real_args, **real_kwargs)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    cap.deliver(made_anew(cap, fn, out), cont)


def settled(cap: Capture, x: Value) -> Any:
    """The constant that a value is, containers from outside read in whole. Errors: NotConstant."""
    x = _in_memory(x)
    _read(cap, x)
    return constant(cap.unwrap(x))


def _read(cap: Capture, x: Value) -> None:
    match x:
        case ListValue() | TupleValue():
            for item in cap.force_items(x.items):
                _read(cap, item)
        case DictValue():
            complete(cap, x)
            for key, slot in list(x.items.items()):
                value = x.items[key] = cap.force(slot)
                _read(cap, value)
        case IteratorValue():
            raise NotConstant
        case _:
            need_frozen(cap, x)


def _in_memory(x: Value) -> Value:
    """The contents of an array of bytes that the frame has made; other values as they are."""
    return Const(bytes(x.twin)) if isinstance(x, OwnedValue) and x.klass is bytearray else x


def made_anew(cap: Capture, fn: Any, out: Any) -> Value:
    """What a function without side effects has made, which is made anew in every call."""
    if hasattr(type(out), "__next__"):
        items = iter(list(out))
        return IteratorValue(lambda: next(map(from_python, items), None), type(out))
    if not _lasts(out):
        raise refuse("W103", f"{_name(fn)} gives a {type(out).__name__}", cap.loc())
    return from_python(out)


def _lasts(out: Any) -> bool:
    """Whether an object, or each part of a container, can never change."""
    if isinstance(out, dict):
        return all(map(_lasts, out.values()))
    if isinstance(out, list | tuple | set | frozenset):
        return all(map(_lasts, out))
    return frozen(out) or callable(out)


# methods of OrderedDict that put items into a subclass by its own `__setitem__`
_PUT = ("__init__", "update", "setdefault", "__ior__", "__or__", "__ror__")


def _builtin_method(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                    cont: Cont | None) -> None:  # fmt: skip
    """A method descriptor or slot wrapper of a built-in type: the METHODS table, else pure."""
    if args and isinstance(args[0], OwnedValue):
        FUNCTIONS[OwnedValue](cap, [Const(fn), *args], kwargs, cont)
        return
    if args and isinstance(args[0], LateNumber) and is_time(args[0].now) and not kwargs:
        cap.deliver(cap.late.of_times(fn, args), cont)
        return
    owner = getattr(fn, "__objclass__", None)
    if owner is None and isinstance(getattr(fn, "__self__", None), type):
        owner = fn.__self__
    inner = args[0].payload if args and isinstance(args[0], InstanceValue) else None
    if inner is not None and owner is collections.OrderedDict and len(args) + len(kwargs) > 1 and (
            fn.__name__ in _PUT and users_hook(args[0].cls(), "__setitem__")):  # fmt: skip
        why = f"{_name(fn)} asks {args[0].cls().__name__}.__setitem__"
        raise refuse("W103", why, cap.loc())
    if inner is not None and fn.__name__ == "copy" and owner in (
            collections.OrderedDict, collections.defaultdict):  # fmt: skip
        raise refuse("W107", f"copy() of a {args[0].cls().__name__}", cap.loc())
    if fn is dict.copy and args and says_its_keys(cap, args[0]):
        cap.call(Const(polyfills.dict_or), [args[0], DictValue(dict)], {}, cont)
        return
    if inner is not None and owner is not object:
        args = [inner, *args[1:]]
        handler = METHODS.get((inner.cls(), fn.__name__)) or (
            METHODS.get((owner, fn.__name__)) if isinstance(owner, type) else None
        )
    else:
        handler = METHODS.get((owner, fn.__name__)) if isinstance(owner, type) else None
    if handler is not None:
        handler(cap, args, kwargs, cont)
    elif owner in _PURE_OWNERS or is_pure(fn, owner):
        _pure(cap, fn, args, kwargs, cont)
    else:
        raise refuse("W103", f"{_name(fn)} is written in C", cap.loc())


def _refuse(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
            cont: Cont | None) -> None:  # fmt: skip
    raise refuse("W103", f"{_name(fn)} cannot be captured", cap.loc())


def _disabled(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
              cont: Cont | None) -> None:  # fmt: skip
    found = mark_of(fn)
    reason = f": {found[1]}" if found is not None and found[1] else ""
    raise refuse("W108", f"{_name(fn)} is marked with disable{reason}", cap.loc())


def _constant_call(cap: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value],
                   cont: Cont | None) -> None:  # fmt: skip
    """Call it for real, once per capture; the user says that the result never changes."""
    cap.unguarded += 1
    try:
        out = fn(*(_real(cap, a) for a in args), **{k: _real(cap, v) for k, v in kwargs.items()})
    except NotConstant:
        raise refuse("W103", f"{_name(fn)} gets an argument that is known only when the graph runs",
                     cap.loc()) from None  # fmt: skip
    plain = isinstance(out, IMMUTABLE) or out is None
    cap.deliver(from_python(out) if plain else cap.wrap(out, cap.pin(out)), cont)


def _real(cap: Capture, value: Value) -> object:
    """The object that a value stands for. Errors: NotConstant."""
    if isinstance(value, Mutable) and value.real is not None and not value.changed:
        return value.real
    return constant(cap.unwrap(value))


Policy.INLINE = Policy("inline", _inline)
Policy.GRAPH = Policy("graph", graph_call)
Policy.METHOD = Policy("method", _method_call)
Policy.PURE = Policy("pure", _pure)
Policy.BUILTIN = Policy("builtin", _builtin_method)
Policy.REFUSE = Policy("refuse", _refuse)
Policy.DISABLED = Policy("disabled", _disabled)
Policy.ALLOWED = Policy("allowed", allowed_call)
Policy.CONSTANT = Policy("constant", _constant_call)

_MARKED = {
    Mark.DISABLED: Policy.DISABLED, Mark.SHALLOW: Policy.DISABLED, Mark.ALLOWED: Policy.ALLOWED,
    Mark.CONSTANT: Policy.CONSTANT,
}  # fmt: skip


def _name(fn: Any) -> str:
    module = getattr(fn, "__module__", None)
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or repr(fn)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


_PURE_OWNERS = frozenset((
    int, float, bool, complex, str, bytes, tuple, range, slice, frozenset, type(None), object,
    torch.dtype, torch.device, torch.layout, dict, type, types.MappingProxyType, property,
    type({}.keys()), torch.finfo, torch.iinfo, types.GenericAlias, re.Pattern, re.Match,
))  # fmt: skip
_PURE_MODULES = frozenset(("math", "_operator", "cmath"))
_IMPURE_BUILTINS = frozenset((
    "print", "input", "open", "exec", "eval", "compile", "breakpoint", "__import__", "id",
    "globals", "locals", "vars", "dir", "setattr", "delattr", "hash",
    "bytearray", "memoryview",  # others may change what they hold
))  # fmt: skip
# Python code of torch that is interpreted; the rest of torch's Python functions are graph nodes
# when they get tensors
_INLINE_TORCH = (
    "torch.nn.modules", "torch.nn.parameter", "torch.autograd.grad_mode", "torch.amp",
    "torch.cuda.amp",
    "torch.utils._contextlib", "torch.nn.utils.parametrize", "torch.utils._pytree",
    "torch.distributions",
    "torch.nn.attention", "torch.backends",
)  # fmt: skip
_REFUSE_TORCH = (
    "torch._dynamo", "torch._inductor", "torch._export", "torch.export",
    "torch.distributed", "torch.utils.data", "torch.serialization", "torch.jit", "torch.onnx",
    "torch.multiprocessing", "torch.profiler", "torch.autograd.functional", "torch.hub",
)  # fmt: skip
_LEAF_TORCH = ("torch.functional", "torch.nn.functional", "torch._jit_internal", "torch.special",
               "torch.fft", "torch.linalg", "torch._lowrank", "torch.signal")  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _policy(fn: Any) -> Policy:
    if isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return Policy.GRAPH
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    if isinstance(owner, type) and issubclass(torch.Tensor, owner) and owner is not object:
        return Policy.METHOD
    module = str(getattr(fn, "__module__", "") or "")
    if isinstance(fn, types.BuiltinFunctionType) and _is_torch_op(fn, module, owner):
        return Policy.GRAPH
    if isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType
                  | types.ClassMethodDescriptorType | types.MethodWrapperType):  # fmt: skip
        return Policy.BUILTIN
    if isinstance(fn, types.BuiltinFunctionType | type):
        if module in _PURE_MODULES or (module == "builtins" and _name(fn) not in _IMPURE_BUILTINS):
            return Policy.PURE
        if isinstance(owner, type):
            return Policy.BUILTIN
    if isinstance(fn, type) and is_plain(fn):
        return Policy.PURE
    if fn in (torch.Size, torch.device, torch.finfo, torch.iinfo, os.fspath, str.maketrans):
        return Policy.PURE
    return Policy.REFUSE


def marked_policy(fn: Any) -> Policy | None:
    """The policy that the user has asked for; None if there is none."""
    found = mark_of(fn)
    return None if found is None else _MARKED[found[0]]


def policy_of(fn: Any) -> Policy:
    """The policy for a callable without a handler."""
    if isinstance(fn, types.FunctionType):
        return _python_policy(fn)
    try:
        # the cache would keep alive what a method is bound to
        return _policy(fn) if is_unbound(fn) else _policy.__wrapped__(fn)
    except TypeError:  # unhashable callable
        return Policy.REFUSE


def is_unbound(fn: Any) -> bool:
    """Whether a callable written in C belongs to a module or class, if to anything."""
    return isinstance(getattr(fn, "__self__", None), type | types.ModuleType | None)


def _python_policy(fn: types.FunctionType) -> Policy:
    if is_rest(fn.__code__):
        return Policy.INLINE
    module = fn.__module__ or ""
    if not module.startswith("torch.") and module != "torch":
        return Policy.INLINE
    if module.startswith(_INLINE_TORCH):
        return Policy.INLINE
    if module.startswith(_REFUSE_TORCH):
        return Policy.REFUSE
    if module.startswith(_LEAF_TORCH) or fn in _overridable():
        return Policy.GRAPH
    return Policy.INLINE


@functools.cache
def _overridable() -> frozenset[Any]:
    """Functions that torch documents as operators on tensors."""
    found: set[Any] = set()
    for functions in torch.overrides.get_overridable_functions().values():
        found.update(f for f in functions if isinstance(f, types.FunctionType))
    return frozenset(found)


def _is_torch_op(fn: Any, module: str, owner: object) -> bool:
    if module.startswith("torch._C") and module != "torch._C":
        return module.split(".")[-1] in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested")
    return owner is torch._C._VariableFunctions or getattr(
        torch._C._VariableFunctions, fn.__name__, None) is fn  # fmt: skip


__all__ = [
    "Policy", "Raised", "graph_call", "inline_anyway", "is_unbound", "marked_policy", "policy_of",
]  # fmt: skip
