"""Attribute assignment and deletion on abstract values."""

from __future__ import annotations

import io
import sys
import threading
import types
from collections import OrderedDict
from typing import Any

import torch

from torchweld.capture.attrs import (
    MISSING,
    class_value,
    is_data_descriptor,
    mro_lookup,
    watch_class,
)
from torchweld.capture.class_state import is_users, users_hook
from torchweld.capture.class_writes import set_class_attr
from torchweld.capture.grads import set_grad
from torchweld.capture.instances import instance_get, instance_replaced, instance_set, slot_get
from torchweld.capture.items import iterable, set_item
from torchweld.capture.modes import memory
from torchweld.capture.namespaces import of_the_user, opened
from torchweld.capture.private import note, real_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Stuck, raised, refuse
from torchweld.capture.values.base import (
    NONE,
    Const,
    DictValue,
    FunctionValue,
    InstanceValue,
    ListValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.wrap import read_key
from torchweld.ir.source import Item


def set_attr(cap: Capture, obj: Value, name: str, value: Value, cont: Cont | None = None) -> None:
    """obj.name = value; `cont` gets None when done (nothing is pushed without it)."""
    cap.names.add(name)
    done = cont or (lambda _: None)
    if isinstance(obj, InstanceValue):
        hook = users_hook(obj.klass, "__setattr__")
        if hook is torch.nn.Module.__setattr__ and module_set(cap, obj, name, value):
            done(Const(None))
            return
        if hook is not None:
            watch_class(cap, obj.klass)
            cap.call(Const(hook), [obj, Const(name), value], {}, done)
            return
        generic_set(cap, obj, name, value, done)
        return
    if isinstance(obj, FunctionValue):
        _function_set(cap, obj, name, value)
        done(Const(None))
        return
    if isinstance(obj, DictValue) and obj.kind is OrderedDict and obj.real is None:
        obj.attrs[name] = value
        cap.mark(obj)
        done(Const(None))
        return
    if isinstance(obj, TensorValue) and name == "grad":
        set_grad(cap, obj, value)
        done(Const(None))
        return
    if isinstance(obj, TensorValue) and name == "data" and _same_data(obj, value):
        done(Const(None))  # the end of `x.data -= y`
        return
    if isinstance(obj, TensorValue):
        _put_on_tensor(cap, obj, name, value)
        done(Const(None))
        return
    if isinstance(obj, Const) and isinstance(obj.obj, types.ModuleType) and (
            _module_set(cap, obj, name, value, done)):  # fmt: skip
        return
    if isinstance(obj, Const) and isinstance(obj.obj, type) and cap.private.has(obj.obj):
        _set_private(cap, obj, name, value, done)
        return
    if isinstance(obj, Const) and isinstance(obj.obj, type):
        hook = mro_lookup(type(obj.obj), "__setattr__")
        if isinstance(hook, types.FunctionType) and is_users(obj.obj):
            watch_class(cap, type(obj.obj))
            cap.call(Const(hook), [obj, Const(name), value], {}, done)
            return
        if set_class_attr(cap, obj.obj, name, value):
            done(Const(None))
            return
    why = f"assignment to attribute {name} of {obj.cls().__name__}"
    looked = _first_look(cap, obj)
    if looked:
        raise Stuck("W106", why, cap.loc(), looked)
    raise refuse("W106", why, cap.loc())


def _put_on_tensor(cap: Capture, obj: TensorValue, name: str, value: Value) -> None:
    """An attribute of the user's, on a tensor that has it from then on."""
    if mro_lookup(obj.kind, name) is not MISSING or cap.pure or cap.builder.bodies:
        raise refuse("W106", f"assignment to Tensor.{name}", cap.loc())
    cap.unguarded += 1
    cap.tensor_attrs[(id(obj), name)] = obj, value


def _module_set(cap: Capture, obj: Const, name: str, value: Value, done: Cont) -> bool:
    """Whether an attribute of a module was set: one for which its class has a descriptor, as that
    of torch.backends.cudnn does, a name in a module of the user's, or sys.stdout."""
    kind = type(obj.obj)
    raw = mro_lookup(kind, name)
    user_set = mro_lookup(type(raw), "__set__")
    if kind is types.ModuleType and raw is MISSING and _is_written(obj.obj, name):
        write_global(cap, vars(obj.obj), name, value)
        done(Const(None))
        return True
    if not isinstance(user_set, types.FunctionType):
        return False
    found = class_value(cap, raw, kind, name)
    cap.call(Const(user_set), [found, obj, value], {}, lambda _: done(Const(None)))
    return True


def _is_written(module: object, name: str) -> bool:
    """Whether nothing but the attribute tells of what is assigned to it."""
    own = of_the_user(str(getattr(module, "__file__", "") or ""))
    return own or (module is sys and name == "stdout")


def _names_its_file(fn: Value, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a deferred effect is a print to a file of its own; of texts that show tensors the
    function and its options are arguments."""
    options = args[-1] if args and isinstance(args[-1], DictValue) else None
    file = options.items.get("file") if options is not None else kwargs.get("file")
    if isinstance(fn, Const) and fn.obj in (io.TextIOWrapper.write, io.StringIO.write):
        return True
    prints = (isinstance(fn, Const) and fn.obj is print) or (
        options is not None and isinstance(args[0], Const) and args[0].obj is print)
    return prints and isinstance(file, Value) and not (isinstance(file, Const) and file.obj is None)


def write_global(cap: Capture, table: dict[str, Any], name: str, value: Value) -> None:
    """Put a value into the namespace of a module."""
    if cap.pure or cap.builder.bodies:
        raise refuse("W106", "a module is changed by a function that may not run now", cap.loc())
    if table is vars(sys) and not all(_names_its_file(*effect) for effect in cap.effects):
        raise refuse("W106", "sys.stdout is changed behind what is printed", cap.loc())
    box = opened(cap, table)
    own = Item.make(cap.pin(table), name, False)
    if box is not None:
        set_item(cap, box, Const(name), value)
    elif value.source is own and name in table:
        cap.globals_written.pop((id(table), name), None)
    else:
        cap.globals_written[(id(table), name)] = (table, value)


def _same_data(x: TensorValue, value: Value) -> bool:
    """Whether a tensor has this memory already, in the same layout."""
    if not isinstance(value, TensorValue) or memory(x) != memory(value):
        return False
    a, b = x.fake, value.fake
    return (a.dtype, a.shape, a.stride(), a.storage_offset()) == (
        b.dtype, b.shape, b.stride(), b.storage_offset())  # fmt: skip


def _is_text(name: str, value: Value) -> bool:
    """Whether this is what Python says of a class."""
    known = name in ("__doc__", "__name__", "__qualname__", "__module__")
    return known and isinstance(value, Const) and isinstance(value.obj, str)


def _set_private(cap: Capture, obj: Const, name: str, value: Value, done: Cont) -> None:
    """An attribute of a class that the frame has made."""
    assert isinstance(obj.obj, type)
    meta = type(obj.obj)
    hook, raw = mro_lookup(meta, "__setattr__"), mro_lookup(meta, name)
    if isinstance(hook, types.FunctionType):
        cap.call(Const(hook), [obj, Const(name), value], {}, done)
    elif isinstance(raw, property) and raw.fset is not None:
        cap.call(Const(raw.fset), [obj, value], {}, done)
    elif raw is not MISSING and is_data_descriptor(raw) and not _is_text(name, value):
        raise refuse("W106", f"assignment to attribute {name} of a class", cap.loc())
    else:
        set_private_attr(cap, obj, name, value)
        done(Const(None))


def set_private_attr(cap: Capture, obj: Const, name: str, value: Value) -> None:
    """type.__setattr__. Errors: GraphBreak for a class from outside."""
    if not isinstance(obj.obj, type) or not cap.private.has(obj.obj):
        raise refuse("W106", f"assignment to attribute {name} of a class", cap.loc())
    type.__setattr__(obj.obj, name, real_of(cap, value))
    note(cap, obj.obj, type.__setattr__, [Const(name), value], {})


def _first_look(cap: Capture, obj: Value) -> int:
    """Before which instruction nothing was known of a class yet; 0 if nothing is known now.

    What the capture relies on about it does not hold any more when one of its attributes is set.
    """
    if not isinstance(obj, Const) or not isinstance(obj.obj, type):
        return 0
    found = [at for known, at in cap.born.values()
             if isinstance(known, type) and obj.obj in known.__mro__]  # fmt: skip
    return min(found, default=0)


def _function_set(cap: Capture, obj: FunctionValue, name: str, value: Value) -> None:
    """An attribute of a function made in the frame."""
    cap.unguarded += 1
    if name in ("__name__", "__qualname__"):
        if not (isinstance(value, Const) and isinstance(value.obj, str)):
            raise raised(TypeError, f"{name} must be set to a string object")
        setattr(obj, name.strip("_"), value.obj)
    elif name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
        raise refuse("W106", f"assignment to {name} of a function", cap.loc())
    else:
        obj.attrs[name] = value


def _exception_set(cap: Capture, exc: InstanceValue, name: str, value: Value) -> None:
    """What an exception has of its own, which is checked when it is assigned."""
    none = isinstance(value, Const) and value.obj is None
    if name == "args":
        if not iterable(cap, value):
            raise raised(TypeError, f"'{value.cls().__name__}' object is not iterable")
        if not isinstance(value, ListValue | TupleValue):
            raise refuse("W106", f"args of an exception from a {value.cls().__name__}", cap.loc())
        value = TupleValue(list(cap.force_items(value.items)))
    elif name in ("__cause__", "__context__"):
        if not none and not issubclass(value.cls(), BaseException):
            what = name.strip("_")
            raise raised(TypeError, f"exception {what} must be None or derive from BaseException")
    elif name == "__traceback__" and not none and value.cls() is not types.TracebackType:
        raise raised(TypeError, "__traceback__ must be a traceback or None")
    instance_set(cap, exc, name, value)
    if name == "__cause__":
        instance_set(cap, exc, "__suppress_context__", Const(True))


def generic_set(cap: Capture, obj: InstanceValue, name: str, value: Value, done: Cont) -> None:
    """object.__setattr__."""
    raw = mro_lookup(obj.klass, name)
    watch_class(cap, obj.klass)
    if isinstance(raw, property):
        if raw.fset is None:
            raise raised(AttributeError, f"property '{name}' of '{obj.klass.__qualname__}' "
                                         "object has no setter")  # fmt: skip
        cap.call(Const(raw.fset), [obj, value], {}, lambda _: done(Const(None)))
        return
    if isinstance(raw, types.MemberDescriptorType):
        instance_set(cap, obj, raw.__name__, value)
    elif raw is not MISSING and is_data_descriptor(raw):
        user_set = mro_lookup(type(raw), "__set__")
        if not isinstance(user_set, types.FunctionType):
            if issubclass(obj.klass, BaseException):
                _exception_set(cap, obj, name, value)
                done(Const(None))
                return
            raise refuse("W106", f"assignment to attribute {name}", cap.loc())
        cap.call(Const(user_set), [class_value(cap, raw, obj.klass, name), obj, value], {},
                   lambda _: done(Const(None)))  # fmt: skip
        return
    else:
        if not obj.klass.__dictoffset__ and not issubclass(obj.klass, threading.local):
            raise raised(AttributeError, _lacks(obj, name))
        instance_replaced(cap, obj, name)
        instance_set(cap, obj, name, value)
    done(Const(None))


def _lacks(obj: InstanceValue, name: str) -> str:
    return f"'{obj.klass.__name__}' object has no attribute '{name}'"


def module_set(cap: Capture, obj: InstanceValue, name: str, value: Value) -> bool:
    """nn.Module.__setattr__ for plain values and registered buffers; False: run the real one."""
    if isinstance(value, TensorValue) and issubclass(value.kind, torch.nn.Parameter):
        return False
    if issubclass(value.cls(), torch.nn.Module):
        return False
    for table in ("_parameters", "_buffers", "_modules"):
        holder = instance_get(cap, obj, table)
        if isinstance(holder, DictValue) and read_key(cap, holder, name) is not None:
            return False
        if isinstance(holder, DictValue) and name in holder.items:
            return False
    raw = mro_lookup(obj.klass, name)
    if raw is not MISSING and is_data_descriptor(raw):
        generic_set(cap, obj, name, value, lambda _: None)
        return True
    instance_replaced(cap, obj, name)
    instance_set(cap, obj, name, value)
    return True


def del_attr(cap: Capture, obj: Value, name: str, cont: Cont | None = None) -> None:
    """del obj.name; `cont` gets something when done (nothing is pushed without it)."""
    cap.names.add(name)
    done = cont or (lambda _: None)
    if isinstance(obj, TensorValue) and name == "grad":
        set_grad(cap, obj, NONE)
        done(NONE)
        return
    if isinstance(obj, Const) and isinstance(obj.obj, type) and (
            set_class_attr(cap, obj.obj, name, None)):  # fmt: skip
        done(NONE)
        return
    if not isinstance(obj, InstanceValue):
        raise refuse("W106", f"del of attribute {name} of {obj.cls().__name__}", cap.loc())
    hook = users_hook(obj.klass, "__delattr__")
    if hook is not None:
        watch_class(cap, obj.klass)
        cap.call(Const(hook), [obj, Const(name)], {}, done)
        return
    generic_del(cap, obj, name, done)


def generic_del(cap: Capture, obj: InstanceValue, name: str, done: Cont) -> None:
    """object.__delattr__."""
    raw = mro_lookup(obj.klass, name)
    watch_class(cap, obj.klass)
    if isinstance(raw, property):
        if raw.fdel is None:
            raise raised(AttributeError, f"property '{name}' of '{obj.klass.__qualname__}' "
                                         "object has no deleter")  # fmt: skip
        cap.call(Const(raw.fdel), [obj], {}, lambda _: done(Const(None)))
        return
    if isinstance(raw, types.MemberDescriptorType):
        if slot_get(cap, obj, raw, name) is None:
            raise raised(AttributeError, name)
        instance_set(cap, obj, raw.__name__, None)
    elif raw is not MISSING and is_data_descriptor(raw):
        user_delete = mro_lookup(type(raw), "__delete__")
        if not isinstance(user_delete, types.FunctionType):
            raise refuse("W106", f"del of attribute {name}", cap.loc())
        cap.call(Const(user_delete), [class_value(cap, raw, obj.klass, name), obj], {},
                 lambda _: done(Const(None)))  # fmt: skip
        return
    else:
        if instance_get(cap, obj, name) is None:
            raise raised(AttributeError, _lacks(obj, name))
        instance_set(cap, obj, name, None)
    done(Const(None))
