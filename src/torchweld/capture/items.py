"""Items and iteration on abstract values."""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchweld.capture import polyfills
from torchweld.capture.arrays.operators import array_item, array_iterator, array_setitem
from torchweld.capture.attrs import from_python, mro_lookup
from torchweld.capture.generator_frames import resume
from torchweld.capture.instances import VarsValue
from torchweld.capture.kernels import is_kernel, kernel_with_grid
from torchweld.capture.numbers import apart, is_open, range_iterator, runs_apart
from torchweld.capture.open_numbers import steps_apart
from torchweld.capture.ops import (
    changed,
    check_index,
    check_iterator,
    filed_key,
    lacking,
    late_text,
    payload,
    real_call,
    user_method,
)
from torchweld.capture.owned_items import of_owned, owned_iterator
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, raised, refuse
from torchweld.capture.tensors import tensor_getitem, tensor_setitem
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    DictValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    LateText,
    ListValue,
    NotConstant,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
    constant,
    is_constant,
)
from torchweld.capture.values.number import RangeValue
from torchweld.capture.values.owned import OwnedValue, ProxyValue
from torchweld.capture.values.sequences import DequeValue, GrowingList, UnreadTuple
from torchweld.capture.wrap import complete, has_key, need_frozen, read_key, set_order

_NO_SLICES = "sequence index must be integer, not 'slice'"


# ----------------------------------------------------------------------- items
def get_item(cap: Capture, obj: Value, key: Value, cont: Cont | None = None) -> None:
    """obj[key]."""
    if isinstance(obj, Const) and is_kernel(type(obj.obj)):
        cap.deliver(kernel_with_grid(obj, key), cont)
        return
    if isinstance(obj, Const) and type(obj.obj).__module__ == "typing" and is_constant(key):
        cap.deliver(real_call(operator.getitem, obj.obj, constant(key)), cont)
        return
    hook = user_method(cap, obj, "__getitem__")
    if hook is not None:
        cap.call(Const(hook), [obj, key], {}, cont)
        return
    box = payload(obj)
    index = user_method(cap, key, "__index__") if isinstance(key, InstanceValue) else None
    if index is not None and key.payload is None and isinstance(  # type: ignore[attr-defined]
            box, TensorValue | ListValue | TupleValue | Const):  # fmt: skip
        if isinstance(box, TensorValue) and user_method(cap, key, "__getitem__") is not None:
            raise refuse("W107", "a sequence of the user's as an index", cap.loc())
        cap.call(Const(index), [key], {}, lambda k: get_item(cap, obj, check_index(k), cont))
        return
    match box:
        case LateText():
            raise late_text(cap)
        case VarsValue() if not isinstance(key, Const):
            raise key_error(key)
        case TensorValue():
            tensor_getitem(cap, box, key, cont)
        case ArrayValue():
            cap.deliver(array_item(cap, box, key), cont)
        case ListValue() | TupleValue():
            cap.deliver(sequence_item(cap, box, key), cont)
        case DictValue():
            _dict_item(cap, obj, box, key, cont)
        case Const() if isinstance(box.obj, type):
            _class_item(cap, box, key, cont)
        case Const() if isinstance(box.obj, types.MappingProxyType):
            _proxy_item(cap, box, key, cont)
        case Const():
            need_frozen(cap, box)
            try:
                cap.deliver(real_call(operator.getitem, box.obj, constant(key)), cont)
            except NotConstant:
                if isinstance(key, TensorValue):
                    raise refuse("W102", "a Tensor as an index into a Python object",
                                 cap.loc()) from None  # fmt: skip
                raise refuse("W107", "index that is not constant", cap.loc()) from None
        case OwnedValue():
            of_owned(cap, operator.getitem, [obj, key], cont)
        case _:
            raise lacking(cap, obj, "__getitem__",
                          f"'{obj.cls().__name__}' object is not subscriptable")  # fmt: skip


def _proxy_item(cap: Capture, box: Const, key: Value, cont: Cont | None) -> None:
    """An entry of a class's __dict__, or of a mapping proxy that is guarded as a whole."""
    try:
        found = box.obj[constant(key)]  # type: ignore[index]
    except NotConstant:
        raise refuse("W107", "a key that is not constant", cap.loc()) from None
    except KeyError:
        raise key_error(key) from None
    plain = isinstance(found, int | float | str | bytes | type(None))
    cap.deliver(Const(found) if plain else cap.wrap(found, cap.pin(found)), cont)


def _class_item(cap: Capture, box: Const, key: Value, cont: Cont | None) -> None:
    hook = mro_lookup(box.obj, "__class_getitem__")  # type: ignore[arg-type]
    if isinstance(hook, classmethod) and isinstance(hook.__func__, types.FunctionType) and (
            hook.__func__.__module__ != "typing"):  # fmt: skip
        cap.call(Const(hook.__func__), [box, key], {}, cont)
        return
    meta = user_method(cap, box, "__getitem__")
    if meta is not None and not isinstance(box.obj, enum.EnumMeta):
        cap.call(Const(meta), [box, key], {}, cont)
        return
    try:
        index = constant(key)
    except NotConstant:
        raise refuse("W107", "class subscript that is not constant", cap.loc()) from None
    cap.deliver(real_call(lambda c, k: c[k], box.obj, index), cont)


def _dict_item(cap: Capture, obj: Value, box: DictValue, key: Value, cont: Cont | None) -> None:
    filed = filed_key(cap, key)
    found = read_key(cap, box, filed)
    if found is not None:
        cap.deliver(found, cont)
        return
    missing = user_method(cap, obj, "__missing__")
    if missing is not None:
        cap.call(Const(missing), [obj, key], {}, cont)
        return
    if not (isinstance(box.factory, Const) and box.factory.obj is None):
        def keep(made: Value) -> None:
            dict_set(cap, box, key, made)
            cap.deliver(made, cont)

        cap.call(box.factory, [], {}, keep)
        return
    raise key_error(key)


def key_error(key: Value) -> Raised:
    """KeyError(key)."""
    error = raised(KeyError)
    assert isinstance(error.value, InstanceValue)
    error.value.attrs["args"] = TupleValue([key])
    return error


def dict_set(cap: Capture, box: DictValue, key: Value, value: Value) -> None:
    """box[key] = value."""
    filed = filed_key(cap, key)
    if filed not in box.items:
        has_key(cap, box, filed)  # learns whether it is new, and so where it goes in the order
    box.items[filed] = value
    box.keys.setdefault(filed, key)
    box.absent.discard(filed)
    changed(cap, box)


def append(cap: Capture, box: ListValue, item: Value) -> None:
    """box.append(item)."""
    (box.tail if isinstance(box, GrowingList) else box.items).append(item)
    changed(cap, box)


def sequence_item(cap: Capture, box: ListValue | TupleValue, key: Value) -> Value:
    """An item or slice of a list or tuple."""
    if isinstance(key, TensorValue):
        raise refuse("W102", "a Tensor as an index into a list", cap.loc())
    try:
        index = constant(payload(key))
    except NotConstant:
        raise refuse("W107", f"index of type {key.cls().__name__}", cap.loc()) from None
    if isinstance(index, slice):
        if isinstance(box, DequeValue):
            raise raised(TypeError, _NO_SLICES)
        if isinstance(box, ListValue):
            return ListValue([*cap.force_items(box.items)[index]])
        return TupleValue(box.items[index], box.kind if box.kind is torch.Size else tuple)
    try:
        i = operator.index(index)
    except TypeError:
        raise raised(TypeError, f"{box.cls().__name__} indices must be integers or slices, not "
                                f"{type(index).__name__}") from None  # fmt: skip
    if isinstance(box, GrowingList | UnreadTuple) and (found := box.beside(i)) is not None:
        return cap.force(found)
    try:
        box.items[i] = cap.force(box.items[i])
    except IndexError:
        name = "tuple" if isinstance(box, TupleValue) else box.cls().__name__
        raise raised(IndexError, f"{name} index out of range") from None
    return box.items[i]  # type: ignore[return-value]


def set_item(cap: Capture, obj: Value, key: Value, value: Value) -> None:
    """obj[key] = value. A user-written __setitem__ is called; its result is dropped."""
    hook = user_method(cap, obj, "__setitem__")
    if hook is not None:
        cap.call(Const(hook), [obj, key, value], {}, lambda _: None)
        return
    box = payload(obj)
    match box:
        case DictValue() if isinstance(obj, ProxyValue):
            raise raised(TypeError, "'mappingproxy' object does not support item assignment")
        case TensorValue():
            tensor_setitem(cap, box, key, value)
        case ArrayValue():
            array_setitem(cap, box, key, value)
        case DictValue():
            dict_set(cap, box, key, value)
        case ListValue():
            try:
                index = constant(key)
            except NotConstant:
                raise refuse("W102", "an index that is not constant", cap.loc()) from None
            cap.force_items(box.items)
            try:
                if isinstance(index, slice):
                    if isinstance(box, DequeValue):
                        raise raised(TypeError, _NO_SLICES)
                    box.items[index] = list_of(cap, value)
                else:
                    box.items[operator.index(index)] = value
            except (IndexError, TypeError, ValueError) as error:
                raise raised(type(error), *error.args) from None
            changed(cap, box)
        case OwnedValue():
            of_owned(cap, operator.setitem, [obj, key, value], lambda _: None)
        case _:
            raise lacking(cap, obj, "__setitem__", f"'{obj.cls().__name__}' object does not "
                                                   "support item assignment")  # fmt: skip


def del_item(cap: Capture, obj: Value, key: Value) -> None:
    """del obj[key]."""
    hook = user_method(cap, obj, "__delitem__")
    if hook is not None:
        cap.call(Const(hook), [obj, key], {}, lambda _: None)
        return
    box = payload(obj)
    if isinstance(obj, ProxyValue):
        raise raised(TypeError, "'mappingproxy' object doesn't support item deletion")
    if isinstance(box, DictValue):
        filed = filed_key(cap, key)
        if read_key(cap, box, filed) is None:
            raise key_error(key)
        complete(cap, box)  # a key that comes back later goes to the end
        del box.items[filed]
        del box.keys[filed]
        box.absent.add(filed)
        changed(cap, box)
    elif isinstance(box, ListValue):
        cap.force_items(box.items)
        if isinstance(box, DequeValue) and isinstance(key, Const) and isinstance(key.obj, slice):
            raise raised(TypeError, _NO_SLICES)
        try:
            del box.items[constant(key)]
        except NotConstant:
            raise refuse("W102", "del at an index that is not constant", cap.loc()) from None
        except (IndexError, TypeError) as error:
            raise raised(type(error), *error.args) from None
        changed(cap, box)
    elif isinstance(box, OwnedValue):
        of_owned(cap, operator.delitem, [obj, key], lambda _: None)
    else:
        if isinstance(box, TensorValue | ArrayValue | Const):
            raise refuse("W107", f"del of an item of {obj.cls().__name__}", cap.loc())
        raise lacking(cap, obj, "__delitem__",
                      f"'{obj.cls().__name__}' object doesn't support item deletion")  # fmt: skip


def list_of(cap: Capture, x: Value) -> list[Any]:
    """The items of an iterable that runs no user code. Errors: GraphBreak."""
    box = payload(x)
    if isinstance(box, ListValue | TupleValue):
        return list(cap.force_items(box.items))
    iterator = plain_iterator(cap, box)
    if iterator is None:
        raise refuse("W107", f"items of {x.cls().__name__}", cap.loc())
    out = []
    while (item := iterator.step()) is not None:
        out.append(item)
    return out


# ------------------------------------------------------------------- iteration
def get_iter(cap: Capture, x: Value, cont: Cont | None = None) -> None:
    """iter(x)."""
    if isinstance(x, IteratorValue | GeneratorValue) and x.cls() is not types.CoroutineType:
        cap.deliver(x, cont)
        return
    hook = user_method(cap, x, "__iter__")
    if hook is not None:
        cap.call(Const(hook), [x], {}, lambda made: cap.deliver(check_iterator(made), cont))
        return
    made = plain_iterator(cap, payload(x))
    if made is None:
        if user_method(cap, x, "__getitem__") is not None:
            cap.call(Const(polyfills.by_index), [x], {}, cont)
            return
        if isinstance(x, Const):
            need_frozen(cap, x)
        if isinstance(x, LateText):
            raise late_text(cap)
        raise lacking(cap, x, "__iter__", f"'{x.cls().__name__}' object is not iterable")
    cap.deliver(made, cont)


def plain_iterator(cap: Capture, x: Value) -> IteratorValue | None:
    """An iterator over a built-in container; None if it is not one."""
    match x:
        case IteratorValue():
            return x
        case GrowingList() | UnreadTuple() if steps_apart(cap, x):
            return apart(cap, x, type(iter([])), lambda: sequence_iterator(cap, x))
        case ListValue() | TupleValue():
            return sequence_iterator(cap, x)
        case DictValue():
            return view_iterator(cap, ViewValue(x, "keys"))
        case ViewValue():
            return view_iterator(cap, x)
        case SetValue():
            return IteratorValue(_elements(x, set_order(cap, x)), type(iter(set())))
        case ArrayValue():
            return array_iterator(cap, x)
        case OwnedValue():
            return owned_iterator(cap, x)
        case RangeValue():
            return range_iterator(cap, x) or plain_iterator(cap, Const(x.obj))
        case TensorValue():
            if x.fake.ndim == 0:
                raise raised(TypeError, "iteration over a 0-d tensor")
            if runs_apart(cap, x.fake.shape[0]):
                rows = None if is_open(x.fake.shape[0]) else lambda: _rows(cap, x)
                return apart(cap, x, type(iter(())), rows)
            return _rows(cap, x)
        case Const() if isinstance(x.obj, str | bytes | range | frozenset):
            real = iter(x.obj)
            again = None if isinstance(x.obj, frozenset) else lambda r: _copy_of(r, real)
            return IteratorValue(lambda: _const_or_end(real), type(real), again)
        case Const() if isinstance(x.obj, type) and hasattr(x.obj, "__members__"):
            members = iter(list(x.obj))  # type: ignore[call-overload]
            return IteratorValue(lambda: _const_or_end(members), types.GeneratorType)
        case Const() if isinstance(x.obj, types.MappingProxyType):
            keys = iter(list(x.obj))
            return IteratorValue(lambda: _const_or_end(keys), type(iter({})))
    return None


def _rows(cap: Capture, x: TensorValue) -> IteratorValue:
    parts = cap.builder.call("call_method", "unbind", [x, Const(0)], {}, cap.loc())
    assert isinstance(parts, TupleValue)
    return sequence_iterator(cap, parts)


def iterable(cap: Capture, x: Value) -> bool:
    """Whether iter(x) works."""
    if isinstance(x, Const):
        return hasattr(type(x.obj), "__iter__") or hasattr(type(x.obj), "__getitem__")
    if isinstance(x, InstanceValue) and x.payload is None:
        return any(user_method(cap, x, n) is not None for n in ("__iter__", "__getitem__"))
    return hasattr(x.cls(), "__iter__")


def _const_or_end(it: Any) -> Value | None:
    for item in it:
        return from_python(item)
    return None


def _copy_of(r: Any, real: Any) -> str:
    """An iterator over constants as it is now."""
    copier = r.bind_const(copy.copy)
    return r.assign(f"{copier}({r.bind_const(copy.copy(real))})")  # type: ignore[no-any-return]


def advanced(r: Any, name: str, n: int) -> str:
    """The iterator of that name, after `n` items were taken."""
    if n:
        r.lines.append(f"{r.bind_const(advance)}({name}, {n})")
    return name


def advance(it: Iterator[Any], n: int) -> None:
    """Take n items, or what is left."""
    next(itertools.islice(it, n - 1, None), None)


def sequence_iterator(cap: Capture, x: ListValue | TupleValue, at: int = 0) -> IteratorValue:
    """Reads the list as it is at each step, as Python does."""

    def remake(r: Any) -> str:
        begin = r.bind_const(type(_EMPTY.get(x.cls(), ())).__iter__)
        return advanced(r, r.assign(f"{begin}({r.expr(x)})"), at)

    n = len(x.items) if isinstance(x, DequeValue) else 0

    def step() -> Value | None:
        nonlocal at
        if isinstance(x, DequeValue) and len(x.items) != n:
            raise raised(RuntimeError, "deque mutated during iteration")
        if at >= len(x.items):
            return None
        value = x.items[at] = cap.force(x.items[at])
        at += 1
        return value

    return IteratorValue(step, type(iter(_EMPTY.get(x.cls(), ()))), remake)


_EMPTY: dict[type, Any] = {list: [], collections.deque: collections.deque()}


def view_iterator(cap: Capture, view: ViewValue) -> IteratorValue:
    """Iterator over keys, values or items of a dict."""
    d = view.of
    complete(cap, d)
    keys = list(d.items)
    at = 0

    def step() -> Value | None:
        nonlocal at
        if len(d.items) != len(keys):
            raise raised(RuntimeError, "dictionary changed size during iteration")
        if at >= len(keys):
            return None
        key = keys[at]
        at += 1
        if view.what == "keys":
            return d.keys[key]
        value = read_key(cap, d, key)
        assert value is not None
        return value if view.what == "values" else TupleValue([d.keys[key], value])

    def remake(r: Any) -> str:
        return advanced(r, r.assign(f"{r.bind_const(iter)}({r.expr(view)})"), at)

    return IteratorValue(step, type(iter(_VIEWS[view.what])), remake)


_VIEWS: dict[str, Any] = {"keys": {}, "values": {}.values(), "items": {}.items()}


def _elements(x: SetValue, ordered: list[Value]) -> Callable[[], Value | None]:
    it, n = iter(ordered), len(ordered)

    def step() -> Value | None:
        if len(x.items) != n:
            raise raised(RuntimeError, "Set changed size during iteration")
        return next(it, None)

    return step


def next_value(cap: Capture, it: Value, cont: Cont, stop: Callable[[], None]) -> None:
    """next(it): the item goes to `cont`; at the end `stop` is called instead."""
    match it:
        case IteratorValue():
            item = it.step()
            if item is None:
                stop()
            else:
                cont(item)
        case GeneratorValue():
            resume(cap, it, Const(None), cont, lambda _: stop())
        case InstanceValue():
            hook = user_method(cap, it, "__next__")
            if hook is None:
                raise _no_iterator(cap, it)
            cap.call(Const(hook), [it], {}, cont, _on_stop_iteration(stop))
        case _:
            raise _no_iterator(cap, it)


def _no_iterator(cap: Capture, x: Value) -> Exception:
    return lacking(cap, x, "__next__", f"'{x.cls().__name__}' object is not an iterator")


def _on_stop_iteration(stop: Callable[[], None]) -> Callable[[Value], bool]:
    def on_raise(exc: Value) -> bool:
        if not issubclass(exc.cls(), StopIteration):
            return False
        stop()
        return True

    return on_raise
