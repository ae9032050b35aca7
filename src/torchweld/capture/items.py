"""Items and iteration on abstract values."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.attrs import from_python
from torchweld.capture.ops import filed_key, payload, real_call, user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tensors import tensor_getitem, tensor_setitem
from torchweld.capture.values.base import (
    Const,
    DictValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    ListValue,
    NotConstant,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
    constant,
)
from torchweld.capture.wrap import complete, read_key


# ----------------------------------------------------------------------- items
def get_item(cap: Capture, obj: Value, key: Value, cont: Cont | None = None) -> None:
    """obj[key]."""
    hook = user_method(obj, "__getitem__")
    if hook is not None:
        cap.call(Const(hook), [obj, key], {}, cont)
        return
    box = payload(obj)
    match box:
        case TensorValue():
            tensor_getitem(cap, box, key, cont)
        case ListValue() | TupleValue():
            cap.deliver(sequence_item(cap, box, key), cont)
        case DictValue():
            _dict_item(cap, obj, box, key, cont)
        case Const() if isinstance(box.obj, type):
            _class_item(cap, box, key, cont)
        case Const():
            try:
                cap.deliver(real_call(operator.getitem, box.obj, constant(key)), cont)
            except NotConstant:
                if isinstance(key, TensorValue):
                    raise refuse("W102", "a Tensor as an index into a Python object",
                                 cap.loc()) from None  # fmt: skip
                raise refuse("W107", "index that is not constant", cap.loc()) from None
        case _:
            raise raised(TypeError, f"'{obj.cls().__name__}' object is not subscriptable")


def _class_item(cap: Capture, box: Const, key: Value, cont: Cont | None) -> None:
    try:
        index = constant(key)
    except NotConstant:
        raise refuse("W107", "class subscript that is not constant", cap.loc()) from None
    cap.deliver(real_call(lambda c, k: c[k], box.obj, index), cont)


def _dict_item(cap: Capture, obj: Value, box: DictValue, key: Value, cont: Cont | None) -> None:
    filed = filed_key(key)
    found = read_key(cap, box, filed)
    if found is not None:
        cap.deliver(found, cont)
        return
    missing = user_method(obj, "__missing__")
    if missing is not None:
        cap.call(Const(missing), [obj, key], {}, cont)
        return
    if not (isinstance(box.factory, Const) and box.factory.obj is None):
        def keep(made: Value) -> None:
            dict_set(cap, box, key, made)
            cap.deliver(made, cont)

        cap.call(box.factory, [], {}, keep)
        return
    raise raised(KeyError, filed)


def dict_set(cap: Capture, box: DictValue, key: Value, value: Value) -> None:
    """box[key] = value."""
    filed = filed_key(key)
    if filed not in box.items:
        read_key(cap, box, filed)  # learns whether it is new, and so where it goes in the order
    box.items[filed] = value
    box.keys.setdefault(filed, key)
    box.absent.discard(filed)
    cap.mark(box)


def sequence_item(cap: Capture, box: ListValue | TupleValue, key: Value) -> Value:
    """An item or slice of a list or tuple."""
    if isinstance(key, TensorValue):
        raise refuse("W102", "a Tensor as an index into a list", cap.loc())
    try:
        index = constant(key)
    except NotConstant:
        raise refuse("W107", f"index of type {key.cls().__name__}", cap.loc()) from None
    if isinstance(index, slice):
        part = box.items[index]
        if isinstance(box, ListValue):
            cap.force_items(box.items)
            return ListValue(box.items[index])
        return TupleValue(part, box.kind if box.kind is torch.Size else tuple)
    try:
        i = operator.index(index)
        box.items[i] = cap.force(box.items[i])
    except (TypeError, IndexError) as error:
        raise raised(type(error), *error.args) from None
    return box.items[i]  # type: ignore[return-value]


def set_item(cap: Capture, obj: Value, key: Value, value: Value) -> None:
    """obj[key] = value. A user-written __setitem__ is called; its result is dropped."""
    hook = user_method(obj, "__setitem__")
    if hook is not None:
        cap.call(Const(hook), [obj, key, value], {}, lambda _: None)
        return
    box = payload(obj)
    match box:
        case TensorValue():
            tensor_setitem(cap, box, key, value)
        case DictValue():
            dict_set(cap, box, key, value)
        case ListValue():
            index = constant(key)
            cap.force_items(box.items)
            try:
                if isinstance(index, slice):
                    box.items[index] = list_of(cap, value)
                else:
                    box.items[operator.index(index)] = value
            except (IndexError, TypeError, ValueError) as error:
                raise raised(type(error), *error.args) from None
            cap.mark(box)
        case _:
            raise raised(TypeError,
                         f"'{obj.cls().__name__}' object does not support item assignment")  # fmt: skip


def del_item(cap: Capture, obj: Value, key: Value) -> None:
    """del obj[key]."""
    hook = user_method(obj, "__delitem__")
    if hook is not None:
        cap.call(Const(hook), [obj, key], {}, lambda _: None)
        return
    box = payload(obj)
    if isinstance(box, DictValue):
        filed = filed_key(key)
        if read_key(cap, box, filed) is None:
            raise raised(KeyError, filed)
        del box.items[filed]
        del box.keys[filed]
        box.absent.add(filed)
        cap.mark(box)
    elif isinstance(box, ListValue):
        cap.force_items(box.items)
        try:
            del box.items[constant(key)]
        except (IndexError, TypeError) as error:
            raise raised(type(error), *error.args) from None
        cap.mark(box)
    else:
        raise refuse("W107", f"del of an item of {obj.cls().__name__}", cap.loc())


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
    if isinstance(x, IteratorValue | GeneratorValue):
        cap.deliver(x, cont)
        return
    hook = user_method(x, "__iter__")
    if hook is not None:
        cap.call(Const(hook), [x], {}, cont)
        return
    made = plain_iterator(cap, payload(x))
    if made is None:
        if user_method(x, "__getitem__") is not None:
            raise refuse("W107", "iteration by __getitem__", cap.loc())
        raise raised(TypeError, f"'{x.cls().__name__}' object is not iterable")
    cap.deliver(made, cont)


def plain_iterator(cap: Capture, x: Value) -> IteratorValue | None:
    """An iterator over a built-in container; None if it is not one."""
    match x:
        case IteratorValue():
            return x
        case ListValue() | TupleValue():
            return _sequence_iterator(cap, x)
        case DictValue():
            return view_iterator(cap, ViewValue(x, "keys"))
        case ViewValue():
            return view_iterator(cap, x)
        case SetValue():
            it = iter(list(x.items.values()))
            return IteratorValue(lambda: next(it, None), type(iter(set())))
        case TensorValue():
            if x.fake.ndim == 0:
                raise raised(TypeError, "iteration over a 0-d tensor")
            parts = cap.builder.call("call_method", "unbind", [x, Const(0)], {}, cap.loc())
            assert isinstance(parts, TupleValue)
            return _sequence_iterator(cap, parts)
        case Const() if isinstance(x.obj, str | bytes | range | type(iter(range(0)))):
            real = iter(x.obj)
            return IteratorValue(lambda: _const_or_end(real), type(real))
        case Const() if isinstance(x.obj, type) and hasattr(x.obj, "__members__"):
            members = iter(list(x.obj))  # type: ignore[call-overload]
            return IteratorValue(lambda: _const_or_end(members), types.GeneratorType)
        case Const() if isinstance(x.obj, types.MappingProxyType):
            keys = iter(list(x.obj))
            return IteratorValue(lambda: _const_or_end(keys), type(iter({})))
    return None


def _const_or_end(it: Any) -> Value | None:
    for item in it:
        return from_python(item)
    return None


def _sequence_iterator(cap: Capture, x: ListValue | TupleValue) -> IteratorValue:
    """Reads the list as it is at each step, as Python does."""
    at = 0

    def step() -> Value | None:
        nonlocal at
        if at >= len(x.items):
            return None
        value = x.items[at] = cap.force(x.items[at])
        at += 1
        return value

    return IteratorValue(step, type(iter([])))


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

    return IteratorValue(step, type(iter({})))


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
            hook = user_method(it, "__next__")
            if hook is None:
                raise raised(TypeError, f"'{it.cls().__name__}' object is not an iterator")
            cap.call(Const(hook), [it], {}, cont, _on_stop_iteration(stop))
        case _:
            raise raised(TypeError, f"'{it.cls().__name__}' object is not an iterator")


def _on_stop_iteration(stop: Callable[[], None]) -> Callable[[Value], bool]:
    def on_raise(exc: Value) -> bool:
        if not issubclass(exc.cls(), StopIteration):
            return False
        stop()
        return True

    return on_raise


def resume(cap: Capture, gen: GeneratorValue, sent: Value, cont: Cont,
           finished: Callable[[Value], None]) -> None:  # fmt: skip
    """Run a generator to its next yield (`cont`) or its end (`finished` gets its result)."""
    if gen.finished:
        finished(Const(None))
        return
    if gen.running:
        raise raised(ValueError, "generator already executing")
    frame = gen.frame
    gen.running = True

    def yielded(value: Value) -> None:
        gen.running = False
        cont(value)

    def returned(value: Value) -> None:
        gen.running, gen.finished = False, True
        finished(value)

    def failed(exc: Value) -> bool:
        gen.running, gen.finished = False, True
        return False

    frame.on_yield, frame.on_return, frame.on_raise = yielded, returned, failed
    frame.stack.append(sent)
    cap.frames.append(frame)

