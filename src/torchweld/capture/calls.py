"""Calls: argument binding, inlining by pushing a virtual frame, construction of objects."""

from __future__ import annotations

import collections
import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from torchweld.capture import wrappers
from torchweld.capture.attrs import MISSING, closure_of, mro_lookup, watch_class
from torchweld.capture.binding import bind, defaults_of, given_defaults
from torchweld.capture.class_writes import known_attr
from torchweld.capture.hooks import length, plain_module_call
from torchweld.capture.instances import instance_get, instance_set
from torchweld.capture.kernels import is_cython
from torchweld.capture.marks import region_of, substitute_of
from torchweld.capture.modes import makes_tensors
from torchweld.capture.namespaces import of_the_user
from torchweld.capture.numbers import is_graph_number, number_call
from torchweld.capture.policy import Policy, is_unbound, marked_policy, policy_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, VFrame, raised, refuse
from torchweld.capture.subclasses import SETS, SIMPLE, new_set, new_simple
from torchweld.capture.suspend import kind_of, stops_of
from torchweld.capture.tables import CLASSES, FUNCTIONS, METHODS, NAMED, CallHandler
from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    GeneratorValue,
    InstanceValue,
    ListValue,
    Loose,
    NotConstant,
    PartialValue,
    Slot,
    TensorValue,
    TupleValue,
    UserException,
    Value,
    constant,
)
from torchweld.frame.decode import decode
from torchweld.frame.instr import Code
from torchweld.frame.program import Dispatcher
from torchweld.ir.source import Attr, Source

OnRaise = Callable[[Value], bool] | None
MAX_DEPTH = 400


def call_value(cap: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value],
               cont: Cont | None = None, on_raise: OnRaise = None) -> None:  # fmt: skip
    """Call any value. See Capture.call."""
    match fn:
        case FunctionValue():
            _call_function(cap, fn, args, kwargs, cont, on_raise)
        case BoundValue():
            call_value(cap, fn.func, [fn.self_, *args], kwargs, cont, on_raise)
        case PartialValue():
            call_value(cap, fn.func, [*fn.args, *args], {**fn.kwargs, **kwargs}, cont, on_raise)
        case Loose() if _is_plain_function(fn.real):
            _call_given(cap, fn, args, kwargs, cont, on_raise)
        case Const():
            kwargs = _on_default_device(cap, fn.obj, kwargs) if cap.devices else kwargs
            _call_const(cap, fn, args, kwargs, cont, on_raise)
        case InstanceValue():
            run = functools.partial(_call_instance, cap, fn, args, kwargs, cont, on_raise)
            if cap.slices is None:
                run()
            else:
                cap.slices.call(cap, fn, args, kwargs, cont, run)
        case _:
            raise raised(TypeError, f"'{fn.cls().__name__}' object is not callable")


def _call_const(cap: Capture, fn: Const, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    real = fn.obj
    number = number_call(cap, real, args) if is_graph_number(*args) and not kwargs else None
    if number is not None:
        cap.deliver(number, cont)
        return
    if isinstance(real, Dispatcher):
        fn = Const(real.fn)  # compiled already: captured as part of this frame
        real = fn.obj
    region = region_of(real)
    if region is not None:
        call_value(cap, Const(region), args, kwargs, cont, on_raise)
        return
    other = substitute_of(real)
    if other is not None and id(real) not in cap.substituted:
        _call_other(cap, real, other, args, kwargs, cont, on_raise)
        return
    marked = marked_policy(real)
    handler = _handler_of(real) if marked is None else _run_policy(marked, real)
    if handler is not None and real in cap.inline_next:
        handler = None
    if handler is not None:
        guarded(cap, on_raise, lambda: _handle(cap, real, handler, args, kwargs, cont))
        return
    if isinstance(real, type):
        construct(cap, fn, real, args, kwargs, cont, on_raise)
        return
    bound = _bound(cap, fn, real)
    if bound is not None:
        call_value(cap, bound, args, kwargs, cont, on_raise)
        return
    if not callable(real):
        raise raised(TypeError, f"'{type(real).__name__}' object is not callable")
    own_call = METHODS.get((type(real), "__call__"))
    if own_call is not None:
        guarded(cap, on_raise, lambda: _handle(cap, real, own_call, [fn, *args], kwargs, cont))
        return
    if isinstance(real, types.GenericAlias | typing._BaseGenericAlias):  # type: ignore[attr-defined]
        _call_alias(cap, fn, real.__origin__, args, kwargs, cont, on_raise)
        return
    partial = wrappers.behind_transform(cap, fn)
    if partial is not None:
        call_value(cap, partial, args, kwargs, cont, on_raise)
        return
    found = wrappers.chosen(cap, fn, args)
    if found is not None:
        cap.deliver(found, cont)
        return
    inner = wrappers.dispatched(cap, fn, args) or wrappers.watched(real)
    if inner is not None:
        call_value(cap, Const(inner), args, kwargs, cont, on_raise)
        return
    policy, hashed = policy_of(real), type(real).__hash__ is not None
    if policy is Policy.INLINE or (hashed and real in cap.inline_next):
        cap.inline_next.discard(real)
        _call_real_function(cap, fn, args, kwargs, cont, on_raise)
    else:
        guarded(cap, on_raise, lambda: _handle(cap, real, _run_policy(policy, real), args,
                                               kwargs, cont))  # fmt: skip


def _on_default_device(cap: Capture, real: Any, kwargs: dict[str, Value]) -> dict[str, Value]:
    """The arguments of a function that makes tensors where `with torch.device` says."""
    device = kwargs.get("device")
    if device is not None and not (type(device) is Const and device.obj is None):
        return kwargs
    try:
        made = makes_tensors(real)
    except TypeError:  # unhashable
        return kwargs
    return {**kwargs, "device": Const(cap.devices[-1])} if made else kwargs


def _bound(cap: Capture, fn: Const, real: Any) -> Value | None:
    """A method that is an object, in its two parts; None for what is none."""
    if isinstance(real, types.MethodType):
        return cap.wrap(real, fn.source or cap.pin(real))
    if isinstance(real, types.BuiltinFunctionType) and type(real.__self__) in _OF_VALUES:
        unbound = getattr(type(real.__self__), real.__name__)
        return BoundValue(Const(unbound), Const(real.__self__))
    return None


def _call_other(cap: Capture, real: Any, other: Any, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    """Call what is to be captured in the place of `real`; it may call `real` itself."""
    cap.substituted.add(id(real))

    def done(result: Value) -> None:
        cap.substituted.discard(id(real))
        cap.deliver(result, cont)

    def failed(error: Value) -> bool:
        cap.substituted.discard(id(real))
        return on_raise is not None and on_raise(error)

    call_value(cap, Const(other), args, kwargs, done, failed)


def _run_policy(policy: Policy, real: Any) -> CallHandler:
    return lambda cap, args, kwargs, cont: policy.run(cap, real, args, kwargs, cont)


def _call_alias(cap: Capture, alias: Const, origin: Any, args: list[Value],
                kwargs: dict[str, Value], cont: Cont | None,
                on_raise: OnRaise) -> None:  # fmt: skip
    """C[int](...): an instance of C that remembers the alias, where it can."""

    def remember(made: Value) -> None:
        if isinstance(made, InstanceValue) and made.klass.__dictoffset__ and (
                mro_lookup(made.klass, "__setattr__") is object.__setattr__):  # fmt: skip
            instance_set(cap, made, "__orig_class__", alias)
        cap.deliver(made, cont)

    call_value(cap, Const(origin), args, kwargs, remember, on_raise)


def _handler_of(real: Any) -> Any:
    try:
        found = FUNCTIONS.get(real)
    except TypeError:  # unhashable
        return None
    if found is None and (isinstance(real, types.FunctionType | type) or is_cython(real)):
        found = NAMED.get((real.__module__, real.__qualname__))
    return found


# what a handler meets when it is given arguments that it was not written for
_SURPRISES = (AssertionError, AttributeError, IndexError, KeyError, NotConstant, OverflowError,
              TypeError, ValueError)  # fmt: skip


# classes whose methods, bound to an object, are called as functions of it
_OF_VALUES = (str, bytes, int, float)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


@functools.lru_cache(maxsize=4096)
def _takes(fn: Any, n: int, names: tuple[str, ...]) -> bool:
    """Whether a built-in function may be called so; true where it does not say."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return _takes_tried(fn, n, names)
    try:
        signature.bind(*range(n), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _takes_tried(fn: Any, n: int, names: tuple[str, ...]) -> bool:
    """The same, of what has no signature: it is called with objects that it can do nothing with,
    a method on an empty one of its class."""
    given: list[object] = [object() for _ in range(n)]
    if isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType):
        if fn.__objclass__ not in _EMPTY or not n:
            return True
        given[0] = _EMPTY[fn.__objclass__]
    elif fn not in _EMPTY and (
            getattr(fn, "__module__", None) not in _HARMLESS or fn.__name__ in _DO_SOMETHING):
        return True
    try:
        fn(*given, **{name: object() for name in names})
    except TypeError as error:
        return not _OF_COUNTS.search(str(error))
    except Exception:
        return True
    return True


_KINDS: tuple[Any, ...] = (bool, bytes, collections.OrderedDict, collections.deque, complex, dict,
                           float, frozenset, int, list, set, str, tuple)  # fmt: skip
_EMPTY: dict[Any, object] = {**{kind: kind() for kind in _KINDS}, range: range(0), slice: slice(0)}
_HARMLESS = ("_bisect", "_functools", "_heapq", "_operator", "builtins", "itertools", "math")
_DO_SOMETHING = ("breakpoint", "compile", "eval", "exec", "input", "open", "print", "__import__")
# what an error about the number or the names of the arguments says
_OF_COUNTS = re.compile(r"(takes|expected) (no|exactly|at (most|least)|from|\d+|one)\b.*argument|"
                        r"unexpected keyword|missing required|invalid keyword|must have at least")


def _handle(cap: Capture, real: Any, handler: CallHandler, args: list[Value],
            kwargs: dict[str, Value], cont: Cont | None) -> None:  # fmt: skip
    """Run a handler; eager decides about arguments that it cannot take."""
    takes = _takes if is_unbound(real) else _takes.__wrapped__
    if isinstance(real, (*_BUILTIN, type)) and not takes(real, len(args), tuple(kwargs)):
        raise refuse("W107", f"{real.__qualname__} of {len(args) + len(kwargs)} arguments",
                     cap.loc())  # fmt: skip
    try:
        handler(cap, args, kwargs, cont)
    except _SURPRISES as error:
        name = getattr(real, "__qualname__", None) or type(real).__name__
        raise refuse("W107", f"{name} of these arguments ({type(error).__name__} {error})",
                     cap.loc()) from error  # fmt: skip


def guarded(cap: Capture, on_raise: OnRaise, run: Callable[[], None]) -> None:
    """Run a handler; an exception that it raises at once is offered to `on_raise`."""
    if on_raise is None:
        run()
        return
    try:
        run()
    except Raised as error:
        if not on_raise(error.value):
            raise


# ------------------------------------------------------------------- functions
def _call_real_function(cap: Capture, fn: Const, args: list[Value], kwargs: dict[str, Value],
                        cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    real = fn.obj
    assert isinstance(real, types.FunctionType)
    source = fn.source or cap.pin(real)
    _guard_function(cap, real, source)
    defaults, kwdefaults = defaults_of(cap, real, source)
    code = decode(real.__code__)
    bound = _bind_guarded(cap, code, real.__qualname__, defaults, kwdefaults, args, kwargs,
                          on_raise)  # fmt: skip
    if bound is None:
        return
    cells = closure_of(cap, real, fn.source) if code.freevars else {}
    push_frame(cap, code, real.__globals__, bound, cells, cont, on_raise, fn)


def _is_plain_function(real: Any) -> bool:
    """Whether nothing but the bytecode of a function says what a call of it does."""
    return (isinstance(real, types.FunctionType) and policy_of(real) is Policy.INLINE
            and wrappers.watched(real) is None and real.__code__ is not wrappers.DISPATCH
            and real.__code__ not in wrappers.TRANSFORMS
            and _handler_of(real) is None and is_unmarked(real))  # fmt: skip


def is_unmarked(fn: Any) -> bool:
    """Whether nobody has asked for another treatment of a function."""
    return (marked_policy(fn) is None and region_of(fn) is None
            and substitute_of(fn) is None)  # fmt: skip


def _call_given(cap: Capture, fn: Loose, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    """A function that is another object in each call: its parts are guarded."""
    real, source = fn.real, fn.source
    assert isinstance(real, types.FunctionType)
    assert source is not None
    cap.guard("predicate", source, is_unmarked)
    for name in ("__code__", "__globals__"):
        cap.guard("is", Attr.make(source, name), getattr(real, name))
    defaults, kwdefaults = given_defaults(cap, real, source)
    code = decode(real.__code__)
    bound = _bind_guarded(cap, code, real.__qualname__, defaults, kwdefaults, args, kwargs,
                          on_raise)  # fmt: skip
    if bound is None:
        return
    cells = closure_of(cap, real, source) if code.freevars else {}
    push_frame(cap, code, real.__globals__, bound, cells, cont, on_raise, None)


def _guard_function(cap: Capture, real: types.FunctionType, source: Source) -> None:
    """The user's own functions may get other code; installed ones are not watched."""
    if not of_the_user(real.__code__.co_filename):
        return
    cap.guard("is", Attr.make(source, "__code__"), real.__code__)


def _call_function(cap: Capture, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value],
                   cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    code = decode(fn.code)
    bound = _bind_guarded(cap, code, fn.qualname, fn.defaults, fn.kwdefaults, args, kwargs,
                          on_raise)  # fmt: skip
    if bound is None:
        return
    cells = dict(zip(code.freevars, fn.closure, strict=True))
    assert isinstance(fn.globals, Const)
    assert isinstance(fn.globals.obj, dict)
    push_frame(cap, code, fn.globals.obj, bound, cells, cont, on_raise, fn)


def _bind_guarded(cap: Capture, code: Code, name: str, defaults: Sequence[Slot],
                  kwdefaults: Mapping[str, Slot], args: list[Value], kwargs: dict[str, Value],
                  on_raise: OnRaise) -> dict[str, Value] | None:  # fmt: skip
    try:
        return bind(code, name, defaults, kwdefaults, args, kwargs, cap.force)
    except Raised as error:
        if on_raise is None or not on_raise(error.value):
            raise
        return None


def push_frame(cap: Capture, code: Code, globals_: dict[str, object], bound: dict[str, Value],
               cells: dict[str, CellValue], cont: Cont | None, on_raise: OnRaise,
               function: Value | None) -> None:  # fmt: skip
    """Start a virtual frame; a generator's is handed out suspended instead."""
    if len(cap.frames) > MAX_DEPTH:
        raise refuse("W116", f"more than {MAX_DEPTH} nested calls", cap.loc())
    frame = VFrame(code, globals_, cap.pin(globals_, "globals"), function=function)
    cap.names.update(code.raw.co_names)
    frame.cells = dict(cells)
    for name, value in bound.items():
        if name in code.cellvars:
            frame.cells[name] = CellValue(value)
        else:
            frame.locals[name] = value
    for name in code.cellvars:
        if name not in frame.cells:
            frame.cells[name] = CellValue(None)
    if code.is_generator:
        frame.ip = next(i for i, x in enumerate(code.instrs) if x.op == "RETURN_GENERATOR") + 1
        kind = kind_of(code.flags)
        if kind is types.AsyncGeneratorType:
            importlib.import_module("torchweld.capture.functions.async_generators")  # its methods
        made = GeneratorValue(frame, kind)
        cap.note_birth(made, stops_of(cap))
        if code.protected or kind is types.CoroutineType:
            cap.kept.append(made)  # looked at when the captured frame returns
        cap.deliver(made, cont)
        return
    frame.on_return = cont
    frame.on_raise = on_raise
    cap.frames.append(frame)


# ------------------------------------------------------------------- instances
def _call_instance(cap: Capture, fn: InstanceValue, args: list[Value], kwargs: dict[str, Value],
                   cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    raw = mro_lookup(fn.klass, "__call__")
    if raw is MISSING:
        raise raised(TypeError, f"'{fn.klass.__name__}' object is not callable")
    watch_class(cap, fn.klass)
    if issubclass(fn.klass, wrappers.SCRIPTED):
        inner = wrappers.behind_script(cap, fn, args, kwargs)
        call_value(cap, inner, args, kwargs, cont, on_raise)
        return
    if issubclass(fn.klass, LazyModuleMixin) and raw is torch.nn.Module.__call__:
        why = f"the first call of a {fn.klass.__name__}, which makes its parameters"
        raise refuse("W103", why, cap.loc(), "call the module once before it is compiled")
    if raw is torch.nn.Module.__call__ and plain_module_call(cap, fn):
        forward = instance_get(cap, fn, "forward")
        if forward is not None:
            call_value(cap, forward, args, kwargs, cont, on_raise)
            return
        raw = known_attr(cap, fn.klass.__mro__, "forward") or mro_lookup(fn.klass, "forward")
    if raw is torch.nn.Module.__call__:
        hooks = instance_get(cap, fn, "_forward_hooks_always_called")
        if isinstance(hooks, DictValue) and length(cap, hooks):
            on_raise = functools.partial(_seen_by_hook, cap)
    raw = raw if isinstance(raw, Value) else Const(raw)
    call_value(cap, raw, [fn, *args], kwargs, cont, on_raise)


def _seen_by_hook(cap: Capture, error: Value) -> bool:
    """What nn.Module does for hooks with always_call=True it leaves out while it is compiled."""
    raise refuse("W107", "an exception that a hook with always_call=True waits for", cap.loc())


# ---------------------------------------------------------------- construction
def construct(cap: Capture, fn: Const, kind: type, args: list[Value], kwargs: dict[str, Value],
              cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    """kind(*args, **kwargs): the class table, else __new__ and __init__ by Python's rules."""
    handler = CLASSES.get(kind)
    if handler is not None:
        guarded(cap, on_raise, lambda: _handle(cap, kind, handler, args, kwargs, cont))
        return
    meta_call = mro_lookup(type(kind), "__call__")
    plain = type(kind).__module__ != "enum" or len(args) + len(kwargs) > 1
    if isinstance(meta_call, types.FunctionType) and plain:
        call_value(cap, Const(meta_call), [fn, *args], kwargs, cont, on_raise)
    else:
        construct_plain(cap, fn, kind, args, kwargs, cont, on_raise)


def construct_plain(cap: Capture, fn: Const, kind: type, args: list[Value],
                    kwargs: dict[str, Value], cont: Cont | None,
                    on_raise: OnRaise) -> None:  # fmt: skip
    """type.__call__(kind, *args, **kwargs)."""
    meta_call = mro_lookup(type(kind), "__call__")
    if meta_call is not type.__call__ and isinstance(meta_call, type):  # TypedDict
        construct(cap, Const(meta_call), meta_call, args, kwargs, cont, on_raise)
        return
    if issubclass(kind, BaseException):
        _new_exception(cap, kind, args, kwargs, cont, on_raise)
        return
    if not _made_in_python(kind):
        policy = policy_of(kind)
        guarded(cap, on_raise, lambda: policy.run(cap, kind, args, kwargs, cont))
        return
    watch_class(cap, kind)
    new = mro_lookup(kind, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    if isinstance(new, types.FunctionType):
        call_value(cap, Const(new), [fn, *args], kwargs,
                   lambda made: _init(cap, made, kind, args, kwargs, cont, on_raise),
                   on_raise)  # fmt: skip
        return
    if issubclass(kind, type):
        METHODS[type, "__new__"](cap, [fn, *args], kwargs, lambda made: _init(
            cap, made, kind, args, kwargs, cont, on_raise))  # fmt: skip
        return
    made = new_instance(cap, kind, args)
    _init(cap, made, kind, args, kwargs, cont, on_raise)


def _new_exception(cap: Capture, kind: type[BaseException], args: list[Value],
                   kwargs: dict[str, Value], cont: Cont | None,
                   on_raise: OnRaise) -> None:  # fmt: skip
    if isinstance(mro_lookup(kind, "__new__"), types.FunctionType | staticmethod) or (
            issubclass(kind, OSError) and len(args) > 1) or issubclass(
            kind, UnicodeError):  # fmt: skip
        raise refuse("W107", f"construction of {kind.__name__}", cap.loc())
    watch_class(cap, kind)
    init = mro_lookup(kind, "__init__")
    if issubclass(kind, BaseExceptionGroup) and not isinstance(init, types.FunctionType):
        METHODS[BaseExceptionGroup, "__new__"](cap, [Const(kind), *args], kwargs, cont)
        return
    exc = (UserException if isinstance(init, types.FunctionType) else InstanceValue)(kind)
    exc.attrs["args"] = TupleValue(list(args))
    if isinstance(init, types.FunctionType):
        call_value(cap, Const(init), [exc, *args], kwargs, lambda _: cap.deliver(exc, cont),
                   on_raise)  # fmt: skip
        return
    if kwargs:
        raise refuse("W107", f"keyword arguments of {kind.__name__}", cap.loc())
    cap.deliver(exc, cont)


# classes written in C whose instances the capture can make
_MODELLED: frozenset[object] = frozenset((
    object, dict, list, tuple, collections.OrderedDict, collections.defaultdict, int, float, str,
    bytes, set, frozenset, type,
))  # fmt: skip


def _made_in_python(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9)) and (
        "__dict__" in kind.__dict__ or "__slots__" in kind.__dict__ or kind.__module__ != "builtins"
    ) and not kind.__module__.startswith("torch._C") and (
        not isinstance(made := mro_lookup(kind, "__new__"), types.BuiltinFunctionType)
        or made.__self__ in _MODELLED
    )


def new_instance(cap: Capture, kind: type, args: list[Value]) -> Value:
    """object.__new__(kind), dict.__new__(kind), tuple.__new__(kind, items), ..."""
    if inspect.isabstract(kind):
        try:
            object.__new__(kind)
        except TypeError as error:
            raise raised(TypeError, *error.args) from None
    if issubclass(kind, tuple):
        items = args[0] if args else TupleValue([])
        if not isinstance(items, TupleValue | ListValue):
            raise refuse("W107", f"construction of {kind.__name__}", cap.loc())
        if hasattr(kind, "_fields"):
            return TupleValue(list(items.items), kind)
        return InstanceValue(kind, payload=TupleValue(list(items.items)))
    if issubclass(kind, dict):
        return InstanceValue(kind, payload=DictValue(_builtin_base(kind)))
    if issubclass(kind, list):
        from_type = METHODS.get((list, "__payload__"))
        if from_type is None:
            raise refuse("W107", f"construction of {kind.__name__}", cap.loc())
        out = InstanceValue(kind)
        from_type(cap, [out], {}, None)
        return out
    if issubclass(kind, SIMPLE):
        return new_simple(cap, kind, args)
    if issubclass(kind, SETS):
        return new_set(cap, kind, args)
    if issubclass(kind, torch.Tensor | type | complex):
        raise refuse("W107", f"construction of {kind.__name__}", cap.loc())
    return InstanceValue(kind)


def _builtin_base(kind: type) -> type:
    """The built-in container class that a subclass extends."""
    return next(b for b in kind.__mro__ if b.__module__ in ("builtins", "collections"))


def _init(cap: Capture, made: Value, kind: type, args: list[Value], kwargs: dict[str, Value],
          cont: Cont | None, on_raise: OnRaise) -> None:  # fmt: skip
    if kind not in made.cls().__mro__:
        cap.deliver(made, cont)
        return
    if mro_lookup(kind, "__del__") is not MISSING:
        cap.finalized.append(made)
    init = mro_lookup(made.cls(), "__init__")
    if isinstance(init, types.FunctionType):
        call_value(cap, Const(init), [made, *args], kwargs, lambda _: cap.deliver(made, cont),
                   on_raise)  # fmt: skip
        return
    if init is object.__init__ or issubclass(kind, tuple):
        if (args or kwargs) and mro_lookup(kind, "__new__") is object.__new__:
            raise raised(TypeError, f"{kind.__name__}() takes no arguments")
        cap.deliver(made, cont)
        return
    call_value(cap, Const(init), [made, *args], kwargs, lambda _: cap.deliver(made, cont), on_raise)


def constants(args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Any], dict[str, Any]]:
    """Real arguments, when all are constants. Errors: NotConstant."""
    return [constant(a) for a in args], {k: constant(v) for k, v in kwargs.items()}


def has_tensor(args: list[Value], kwargs: dict[str, Value]) -> bool:
    return any(isinstance(a, TensorValue) for a in (*args, *kwargs.values()))


__all__ = [
    "NotConstant", "call_value", "constants", "construct", "construct_plain", "has_tensor",
    "push_frame",
]  # fmt: skip
