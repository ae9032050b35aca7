"""The attribute protocol on abstract values: get, set, delete, by Python's own rules."""

from __future__ import annotations

import enum
import functools
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchweld.capture.class_state import HEAP_TYPE, UNWATCHED, is_watched, users_hook
from torchweld.capture.class_state import MISSING as MISSING
from torchweld.capture.class_state import mro_lookup as mro_lookup
from torchweld.capture.class_writes import known_attr, show
from torchweld.capture.hooks import module_member
from torchweld.capture.instances import (
    exception_member,
    instance_get,
    instance_set,
    slot_get,
    vars_of,
)
from torchweld.capture.kernels import is_cython
from torchweld.capture.namespaces import written
from torchweld.capture.plain_classes import is_plain, is_typing
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.symbolic import number_value
from torchweld.capture.tables import GETATTR
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    DictValue,
    InstanceValue,
    ListValue,
    PartialValue,
    SetValue,
    TupleValue,
    UserException,
    Value,
)
from torchweld.capture.values.owned import ProxyValue
from torchweld.capture.values.sequences import DequeValue
from torchweld.capture.wrap import IMMUTABLE, cell_of
from torchweld.frame.program import Dispatcher
from torchweld.ir.source import Attr, ClosureCell, InstanceDict, Item, Source

_DESCRIPTORS_OF_C = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)  # fmt: skip
# a method of a class that pybind11 made; torch._C has the classes, types has no name for the kind
INSTANCE_METHOD = type(vars(torch._C._InferenceMode)["__enter__"])
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_READABLE = (*IMMUTABLE, torch.dtype, torch.device, torch.layout, torch.finfo, torch.iinfo,
             torch.memory_format, range, slice, types.CodeType, types.MappingProxyType,
             types.GenericAlias, types.UnionType, property, np.dtype, np.ufunc, re.Pattern,
             re.Match)  # fmt: skip


def watch_class(cap: Capture, kind: type) -> None:
    """Guard that no attribute is assigned of a class that the user or torch made in Python."""
    users = is_watched(kind)
    if users or (kind.__flags__ & HEAP_TYPE and kind.__module__.split(".")[0] == "torch"):
        cap.guard_class(kind)
        if users and id(kind) not in cap.born:
            cap.note_birth(kind, stops_of(cap))


def watch_method(cap: Capture, kind: type, name: str) -> None:
    """Guard that a class whose other attributes may be assigned finds the same under a name."""
    for base in kind.__mro__:
        if not base.__flags__ & HEAP_TYPE:
            return
        own = InstanceDict.make(cap.pin(base))
        if name in base.__dict__:
            cap.guard("is", Item.make(own, name, False), base.__dict__[name])
            return
        cap.guard("lacks_key", own, name)


def get_attr(cap: Capture, obj: Value, name: str, cont: Cont | None = None) -> None:
    """obj.name, delivered to `cont`. Errors: Raised(AttributeError)."""
    cap.names.add(name)
    handler = GETATTR.get(type(obj))
    if handler is not None:
        handler(cap, obj, name, cont)
        return
    builtin_attr(cap, obj, name, cont)


def builtin_attr(cap: Capture, obj: Value, name: str, cont: Cont | None) -> None:
    """Attributes that every object has, and methods of built-in types."""
    kind = obj.cls()
    if name == "__class__":
        cap.deliver(Const(kind), cont)
        return
    raw = mro_lookup(kind, name)
    if raw is MISSING:
        raise raised(AttributeError, f"'{kind.__name__}' object has no attribute '{name}'")
    if isinstance(raw, _DESCRIPTORS_OF_C):
        cap.deliver(_of_c(raw, kind, obj), cont)
    else:
        bind_raw(cap, obj, raw, name, kind, cont)


# ------------------------------------------------------------------- constants
def _of_c(raw: object, kind: type, obj: Value) -> BoundValue:
    first = Const(kind) if isinstance(raw, types.ClassMethodDescriptorType) else obj
    return BoundValue(Const(raw), first)


def _const_attr(cap: Capture, obj: Const, name: str, cont: Cont | None) -> None:
    real = obj.obj
    if isinstance(real, types.ModuleType):
        _module_attr(cap, obj, real, name, cont)
    elif isinstance(real, type):
        class_attr(cap, obj, real, name, cont)
    elif isinstance(real, enum.Enum):
        _enum_attr(cap, obj, real, name, cont)
    elif isinstance(real, types.FunctionType):
        _function_attr(cap, obj, real, name, cont)
    elif isinstance(real, _READABLE) or is_plain(type(real)) or is_typing(real):
        _real_attr(cap, obj, real, name, cont)
    elif isinstance(real, _OPERATORS):
        _operator_attr(cap, obj, real, name, cont)
    else:
        method = mro_lookup(type(real), name)
        if name == "__class__" or isinstance(method, _DESCRIPTORS_OF_C):
            builtin_attr(cap, obj, name, cont)
            return
        if is_cython(method):
            cap.deliver(BoundValue(Const(method), obj), cont)
            return
        if name in ("__name__", "__qualname__", "__module__", "__doc__") and hasattr(real, name):
            cap.deliver(Const(getattr(real, name)), cont)
            return
        if isinstance(real, types.BuiltinFunctionType) and not hasattr(real, name):
            kind = type(real).__name__
            raise raised(AttributeError, f"'{kind}' object has no attribute '{name}'")
        raise refuse("W107", f"attribute {name} of {type(real).__name__}", cap.loc())


def _found(real: object, name: str) -> Any:
    """real.name. Errors: Raised(AttributeError)."""
    try:
        return getattr(real, name)
    except AttributeError as error:
        raise raised(AttributeError, *error.args) from None


def _real_attr(cap: Capture, obj: Const, real: object, name: str, cont: Cont | None) -> None:
    found = _found(real, name)
    if callable(found) and not isinstance(found, type):
        raw = mro_lookup(type(real), name)
        if isinstance(raw, types.MemberDescriptorType):
            cap.deliver(cap.wrap(found, cap.pin(found)), cont)
        else:
            bound = _of_c(raw if raw is not MISSING else found, type(real), obj)
            cap.deliver(Const(found) if isinstance(raw, staticmethod) else bound, cont)
        return
    cap.deliver(from_python(found), cont)


def _operator_attr(cap: Capture, obj: Const, real: Any, name: str, cont: Cont | None) -> None:
    """An overload, a name or a method of an ATen or custom operator."""
    found = _found(real, name)
    raw = mro_lookup(type(real), name)
    if isinstance(raw, types.FunctionType):
        cap.deliver(BoundValue(Const(raw), obj), cont)
    elif isinstance(found, _OPERATORS) or _is_text(found):
        cap.deliver(from_python(found), cont)
    else:
        raise refuse("W107", f"attribute {name} of {type(real).__name__}", cap.loc())


def _is_text(x: object) -> bool:
    return isinstance(x, str) or (isinstance(x, list) and all(isinstance(i, str) for i in x))


def from_python(obj: object) -> Value:
    """A fresh Python object, made during capture out of constants, as a Value."""
    from_table = {list: _fresh_list, tuple: _fresh_tuple, torch.Size: _fresh_tuple,
                  dict: _fresh_dict, set: _fresh_set, frozenset: _fresh_set}  # fmt: skip
    maker: Callable[[Any], Value] | None = from_table.get(type(obj))  # type: ignore[call-overload]
    if maker is None and isinstance(obj, tuple) and hasattr(obj, "_fields"):
        maker = _fresh_tuple
    if maker is None:
        return number_value(obj) if type(obj) in _SYMBOLIC else Const(obj)
    return maker(obj)


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _fresh_list(obj: Any) -> Value:
    return ListValue([from_python(i) for i in obj])


def _fresh_tuple(obj: Any) -> Value:
    return TupleValue([from_python(i) for i in obj], type(obj))


def _fresh_dict(obj: Any) -> Value:
    out = DictValue(type(obj))
    for key, item in obj.items():
        out.items[key] = from_python(item)
        out.keys[key] = Const(key)
    return out


def _fresh_set(obj: Any) -> Value:
    out = SetValue(type(obj))
    for item in obj:
        out.items[item] = Const(item)
    out.twin, out.past = obj, None
    return out


def _module_attr(cap: Capture, obj: Const, real: types.ModuleType, name: str,
                 cont: Cont | None) -> None:  # fmt: skip
    value = written(cap, vars(real), name)
    if value is not None:
        cap.deliver(value, cont)
        return
    try:
        found = getattr(real, name)
    except AttributeError as error:
        own = cap.pin(vars(real), real.__name__)
        for key in (name, "__getattr__"):
            if key not in vars(real):
                cap.guard("lacks_key", own, key)
        raise raised(AttributeError, *error.args) from None
    installed = real.__name__.split(".")[0] in UNWATCHED and not isinstance(found, torch.Tensor)
    if name not in vars(real):
        value = (_computed_value(cap, real, found, name) if installed
                 else cap.wrap(found, Attr.make(cap.pin(real, real.__name__), name)))  # fmt: skip
        cap.deliver(value, cont)
        return
    source = Item.make(cap.pin(vars(real), real.__name__), name, False)
    if installed and _is_opaque(found):
        cap.guard("is", source, found)
        cap.deliver(Const(found, source), cont)
        return
    cap.deliver(cap.wrap(found, source), cont)


def _is_opaque(found: object) -> bool:
    """Whether an object of torch or of the standard library is only called, never looked into."""
    return callable(found) and not isinstance(found, type | types.FunctionType | torch.nn.Module)


def _computed_value(cap: Capture, real: types.ModuleType, found: object, name: str) -> Value:
    """What a module of torch or of the standard library computes when it is asked."""
    if isinstance(found, IMMUTABLE):
        if getattr(mro_lookup(type(real), name), "getter", None) not in cap.modes_set:
            cap.guard("state", None, (_reader(real, name), found))
        return Const(found)
    return from_python(found) if callable(found) else cap.wrap(found, cap.pin(found, name))


@functools.cache
def _reader(module: types.ModuleType, name: str) -> Callable[[], object]:
    return functools.partial(getattr, module, name)


def class_attr(cap: Capture, obj: Value, kind: type, name: str, cont: Cont | None) -> None:
    """Attribute of a class: the metaclass's data descriptors, the mro, the metaclass's rest."""
    if name in ("__dict__", "__mro__", "__name__", "__qualname__", "__module__", "__bases__",
                "__doc__", "__class__", "__annotations__", "__base__", "__flags__"):  # fmt: skip
        show(cap, kind, name)
        cap.deliver(from_python(_found(kind, name)), cont)
        return
    if is_watched(type(kind)) and _meta_first(cap, obj, type(kind), name, cont):
        return
    raw = mro_lookup(kind, name)
    watch_class(cap, kind)
    known = known_attr(cap, kind.__mro__, name)
    if known is not None:
        cap.deliver(known, cont)
        return
    if raw is MISSING:
        _meta_attr(cap, obj, kind, name, cont)
        return
    if isinstance(raw, staticmethod):
        cap.deliver(class_value(cap, raw.__func__, kind, name), cont)
    elif isinstance(raw, classmethod | types.ClassMethodDescriptorType):
        cap.deliver(BoundValue(Const(getattr(raw, "__func__", raw)), obj), cont)
    elif isinstance(kind, enum.EnumMeta):
        cap.deliver(from_python(getattr(kind, name)), cont)
    elif _user_get(raw):
        user_get = mro_lookup(type(raw), "__get__")
        cap.call(Const(user_get), [class_value(cap, raw, kind, name), Const(None), obj], {},
                   cont)  # fmt: skip
    else:
        cap.deliver(class_value(cap, raw, kind, name), cont)


def _meta_first(cap: Capture, obj: Value, meta: type, name: str, cont: Cont | None) -> bool:
    """Whether a metaclass of the user's answers before the class: by `__getattribute__`, or a
    property."""
    watch_class(cap, meta)
    hook, raw = mro_lookup(meta, "__getattribute__"), mro_lookup(meta, name)
    if isinstance(hook, types.FunctionType):
        cap.call(Const(hook), [obj, Const(name)], {}, cont)
    elif isinstance(raw, property) and raw.fget is not None:
        cap.call(Const(raw.fget), [obj], {}, cont)
    else:
        return False
    return True


def _meta_attr(cap: Capture, obj: Value, kind: type, name: str, cont: Cont | None) -> None:
    """What a class has of its metaclass, or what that computes."""
    meta = mro_lookup(type(kind), name)
    watch_class(cap, type(kind))
    if isinstance(meta, property) and meta.fget is not None:
        cap.call(Const(meta.fget), [obj], {}, cont)
        return
    if meta is not MISSING:
        cap.deliver(BoundValue(Const(meta), obj), cont)
        return
    hook = mro_lookup(type(kind), "__getattr__")
    if isinstance(hook, types.FunctionType) and is_watched(type(kind)):
        cap.call(Const(hook), [obj, Const(name)], {}, cont)
        return
    raise raised(AttributeError, f"type object '{kind.__name__}' has no attribute '{name}'")


def _user_get(raw: object) -> bool:
    """Whether a class attribute is a descriptor written in Python."""
    if isinstance(raw, types.FunctionType | property | functools.cached_property):
        return False
    return isinstance(mro_lookup(type(raw), "__get__"), types.FunctionType)


def class_value(cap: Capture, raw: object, kind: type, name: str) -> Value:
    """A class attribute's value. Immutable ones rest on the class guard alone."""
    if isinstance(raw, (*IMMUTABLE, types.FunctionType, type, property, torch.dtype, torch.device,
                        *_DESCRIPTORS_OF_C, types.GetSetDescriptorType,
                        types.MemberDescriptorType, enum.Enum)):  # fmt: skip
        return Const(raw)
    if hasattr(type(raw), "__get__"):  # getattr would give something else
        return cap.wrap(raw, cap.pin(raw))
    return cap.wrap(raw, Attr.make(cap.pin(owner_of(kind, name)), name))


def owner_of(kind: type, name: str) -> type:
    """The class of the mro that defines `name`."""
    return next(base for base in kind.__mro__ if name in base.__dict__)


def _enum_attr(cap: Capture, obj: Const, real: enum.Enum, name: str, cont: Cont | None) -> None:
    watch_class(cap, type(real))
    raw = mro_lookup(type(real), name)
    if isinstance(raw, types.FunctionType):
        cap.deliver(BoundValue(Const(raw), obj), cont)
    elif isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
        cap.call(Const(raw.fget), [obj], {}, cont)
    elif isinstance(raw, classmethod):
        cap.deliver(BoundValue(Const(raw.__func__), Const(type(real))), cont)
    elif isinstance(raw, staticmethod):
        cap.deliver(Const(raw.__func__), cont)
    else:
        _real_attr(cap, obj, real, name, cont)


# the last one from Python 3.12 on
_FUNCTION_PARTS = ("__defaults__", "__kwdefaults__", "__dict__", "__annotations__", "__closure__",
                   "__globals__", "__type_params__")  # fmt: skip


def _function_attr(cap: Capture, obj: Const, real: types.FunctionType, name: str,
                   cont: Cont | None) -> None:  # fmt: skip
    if name in ("__name__", "__qualname__", "__module__", "__doc__", "__code__"):
        cap.deliver(Const(getattr(real, name)), cont)
        return
    if name == "__get__":
        cap.deliver(BoundValue(Const(types.FunctionType.__get__), obj), cont)
        return
    source = obj.source or cap.pin(real)
    if name in real.__dict__:
        own = Item.make(InstanceDict.make(source), name, False)
        cap.deliver(cap.wrap(real.__dict__[name], own), cont)
        return
    if name in _FUNCTION_PARTS and hasattr(real, name):
        cap.deliver(cap.wrap(getattr(real, name), Attr.make(source, name)), cont)
        return
    if not hasattr(real, name):
        cap.guard("lacks_key", InstanceDict.make(source), name)
        raise raised(AttributeError, f"'function' object has no attribute '{name}'")
    raise refuse("W107", f"attribute {name} of a function", cap.loc())


def closure_of(cap: Capture, fn: types.FunctionType, source: Source | None) -> dict[str, Any]:
    """name -> CellValue for the closure of a real function."""
    names = fn.__code__.co_freevars
    base = source or cap.pin(fn)
    return {
        name: cell_of(
            cap,
            cell,
            Item.make(Attr.make(base, "__closure__"), i, True),
            ClosureCell.make(base, i, name),
        )
        for i, (name, cell) in enumerate(zip(names, fn.__closure__ or (), strict=True))
    }


# ------------------------------------------------------------------- instances
def _instance_attr(cap: Capture, obj: InstanceValue, name: str, cont: Cont | None) -> None:
    hook = users_hook(obj.klass, "__getattribute__")
    if hook is None:
        generic_attr(cap, obj, name, cont, missing_attr)
        return
    watch_class(cap, obj.klass)
    on_raise = None if user_getattr(obj) is None else _retry_with_getattr(cap, obj, name, cont)
    cap.call(Const(hook), [obj, Const(name)], {}, cont, on_raise)


def generic_attr(cap: Capture, obj: InstanceValue, name: str, cont: Cont | None,
                 missing: Callable[..., None]) -> None:  # fmt: skip
    """object.__getattribute__; `missing` if there is no such attribute."""
    raw = mro_lookup(obj.klass, name)
    if raw is not MISSING and is_data_descriptor(raw):
        watch_class(cap, obj.klass)
        on_raise = None
        if isinstance(raw, property) and user_getattr(obj) is not None and missing is missing_attr:
            on_raise = _retry_with_getattr(cap, obj, name, cont)
        bind_raw(cap, obj, raw, name, obj.klass, cont, on_raise)
        return
    own = instance_get(cap, obj, name)
    if own is not None:
        watch_class(cap, obj.klass)  # a property of this name would come first
        cap.deliver(own, cont)
        return
    known = known_attr(cap, obj.klass.__mro__, name, obj)
    if known is not None:
        watch_class(cap, obj.klass)
        cap.deliver(known, cont)
        return
    if raw is not MISSING:
        watch_class(cap, obj.klass)
        bind_raw(cap, obj, raw, name, obj.klass, cont)
        return
    missing(cap, obj, name, cont)


def _retry_with_getattr(cap: Capture, obj: InstanceValue, name: str, cont: Cont | None) -> Any:
    def on_raise(exc: Value) -> bool:
        if not issubclass(exc.cls(), AttributeError):
            return False
        missing_attr(cap, obj, name, cont)
        return True

    return on_raise


def user_getattr(obj: InstanceValue) -> Any:
    return users_hook(obj.klass, "__getattr__")


def missing_attr(cap: Capture, obj: InstanceValue, name: str, cont: Cont | None) -> None:
    """`__getattr__` of the class, nn.Module's natively; else AttributeError."""
    watch_class(cap, obj.klass)
    raw = user_getattr(obj)
    if raw is torch.nn.Module.__getattr__:
        found = module_member(cap, obj, name)
        if found is not None:
            cap.deliver(found, cont)
            return
    elif raw is not None:
        cap.call(Const(raw), [obj, Const(name)], {}, cont)
        return
    no_attr(cap, obj, name, cont)


def no_attr(cap: Capture, obj: InstanceValue, name: str, cont: Cont | None) -> None:
    """The AttributeError of an object that has no such attribute."""
    watch_class(cap, obj.klass)
    own = user_getattr(obj) in (None, torch.nn.Module.__getattr__)
    if own and name not in obj.attrs and obj.real is not None and hasattr(obj.real, name):
        raise refuse("W107", f"attribute {name} of a {obj.klass.__name__}", cap.loc())
    raise raised(AttributeError, f"'{obj.klass.__name__}' object has no attribute '{name}'")


def is_data_descriptor(raw: object) -> bool:
    kind = type(raw)
    return any(mro_lookup(kind, n) is not MISSING for n in ("__set__", "__delete__"))


def bind_raw(cap: Capture, obj: Value, raw: Any, name: str, kind: type, cont: Cont | None,
              on_raise: Any = None) -> None:  # fmt: skip
    """Apply a class attribute's descriptor protocol to an instance."""
    if isinstance(raw, Dispatcher):
        raw = raw.fn
    if isinstance(raw, types.FunctionType):
        cap.deliver(BoundValue(Const(raw), obj), cont)
    elif isinstance(raw, functools._lru_cache_wrapper):
        cap.deliver(BoundValue(class_value(cap, raw, kind, name), obj), cont)
    elif isinstance(raw, staticmethod):
        cap.deliver(class_value(cap, raw.__func__, kind, name), cont)
    elif isinstance(raw, classmethod):
        cap.deliver(BoundValue(Const(raw.__func__), Const(kind)), cont)
    elif isinstance(raw, property):
        if raw.fget is None:
            owner = owner_of(kind, name).__qualname__
            raise raised(AttributeError, f"property '{name}' of '{owner}' object has no getter")
        cap.call(Const(raw.fget), [obj], {}, cont, on_raise)
    elif isinstance(raw, functools.cached_property):
        _cached_property(cap, obj, raw, name, cont)
    elif isinstance(raw, functools.partialmethod):
        _partial_method(cap, obj, raw, cont)
    elif isinstance(raw, types.MemberDescriptorType):
        if kind is types.TracebackType:
            raise refuse("W122", "the frames of an exception", cap.loc())
        _slot_attr(cap, obj, raw, name, cont)
    elif isinstance(raw, _DESCRIPTORS_OF_C) and not isinstance(raw, types.BuiltinFunctionType):
        cap.deliver(_of_c(raw, kind, obj), cont)
    elif type(raw) is INSTANCE_METHOD:
        cap.deliver(BoundValue(Const(raw.__func__), obj), cont)
    elif isinstance(raw, types.GetSetDescriptorType):
        _getset(cap, obj, raw, name, cont)
    elif _user_get(raw):
        user_get = mro_lookup(type(raw), "__get__")
        cap.call(Const(user_get), [class_value(cap, raw, kind, name), obj, Const(kind)], {},
                   cont)  # fmt: skip
    else:
        cap.deliver(class_value(cap, raw, kind, name), cont)


def _partial_method(cap: Capture, obj: Value, raw: functools.partialmethod[Any],
                    cont: Cont | None) -> None:  # fmt: skip
    if not isinstance(raw.func, types.FunctionType):
        raise refuse("W107", "partialmethod of something that is no function", cap.loc())
    base = cap.pin(raw)
    args = cap.wrap(raw.args, Attr.make(base, "args"))
    assert isinstance(args, TupleValue)
    named = {k: cap.wrap(v, Item.make(Attr.make(base, "keywords"), k, False))
             for k, v in raw.keywords.items()}  # fmt: skip
    cap.deliver(PartialValue(Const(raw.func), [obj, *cap.force_items(args.items)], named,
                             functools.partial), cont)  # fmt: skip


def _cached_property(cap: Capture, obj: Value, raw: functools.cached_property[Any], name: str,
                     cont: Cont | None) -> None:  # fmt: skip
    def keep(value: Value) -> None:
        if not isinstance(obj, InstanceValue):
            raise refuse("W106", f"cached_property of {obj.cls().__name__}", cap.loc())
        instance_set(cap, obj, name, value)
        cap.deliver(value, cont)

    cap.call(Const(raw.func), [obj], {}, keep)


def _slot_attr(cap: Capture, obj: Value, raw: Any, name: str, cont: Cont | None) -> None:
    if isinstance(obj, DictValue) and name == "default_factory":
        cap.deliver(obj.factory, cont)
        return
    if not isinstance(obj, InstanceValue):
        raise refuse("W107", f"attribute {name} of {obj.cls().__name__}", cap.loc())
    if issubclass(obj.klass, BaseException):
        exception_member(cap, obj, name, cont)
        return
    found = slot_get(cap, obj, raw, name)
    if found is None:
        missing_attr(cap, obj, name, cont)
        return
    cap.deliver(found, cont)


def _getset(cap: Capture, obj: Value, raw: Any, name: str, cont: Cont | None) -> None:
    if name == "__dict__" and isinstance(obj, InstanceValue):
        cap.deliver(vars_of(cap, obj), cont)
        return
    if name == "__class__":
        cap.deliver(Const(obj.cls()), cont)
        return
    if isinstance(obj, DequeValue) and name == "maxlen":
        cap.deliver(Const(obj.maxlen), cont)
        return
    if isinstance(obj, InstanceValue) and issubclass(obj.klass, BaseException):
        exception_member(cap, obj, name, cont)
        return
    if isinstance(obj, InstanceValue) and isinstance(obj.payload, Const):
        obj = obj.payload
    if isinstance(obj, Const):
        cap.deliver(from_python(getattr(obj.obj, name)), cont)
        return
    raise refuse("W107", f"attribute {name} of {obj.cls().__name__}", cap.loc())


for _family, _handler in ((Const, _const_attr), (InstanceValue, _instance_attr),
                          (ProxyValue, builtin_attr), (UserException, _instance_attr)):  # fmt: skip
    GETATTR.add(_family, _handler)
