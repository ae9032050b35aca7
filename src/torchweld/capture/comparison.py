"""The six comparisons and membership, on abstract values."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from torchweld.capture import polyfills
from torchweld.capture.arrays.operators import array_binary, untold
from torchweld.capture.attrs import mro_lookup
from torchweld.capture.identity import guard_distinct, same
from torchweld.capture.instances import vars_of
from torchweld.capture.late import LateNumber
from torchweld.capture.numbers import is_graph_number, number_decide
from torchweld.capture.object_ids import ObjectId
from torchweld.capture.ops import (
    filed_key,
    goes_first,
    lacking,
    late_text,
    payload,
    real_call,
    truth,
    unless,
    user_method,
)
from torchweld.capture.owned_items import of_owned
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.symbolic import is_varying, number_value
from torchweld.capture.tensors import tensor_binary
from torchweld.capture.values.base import (
    ArrayValue,
    BoundValue,
    Const,
    DictValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    LateText,
    ListValue,
    NotConstant,
    SetValue,
    SizeValue,
    SliceValue,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
    boolean,
    constant,
)
from torchweld.capture.values.owned import OwnedValue
from torchweld.capture.wrap import complete, has_key, need_frozen

COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
}


class NeedsUserCode(Exception):
    """A comparison inside a container is written by the user: polyfills do it instead."""


def compare(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None = None) -> None:
    """a <symbol> b for the six comparisons."""
    if isinstance(a, ArrayValue) or isinstance(b, ArrayValue):
        cap.deliver(array_binary(cap, symbol, a, b), cont)
        return
    if isinstance(a, SliceValue) or isinstance(b, SliceValue):
        a, b = (Const(constant(x)) if isinstance(x, SliceValue) else x for x in (a, b))
    fn, special, reflected = COMPARE[symbol]
    if isinstance(a, SizeValue) or isinstance(b, SizeValue):
        answer = cap.sizes.compute(fn, (a, b))
        if answer is not NotImplemented:
            known = number_value(answer)
            cap.deliver(known if is_varying(known) else boolean(known.obj), cont)
            return
    if is_graph_number(a, b) and {a.cls(), b.cls()} <= {bool, int, float}:
        cap.deliver(boolean(number_decide(cap, fn, a, b)), cont)
        return
    hook = user_method(cap, a, special)
    if symbol == "!=" and _ne_by_eq(cap, a, b, cont):
        return
    if goes_first(b, a, reflected) and user_method(cap, b, reflected) is not None:
        cap.call(Const(user_method(cap, b, reflected)), [b, a], {}, unless(
            cap, cont, lambda: cap.call(Const(hook), [a, b], {}, _compare_end(
                cap, symbol, a, b, cont)) if hook is not None else plain_compare(
                    cap, symbol, payload(a), payload(b), cont)))  # fmt: skip
        return
    if hook is not None:
        cap.call(Const(hook), [a, b], {}, _compare_fallback(cap, symbol, a, b, cont))
        return
    hook = user_method(cap, b, reflected)
    if hook is not None:
        cap.call(Const(hook), [b, a], {}, _compare_end(cap, symbol, a, b, cont))
        return
    if (isinstance(a, TensorValue) or isinstance(b, TensorValue)) and not (
        symbol in ("==", "!=") and _never_equal(a, b)
    ):
        tensor_binary(cap, fn, a, b, cont)
        return
    plain_compare(cap, symbol, payload(a), payload(b), cont)


def _ne_by_eq(cap: Capture, a: Value, b: Value, cont: Cont | None) -> bool:
    """object.__ne__ is the opposite of a user-written __eq__."""
    eq = user_method(cap, a, "__eq__")
    if eq is None or mro_lookup(a.cls(), "__ne__") is not object.__ne__:
        return False

    def check(result: Value) -> None:
        if isinstance(result, Const) and result.obj is NotImplemented:
            _compare_fallback(cap, "!=", a, b, cont)(result)
        else:
            truth(cap, result, lambda t: cap.deliver(boolean(not t), cont))

    cap.call(Const(eq), [a, b], {}, check)
    return True


_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def _never_equal(a: Value, b: Value) -> bool:
    """A tensor compared with something that Tensor.__eq__ does not take."""
    other = b if isinstance(a, TensorValue) else a
    if isinstance(other, TensorValue):
        return False
    return not (isinstance(other, Const) and issubclass(other.cls(), _NUMBERS))


def _compare_fallback(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> Cont:
    """After a's method: b's reflected one, then identity."""

    def reflect() -> None:
        hook = user_method(cap, b, COMPARE[symbol][2])
        end = _compare_end(cap, symbol, a, b, cont)
        if hook is None:
            end(Const(NotImplemented))
        else:
            cap.call(Const(hook), [b, a], {}, end)

    return unless(cap, cont, reflect)


def _compare_end(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> Cont:
    def end() -> None:
        if symbol not in ("==", "!="):
            _not_ordered(symbol, a, b)
        cap.deliver(boolean(same(cap, a, b) == (symbol == "==")), cont)

    return unless(cap, cont, end)


def _not_ordered(symbol: str, a: Value, b: Value) -> None:
    raise raised(TypeError, f"'{symbol}' not supported between instances of "
                 f"'{a.cls().__name__}' and '{b.cls().__name__}'")  # fmt: skip


def plain_compare(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> None:
    """A comparison that runs no user code, element by element for containers."""
    late = cap.late.decide(symbol, a, b)
    if late is None and cap.late.active:  # of two integers, it is a relation of sizes
        answer = cap.sizes.compute(COMPARE[symbol][0], (a, b))
        late = None if answer is NotImplemented else bool(answer)
    if late is not None:
        cap.deliver(boolean(late) if isinstance(late, bool) else Const(late), cont)
        return
    if symbol in ("==", "!="):
        _plain_equal(cap, symbol, a, b, cont)
        return
    if (isinstance(a, InstanceValue) and a.payload is None) or (
            isinstance(b, InstanceValue) and b.payload is None):  # fmt: skip
        _not_ordered(symbol, a, b)
    if isinstance(a, SetValue | ViewValue) and isinstance(b, SetValue | ViewValue):
        left, right = set(keys_of(cap, a)), set(keys_of(cap, b))
        cap.deliver(boolean(COMPARE[symbol][0](left, right)), cont)
        return
    try:
        left_c, right_c = constant(cap.unwrap(a)), constant(cap.unwrap(b))
    except NotConstant:
        if (isinstance(a, ListValue | TupleValue)) and a.cls() is b.cls():
            cap.call(Const(polyfills.sequence_order), [a, b, Const(COMPARE[symbol][0])], {}, cont)
            return
        raise refuse("W107", f"{symbol} of {a.cls().__name__} and {b.cls().__name__}",
                     cap.loc()) from None  # fmt: skip
    need_frozen(cap, a)
    need_frozen(cap, b)
    cap.deliver(real_call(COMPARE[symbol][0], left_c, right_c), cont)


def _plain_equal(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> None:
    def flip(t: bool) -> None:
        cap.deliver(boolean(t == (symbol == "==")), cont)

    try:
        answer = equal(cap, a, b)
    except NeedsUserCode:
        for kinds, fn in ((ListValue | TupleValue, polyfills.sequence_equal),
                          (DictValue, polyfills.dict_equal)):  # fmt: skip
            if isinstance(a, kinds) and isinstance(b, kinds):
                cap.call(Const(fn), [a, b], {}, lambda v: truth(cap, v, flip))
                return
        raise refuse("W107", "user-written __eq__ inside a container", cap.loc()) from None
    flip(answer)


def keys_of(cap: Capture, x: Value) -> list[object]:
    """The hash keys of a set or of a dict's key view."""
    if isinstance(x, SetValue):
        return list(x.items)
    if isinstance(x, ViewValue) and x.what == "keys":
        complete(cap, x.of)
        return list(x.of.items)
    raise refuse("W107", f"set operation on {x.cls().__name__}", cap.loc())


def equal(cap: Capture, a: Value, b: Value) -> bool:
    """a == b as a Python bool; an object is equal to itself. Errors: NeedsUserCode."""
    if a is b:
        return not (isinstance(a, Const) and a.obj != a.obj)
    if user_method(cap, a, "__eq__") or user_method(cap, b, "__eq__"):
        raise NeedsUserCode
    if _is_namespace(a) and _is_namespace(b):
        a, b = vars_of(cap, a), vars_of(cap, b)  # type: ignore[arg-type]
    a, b = payload(a), payload(b)
    for x in (a, b):
        if isinstance(x, InstanceValue) and compares_in_c(x.klass):
            raise refuse("W107", f"comparison of a {x.klass.__name__}", cap.loc())
    if isinstance(a, SizeValue) or isinstance(b, SizeValue):
        answer = cap.sizes.compute(operator.eq, (a, b))
        if answer is not NotImplemented:
            return bool(answer)
    match a, b:
        case (ObjectId(), _) | (_, ObjectId()):
            return a is b  # nobody knows another number that it could be
        case (Const(), Const()):
            need_frozen(cap, a)
            need_frozen(cap, b)
            return bool(a.obj == b.obj)
        case (ArrayValue(), _) | (_, ArrayValue()):
            raise untold(cap)
        case (TensorValue(), _) | (_, TensorValue()):
            if _never_equal(a, b):
                return False
            raise refuse("W101", "two Tensors are compared inside a container", cap.loc())
        case (ListValue(), ListValue()) if a.cls() is not b.cls():
            return False
        case (ListValue(items=left), ListValue(items=right)) | (
            TupleValue(items=left), TupleValue(items=right)):  # fmt: skip
            return len(left) == len(right) and all(
                _same_or_equal(cap, cap.force(x), cap.force(y))
                for x, y in zip(left, right, strict=True)
            )
        case (DictValue(), DictValue()):
            complete(cap, a)
            complete(cap, b)
            if a.kind is b.kind is collections.OrderedDict and list(a.items) != list(b.items):
                return False
            return a.items.keys() == b.items.keys() and all(
                _same_or_equal(cap, cap.force(v), cap.force(b.items[k]))
                for k, v in a.items.items()
            )
        case (SetValue() | ViewValue(), SetValue() | ViewValue()):
            return set(keys_of(cap, a)) == set(keys_of(cap, b))
        case (BoundValue(), BoundValue()):
            return a.self_ is b.self_ and equal(cap, a.func, b.func)
    if isinstance(a, LateText) or isinstance(b, LateText):
        raise late_text(cap)
    try:
        return bool(constant(cap.unwrap(a)) == constant(cap.unwrap(b)))
    except NotConstant:
        guard_distinct(cap, a, b)
        return False


def _is_namespace(x: Value) -> bool:
    return isinstance(x, InstanceValue) and x.klass is types.SimpleNamespace


def compares_in_c(kind: type) -> bool:
    """Whether a class has an equality of its own that is written in C."""
    found = mro_lookup(kind, "__eq__")
    plain = (object, types.SimpleNamespace)
    return isinstance(found, types.WrapperDescriptorType) and found.__objclass__ not in plain


def _same_or_equal(cap: Capture, a: Value, b: Value) -> bool:
    """How containers compare their items: an object is equal to itself, NaN too."""
    plain = isinstance(a, Const) and isinstance(b, Const) and SizeValue not in (type(a), type(b))
    is_one = plain and a.obj is b.obj  # type: ignore[attr-defined]
    return a is b or is_one or equal(cap, a, b)


def contains(cap: Capture, container: Value, item: Value, cont: Callable[[bool], None]) -> None:
    """item in container."""
    hook = user_method(cap, container, "__contains__")
    if hook is not None:
        cap.call(Const(hook), [container, item], {}, lambda v: truth(cap, v, cont))
        return
    box = payload(container)
    if user_method(cap, container, "__iter__") or isinstance(
            box, IteratorValue | GeneratorValue) or (
            box is container and user_method(cap, container, "__getitem__")):  # fmt: skip
        cap.call(Const(polyfills.contains_), [container, item], {}, lambda v: truth(cap, v, cont))
        return
    late = isinstance(item, LateNumber) and not item.fixed and type(item.now) is not str
    known = _late_member(cap, box, item) if late else None
    if known is not None:
        cont(known)
        return
    match box:
        case DictValue():
            cont(has_key(cap, box, filed_key(cap, item)))
        case SetValue():
            cont(filed_key(cap, item) in box.items)
        case ViewValue() if box.what == "keys":
            cont(has_key(cap, box.of, filed_key(cap, item)))
        case ViewValue():
            cap.call(Const(polyfills.contains_), [container, item], {},
                     lambda v: truth(cap, v, cont))  # fmt: skip
        case ListValue() | TupleValue():
            try:
                found = any(x is item or equal(cap, x, item) for x in cap.force_items(box.items))
            except NeedsUserCode:
                cap.call(Const(polyfills.contains_), [box, item], {},
                         lambda v: truth(cap, v, cont))  # fmt: skip
                return
            cont(found)
        case ArrayValue():
            raise untold(cap)
        case TensorValue():
            raise refuse("W101", "membership in a Tensor", cap.loc())
        case LateText():
            raise late_text(cap)
        case Const():
            need_frozen(cap, box)
            try:
                cont(constant(item) in box.obj)  # type: ignore[operator]
            except NotConstant:
                raise refuse("W107", f"membership of a {item.cls().__name__}",
                             cap.loc()) from None  # fmt: skip
            except TypeError as error:
                raise raised(TypeError, *error.args) from None
        case OwnedValue():
            of_owned(cap, operator.contains, [box, item], lambda v: truth(cap, v, cont))
        case _:
            kind = container.cls().__name__
            special = "__iter__" if hasattr(container.cls(), "__iter__") else "__contains__"
            raise lacking(cap, container, special, f"argument of type '{kind}' is not iterable")


def _late_member(cap: Capture, box: Value, item: Any) -> bool | None:
    """Whether a number that changes is in a container of constants; None if it is none."""
    try:
        keys = _constants_in(cap, box)
    except (NotConstant, TypeError):
        return None
    plain = keys is not None and all(type(k) in _PLAIN_KEYS for k in keys)
    return cap.late.member(item, frozenset(keys)) if keys is not None and plain else None


_PLAIN_KEYS = (int, float, bool, str, type(None))


_MOST_KEYS = 100  # that are guarded for the sake of one


def _constants_in(cap: Capture, box: Value) -> list[object] | None:
    match box:
        case DictValue():
            outside = box.real if isinstance(box.real, dict) else {}
            if len(outside) > _MOST_KEYS:
                return None
            complete(cap, box)
            return [constant(box.keys[k]) for k in box.items]
        case ViewValue() if box.what == "keys":
            return _constants_in(cap, box.of)
        case ListValue() | TupleValue():
            return [constant(x) for x in cap.force_items(box.items)]
        case SetValue():
            return [constant(x) for x in box.items.values()]
    return None
