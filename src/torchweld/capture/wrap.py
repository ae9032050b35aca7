"""Object and Source -> Value, by a table from type to wrapper."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import operator
import re
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from torchweld.base.registry import Registry
from torchweld.capture.argument_kinds import oddity
from torchweld.capture.identity_keys import read_under_tensor, weak_key
from torchweld.capture.kernels import CYTHON, is_kernel
from torchweld.capture.namespaces import is_globals, open_globals
from torchweld.capture.open_numbers import keep_closed
from torchweld.capture.originals import watch_original
from torchweld.capture.plain_classes import guard_context, is_plain, is_typing, wrap_plain
from torchweld.capture.predicates import (
    Equals,
    LikeGenerator,
    SameBase,
    SameElements,
    is_default,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.subclasses import (
    SETS,
    SIMPLE,
    base_of,
    base_value,
    given_simple,
)
from torchweld.capture.symbolic import is_varying
from torchweld.capture.user_keys import FieldsKey, UserKey, hashes_by_fields, user_key
from torchweld.capture.values.base import (
    ArrayValue,
    BoundValue,
    CellValue,
    Const,
    DictValue,
    IdKey,
    InstanceValue,
    Lazy,
    ListValue,
    Loose,
    Mutable,
    PartialValue,
    SetValue,
    SliceValue,
    Slot,
    TensorValue,
    TupleValue,
    UserException,
    Value,
    hash_key,
)
from torchweld.capture.values.sequences import DequeValue, GrowingList, UnreadTuple
from torchweld.frame.program import tensor_codes
from torchweld.ir.source import (
    Applied,
    Attr,
    CellContents,
    InstanceDict,
    Item,
    Source,
    is_passed,
)

Wrapper = Callable[[Capture, Any, Source], Value]
WRAPPERS: Registry[type, Wrapper] = Registry("wrappers by exact type")

IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented),
)  # fmt: skip
IDENTITY = (
    torch.dtype, torch.layout, torch.memory_format, types.FunctionType, types.BuiltinFunctionType,
    types.ModuleType, type, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.CodeType, types.GetSetDescriptorType, property, staticmethod,
    classmethod, types.GenericAlias, types.UnionType,
)  # fmt: skip


def wrap(cap: Capture, obj: object, source: Source) -> Value:
    """The Value of an object from outside. One object gives one Value, whatever its source."""
    kind = type(obj)
    if kind is str and is_passed(source):
        return passed_text(cap, obj, source)
    if kind in _BY_VALUE:
        cap.guard("equal", source, obj)
        return Const(obj, source)
    known = cap.objects.get(id(obj))
    if known is not None:
        if known.source is not source:
            cap.guard("same", source, known.source)
        return known
    wrapper = WRAPPERS.get(kind) or _by_base(kind)
    value = wrapper(cap, obj, source)
    cap.objects[id(obj)] = value
    cap.kept.append(obj)
    return value


def passed_text(cap: Capture, obj: object, source: Source) -> Value:
    """A string that is guarded when the frame looks at it."""
    cap.guard("type", source, str)
    return Loose(obj, cap.guard, source, "equal")


_BY_VALUE = frozenset(IMMUTABLE)
_PYBIND = type(torch._C._InferenceMode)


def _is_native_enum(kind: type) -> bool:
    """Whether pybind11 made this class for an enum."""
    return type(kind) is _PYBIND and "__members__" in kind.__dict__


def _by_base(kind: type) -> Wrapper:
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _tuple
    for base, wrapper in _BASES:
        if issubclass(kind, base):
            return wrapper
    if is_plain(kind):
        return wrap_plain
    typed = kind.__module__ == "typing"
    if _is_native_enum(kind) or kind.__name__ == CYTHON or typed or is_kernel(kind):
        return by_identity
    if kind.__flags__ & (1 << 9) and hasattr(kind, "__dictoffset__"):  # a class made in Python
        return _instance
    return by_identity


def by_identity(cap: Capture, obj: object, source: Source) -> Value:
    cap.guard("is", source, obj)
    return Const(obj, source)


def _equal(cap: Capture, obj: object, source: Source) -> Value:
    cap.guard("predicate", source, Equals(obj))
    return Const(obj, source)


def _slice(cap: Capture, obj: slice, source: Source) -> Value:
    """A slice of numbers by its parts, which may vary."""
    parts = {n: getattr(obj, n) for n in ("start", "stop", "step")}
    if not all(type(x) in (int, types.NoneType) for x in parts.values()):
        return _equal(cap, obj, source)
    cap.guard("type", source, slice)
    a, b, c = (cap.wrap(x, Attr.make(source, n)) for n, x in parts.items())
    varies = any(map(is_varying, (a, b, c)))
    return SliceValue((a, b, c), source) if varies else Const(obj, source)


def _tensor(cap: Capture, obj: torch.Tensor, source: Source) -> Value:
    odd = oddity(obj)
    if odd is not None:
        raise refuse("W112", f"{source.text()} {odd}", cap.loc())
    codes, form = tensor_codes(obj), cap.sizes.form_of(obj, source)
    if form is not None:
        codes = (*codes[:6], *form.guarded)
    cap.guard("tensor", source, codes)
    with torch.inference_mode(obj.is_inference()):  # whatever the frame has entered by now
        return cap.builder.input(obj, source, form)


def _generator(cap: Capture, obj: torch.Generator, source: Source) -> Value:
    """A generator of random numbers: what it draws does not depend on which one it is, but on
    whether it is also another one."""
    if is_default(obj):
        return by_identity(cap, obj, source)
    cap.guard("predicate", source, LikeGenerator(obj.device))
    for other in list(cap.objects.values()):
        if isinstance(other, Loose) and isinstance(other.real, torch.Generator):
            cap.guard("distinct", source, other.source)
    return Loose(obj, cap.guard, source)


def _list(cap: Capture, obj: list[object], source: Source) -> Value:
    cap.guard("type", source, list)
    return GrowingList(lambda known: _items_of(cap, obj, source, known), source, obj)


def _deque(cap: Capture, obj: collections.deque[object], source: Source) -> Value:
    """A deque: guards can index a tuple of it."""
    cap.guard("type", source, collections.deque)
    cap.guard("equal", Attr.make(source, "maxlen"), obj.maxlen)

    def read(known: bool) -> list[Slot]:
        return _items_of(cap, tuple(obj), Applied.make(source, tuple), known)

    return DequeValue([], obj.maxlen, read, source, obj)


def _items_of(cap: Capture, obj: list[Any] | tuple[Any, ...], source: Source,
              known: bool) -> list[Slot]:  # fmt: skip
    """known: whether the code says how many there are."""
    if not known:
        keep_closed(cap, source, len(obj))
    cap.guard("length", source, len(obj))
    return _lazy_items(obj, source)


def _tuple(cap: Capture, obj: tuple[object, ...], source: Source) -> Value:
    kind = type(obj)
    cap.guard("type", source, kind)
    return UnreadTuple(lambda known: _items_of(cap, obj, source, known), kind, source, obj)


def _lazy_items(obj: list[Any] | tuple[Any, ...], source: Source) -> list[Slot]:
    return [Lazy(x, Item.make(source, i, True)) for i, x in enumerate(obj)]


def _dict(cap: Capture, obj: dict[object, object], source: Source) -> Value:
    if is_globals(obj):
        return open_globals(cap, obj, source)
    cap.guard("type", source, type(obj))
    value = DictValue(type(obj), source, obj)
    if isinstance(obj, collections.defaultdict):
        value.factory = cap.wrap(obj.default_factory, Attr.make(source, "default_factory"))
    return value


def _set(cap: Capture, obj: set[object] | frozenset[object], source: Source) -> Value:
    """Sets have no order to index, so their elements must be constants, guarded as a whole."""
    base: Any = set if isinstance(obj, set) else frozenset
    value = SetValue(base, source, obj)
    for element in base.__iter__(obj):
        item = Const(element) if _hashable_constant(element) else wrap_key(cap, element)
        value.items[file_key(cap, item)] = item
    cap.guard("predicate", source, SameElements(type(obj), tuple(obj)))
    return value


def set_order(cap: Capture, x: SetValue) -> list[Value]:
    """The elements in the order in which Python goes through them."""
    if len(x.items) < 2 or (x.real is not None and not x.changed):
        return list(x.items.values())
    if x.twin is None or not all(_hashable_constant(k) or callable(k) or isinstance(k, UserKey)
                                 for k in x.twin):  # fmt: skip
        raise refuse("W107", "the order of a set's elements is not known", cap.loc())
    return [x.items[k] for k in x.twin]


def _proxy(cap: Capture, obj: types.MappingProxyType[Any, Any], source: Source) -> Value:
    """A read-only view of a dict that others may change: guarded as a whole.

    Errors: GraphBreak if the frame has changed the dict.
    """
    (shown,) = gc.get_referents(obj)
    found = cap.objects.get(id(shown))
    if isinstance(found, Mutable) and found.changed:
        raise refuse("W107", "a mapping proxy of a dict that the frame has changed", cap.loc())
    cap.shown.add(id(shown))
    cap.guard("predicate", source, _SameMapping(dict(obj)))
    return Const(obj, source)


class _SameMapping:
    """Answers whether a mapping proxy still shows equal constants and the same other objects."""

    __slots__ = ("items",)

    def __init__(self, items: dict[object, object]) -> None:
        self.items = items

    def __call__(self, other: object) -> bool:
        return isinstance(other, types.MappingProxyType) and len(other) == len(self.items) and all(
            k == key and (v is value or _same_constant(v, value))
            for (k, v), (key, value) in zip(other.items(), self.items.items(), strict=True)
        )

    def __hash__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameMapping) and other.items is self.items


def _same_constant(a: object, b: object) -> bool:
    return type(a) is type(b) and isinstance(a, IMMUTABLE) and a == b


_FROZEN: tuple[type, ...] = (
    *IMMUTABLE, *IDENTITY, torch.device, torch.finfo, torch.iinfo, range, slice, tuple, frozenset,
    enum.Enum, re.Pattern, re.Match, torch.memory_format, types.MappingProxyType, np.generic,
    np.dtype, np.ufunc,
)  # fmt: skip


def frozen(obj: object) -> bool:
    """Whether what the object is worth can never change."""
    return isinstance(obj, _FROZEN) or _is_native_enum(type(obj)) or is_plain(type(obj)) or (
        is_typing(obj))


def need_frozen(cap: Capture, x: Value) -> None:
    """Refuse to look into an outside object that may change without notice."""
    if isinstance(x, Const) and not frozen(x.obj):
        raise refuse("W107", f"the contents of a {type(x.obj).__name__}", cap.loc())
    if isinstance(x, Const):
        guard_context(cap, x.obj)


def _hashable_constant(x: object) -> bool:
    return isinstance(x, (*IMMUTABLE, enum.Enum, torch.dtype, torch.device, type)) or (
        isinstance(x, tuple | frozenset) and all(_hashable_constant(i) for i in x)
    )


def _method(cap: Capture, obj: types.MethodType, source: Source) -> Value:
    cap.guard("type", source, types.MethodType)
    func = cap.wrap(obj.__func__, Attr.make(source, "__func__"))
    return BoundValue(func, cap.wrap(obj.__self__, Attr.make(source, "__self__")), source)


def _partial(cap: Capture, obj: functools.partial[object], source: Source) -> Value:
    cap.guard("type", source, type(obj))
    func = cap.wrap(obj.func, Attr.make(source, "func"))
    args = cap.wrap(obj.args, Attr.make(source, "args"))
    kwargs = cap.wrap(obj.keywords, Attr.make(source, "keywords"))
    assert isinstance(args, TupleValue)
    assert isinstance(kwargs, DictValue)
    complete(cap, kwargs)
    named = {str(k): cap.force(v) for k, v in kwargs.items.items()}
    return PartialValue(func, list(cap.force_items(args.items)), named, type(obj), source)


def is_empty_cell(cell: types.CellType) -> bool:
    """Whether a cell holds nothing."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _cell(cap: Capture, obj: types.CellType, source: Source) -> Value:
    return cell_of(cap, obj, source, CellContents.make(source))


def cell_of(cap: Capture, obj: types.CellType, source: Source, contents: Source) -> CellValue:
    """The CellValue of a real cell, shared by everything that closes over it."""
    known = cap.cells.get(id(obj))
    if known is None:
        try:
            slot = Lazy(obj.cell_contents, contents)
        except ValueError:
            slot = None
            cap.guard("predicate", source, is_empty_cell)
        known = cap.cells[id(obj)] = CellValue(slot, source, obj, contents)
        cap.kept.append(obj)
    return known


def _instance(cap: Capture, obj: object, source: Source) -> Value:
    kind = watch_original(cap, obj, type(obj), source)
    cap.guard("type", source, kind)
    value = InstanceValue(kind, source, obj)
    cap.objects[id(obj)] = value
    if isinstance(obj, dict):
        value.payload = DictValue(kind, source, obj)
    elif isinstance(obj, list):
        cap.guard("length", source, len(obj))
        value.payload = ListValue(_lazy_items(obj, source), source, obj)
    elif isinstance(obj, tuple):
        cap.guard("length", source, len(obj))
        value.payload = TupleValue(_lazy_items(obj, source), kind, source)
    elif isinstance(obj, SIMPLE) and not getattr(obj, "__dict__", None):
        del cap.objects[id(obj)]
        cap.guard("predicate", source, SameBase(base_of(kind), base_value(obj)))
        return Const(obj, source)
    elif isinstance(obj, SIMPLE):
        value = cap.objects[id(obj)] = given_simple(cap, obj, source)
    elif isinstance(obj, SETS):
        value.payload = _set(cap, obj, source)
    return value


def _exception(cap: Capture, obj: BaseException, source: Source) -> Value:
    """An exception by its class and arguments."""
    kind = type(obj)
    cap.guard("type", source, kind)
    own = any("__init__" in vars(k) for k in kind.__mro__ if k.__flags__ & (1 << 9))
    made = (UserException if own else InstanceValue)(kind, source, obj)
    cap.objects[id(obj)] = made
    parts = ("args", "message", "exceptions") if isinstance(obj, BaseExceptionGroup) else ("args",)
    for name in parts:
        made.attrs[name] = cap.wrap(getattr(obj, name), Attr.make(source, name))
    return made


def keys_in_order(real: dict[object, object]) -> Iterable[object]:
    """The keys as the dict's own class orders them: an OrderedDict keeps an order of its own."""
    base = collections.OrderedDict if isinstance(real, collections.OrderedDict) else dict
    return base.keys(real)


def complete(cap: Capture, d: DictValue) -> None:
    """Read every key of a dict from outside, in order, and guard that these are all."""
    if d.complete or d.real is None:
        return
    assert isinstance(d.real, dict)
    keys = tuple(keys_in_order(d.real))
    assert d.source is not None
    cap.guard("keys", d.source, keys)
    read, names = d.items, d.keys
    d.items, d.keys = {}, {}
    removed = d.absent
    for key in keys:
        wrapped = wrap_key(cap, key)
        filed = file_key(cap, wrapped)
        if filed in removed:
            continue
        if filed in read:
            d.items[filed] = read.pop(filed)
        else:
            value = dict.__getitem__(d.real, key)
            d.items[filed] = Lazy(value, Item.make(d.source, key, False))
        d.keys[filed] = names.pop(filed, wrapped)
    d.items.update(read)
    d.keys.update(names)
    d.complete = True


def wrap_key(cap: Capture, key: object) -> Value:
    """A dict key as a Value: constants, objects hashed by identity, frozen data classes."""
    if isinstance(key, tuple) and _hashable_constant(key):
        return TupleValue([wrap_key(cap, k) for k in key], type(key))
    if _hashable_constant(key) or isinstance(
            key, types.FunctionType | types.ModuleType | weakref.ref):  # fmt: skip
        return Const(key)
    written = type(key).__hash__
    if written is object.__hash__ or isinstance(written, types.FunctionType):
        return cap.wrap(key, cap.pin(key))
    raise refuse("W107", f"dict key of type {type(key).__name__}", cap.loc())


def file_key(cap: Capture, x: Value) -> object:
    """What a dict or set files the value under. Errors: TypeError for unhashable values."""
    match x:
        case TupleValue():
            return tuple(file_key(cap, i) for i in cap.force_items(x.items))
        case BoundValue():
            cap.unguarded += 1
            return ("bound", file_key(cap, x.func), hash_key(x.self_))
        case InstanceValue():
            return _instance_key(cap, x)
        case ArrayValue():
            raise refuse("W102", f"a {x.cls().__name__} as a key", cap.loc())
        case Const():
            return hash_key(x)
    cap.unguarded += 1
    return hash_key(x)


_KEYED = ("__hash__", "__eq__")


def _instance_key(cap: Capture, x: InstanceValue) -> object:
    kind = x.klass
    if issubclass(x.klass, weakref.ref):
        return weak_key(cap, x)
    if kind.__hash__ is None:
        raise TypeError(f"unhashable type: '{kind.__name__}'")
    if hashes_by_fields(kind):
        fields = []
        for f in dataclasses.fields(kind):
            if f.compare if f.hash is None else f.hash:
                if x.attrs.get(f.name) is None and isinstance(x.real, object):
                    x.attrs[f.name] = cap.wrap(vars(x.real)[f.name], Item.make(
                        InstanceDict.make(_known(x)), f.name, False))  # fmt: skip
                value = x.attrs[f.name]
                assert value is not None
                fields.append(file_key(cap, value))
        return FieldsKey(kind, tuple(fields))
    box = x.payload
    if box is not None and all(getattr(kind, n) is getattr(box.cls(), n) for n in _KEYED):
        return file_key(cap, box)
    if any(getattr(kind, n) is not getattr(object, n) for n in _KEYED):
        if not any(isinstance(getattr(kind, n), types.FunctionType) for n in _KEYED):
            raise refuse("W107", f"a {kind.__name__} as a key", cap.loc())
        cap.unguarded += 1
        return user_key(cap, x)
    cap.unguarded += 1
    return hash_key(x)


def _known(x: Value) -> Source:
    assert x.source is not None
    return x.source


def read_key(cap: Capture, d: DictValue, filed: object) -> Value | None:
    """The value under a key, or None if the dict lacks it; guards what was found out."""
    slot = d.items.get(filed)
    if slot is not None:
        value = d.items[filed] = cap.force(slot)
        cap.touched.append(value)
        return value
    if isinstance(filed, FieldsKey | UserKey | tuple) and not d.complete:
        complete(cap, d)
        slot = d.items.get(filed)
        return cap.force(slot) if slot is not None else None
    if d.complete or filed in d.absent:
        return None
    assert isinstance(d.real, dict)
    assert d.source is not None
    if isinstance(filed, IdKey) and isinstance(filed.value, TensorValue):
        return read_under_tensor(cap, d, filed, filed.value)
    real = filed.value.real if isinstance(filed, IdKey) else filed  # type: ignore[attr-defined]
    if real is None and filed is not None:
        return None
    if dict.__contains__(d.real, real):
        value = cap.wrap(dict.__getitem__(d.real, real), Item.make(d.source, real, False))
        d.items[filed] = value
        d.keys[filed] = wrap_key(cap, real)
        return value
    cap.guard("lacks_key", d.source, real)
    d.absent.add(filed)
    return None


def has_key(cap: Capture, d: DictValue, filed: object) -> bool:
    """Whether a dict has a key: a question that does not depend on the value."""
    known = filed in d.items or d.complete or filed in d.absent
    if known or isinstance(filed, FieldsKey | UserKey | tuple | IdKey):
        return read_key(cap, d, filed) is not None
    assert isinstance(d.real, dict)
    if not dict.__contains__(d.real, filed):
        return read_key(cap, d, filed) is not None
    cap.guard("has_key", d.source, filed)
    return True


for _type in IDENTITY:
    if _type not in (types.FunctionType, types.BuiltinFunctionType):  # outside.py
        WRAPPERS.add(_type, by_identity)
WRAPPERS.add(torch.Generator, _generator)
WRAPPERS.add(list, _list)
WRAPPERS.add(collections.deque, _deque)
WRAPPERS.add(tuple, _tuple)
WRAPPERS.add(torch.Size, _tuple)
WRAPPERS.add(dict, _dict)
WRAPPERS.add(collections.OrderedDict, _dict)
WRAPPERS.add(collections.defaultdict, _dict)
WRAPPERS.add(types.MappingProxyType, _proxy)
WRAPPERS.add(set, _set)
WRAPPERS.add(frozenset, _set)
WRAPPERS.add(types.MethodType, _method)
WRAPPERS.add(functools.partial, _partial)
WRAPPERS.add(types.CellType, _cell)
WRAPPERS.add(range, _equal)
WRAPPERS.add(torch.device, _equal)
WRAPPERS.add(torch.finfo, _equal)
WRAPPERS.add(torch.iinfo, _equal)
WRAPPERS.add(slice, _slice)
WRAPPERS.add(types.SimpleNamespace, _instance)
for _callable in (functools._lru_cache_wrapper, operator.itemgetter, operator.attrgetter,
                  operator.methodcaller, re.Pattern, re.Match):  # fmt: skip
    WRAPPERS.add(_callable, by_identity)

_BASES: tuple[tuple[type, Wrapper], ...] = (
    (torch.Tensor, _tensor),
    (enum.Enum, by_identity),
    (type, by_identity),
    (BaseException, _exception),
    (types.ModuleType, by_identity),
)
