"""Python's operators on abstract values: truth, arithmetic, comparison, items, iteration."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture import polyfills
from torchweld.capture.attrs import MISSING, from_python, mro_lookup, watch_class
from torchweld.capture.identity import guard_distinct, same
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import METHODS
from torchweld.capture.tensors import tensor_binary
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    DequeValue,
    DictValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    LateText,
    ListValue,
    Mutable,
    NotConstant,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
    boolean,
    constant,
)
from torchweld.capture.wrap import complete, file_key, need_frozen, read_key

# symbol -> (function on real values, special method, reflected special method)
BINARY: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "+": (operator.add, "__add__", "__radd__"),
    "-": (operator.sub, "__sub__", "__rsub__"),
    "*": (operator.mul, "__mul__", "__rmul__"),
    "/": (operator.truediv, "__truediv__", "__rtruediv__"),
    "//": (operator.floordiv, "__floordiv__", "__rfloordiv__"),
    "%": (operator.mod, "__mod__", "__rmod__"),
    "**": (operator.pow, "__pow__", "__rpow__"),
    "@": (operator.matmul, "__matmul__", "__rmatmul__"),
    "&": (operator.and_, "__and__", "__rand__"),
    "|": (operator.or_, "__or__", "__ror__"),
    "^": (operator.xor, "__xor__", "__rxor__"),
    "<<": (operator.lshift, "__lshift__", "__rlshift__"),
    ">>": (operator.rshift, "__rshift__", "__rrshift__"),
    "+=": (operator.iadd, "__iadd__", ""),
    "-=": (operator.isub, "__isub__", ""),
    "*=": (operator.imul, "__imul__", ""),
    "/=": (operator.itruediv, "__itruediv__", ""),
    "//=": (operator.ifloordiv, "__ifloordiv__", ""),
    "%=": (operator.imod, "__imod__", ""),
    "**=": (operator.ipow, "__ipow__", ""),
    "@=": (operator.imatmul, "__imatmul__", ""),
    "&=": (operator.iand, "__iand__", ""),
    "|=": (operator.ior, "__ior__", ""),
    "^=": (operator.ixor, "__ixor__", ""),
    "<<=": (operator.ilshift, "__ilshift__", ""),
    ">>=": (operator.irshift, "__irshift__", ""),
}
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
}


def user_method(cap: Capture, x: Value, name: str) -> types.FunctionType | None:
    """A special method written in Python, or None."""
    if isinstance(x, InstanceValue | TupleValue | Const):
        kind = x.cls()
        raw = mro_lookup(kind, name)
        if isinstance(x, InstanceValue):
            watch_class(cap, kind)
        if isinstance(raw, types.FunctionType):
            return raw
    return None


def payload(x: Value) -> Value:
    """The built-in part of an instance of a subclass of a built-in container."""
    return x.payload if isinstance(x, InstanceValue) and x.payload is not None else x


_HEAP_TYPE = 1 << 9


class NeedsUserCode(Exception):
    """A comparison inside a container is written by the user: polyfills do it instead."""


def changed(cap: Capture, box: Mutable) -> None:
    """A container was changed."""
    cap.mark(box)


# ----------------------------------------------------------------------- truth
def truth(cap: Capture, x: Value, cont: Callable[[bool], None]) -> None:
    """bool(x), given to `cont`. Errors: GraphBreak W101 for a tensor."""
    hook = user_method(cap, x, "__bool__") or (
        None if isinstance(x, Const) else user_method(cap, x, "__len__")
    )
    if hook is not None:
        cap.call(Const(hook), [x], {}, lambda v: truth(cap, v, cont))
        return
    cont(plain_truth(cap, payload(x)))


def plain_truth(cap: Capture, x: Value) -> bool:
    """bool(x) where no user code runs."""
    match x:
        case Const():
            if type(x.obj).__flags__ & _HEAP_TYPE or hasattr(x.obj, "__len__"):
                need_frozen(cap, x)
            return bool(x.obj)
        case TensorValue():
            if x.fake.numel() != 1:
                many = "more than one" if x.fake.numel() else "no"
                raise raised(RuntimeError, f"Boolean value of Tensor with {many} value is "
                                           "ambiguous")  # fmt: skip
            raise refuse("W101", "the value is known only when the graph runs", cap.loc())
        case LateText():
            raise refuse("W102", "a text that shows a Tensor is looked at", cap.loc())
        case ListValue() | TupleValue():
            return bool(x.items)
        case DictValue():
            return length(cap, x) > 0
        case SetValue():
            return bool(x.items)
        case ViewValue():
            return length(cap, x.of) > 0
        case _:
            return True


def length(cap: Capture, x: Value) -> int:
    """len(x) where no user code runs. Errors: Raised(TypeError)."""
    match x:
        case ListValue() | TupleValue() | SetValue():
            return len(x.items)
        case DictValue():
            if not x.complete and not x.changed and x.source is not None:
                assert isinstance(x.real, dict)
                cap.guard("length", x.source, len(x.real))
                return len(x.real)
            complete(cap, x)
            return len(x.items)
        case ViewValue():
            return length(cap, x.of)
        case TensorValue():
            if x.fake.ndim == 0:
                raise raised(TypeError, "len() of a 0-d tensor")
            return int(x.fake.shape[0])
        case Const() if hasattr(type(x.obj), "__len__"):
            need_frozen(cap, x)
            return len(x.obj)  # type: ignore[arg-type]
        case _:
            raise raised(TypeError, f"object of type '{x.cls().__name__}' has no len()")


# ------------------------------------------------------------------ arithmetic
def binary(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None = None) -> None:
    """a <symbol> b, in-place forms included."""
    fn, special, reflected = BINARY[symbol]
    in_place = symbol.endswith("=")
    hook = user_method(cap, a, special)
    if reflected and _goes_first(b, a, reflected):
        after = user_method(cap, b, reflected)
        if after is not None:
            cap.call(Const(after), [b, a], {}, _unless(cap, cont, lambda: binary(
                cap, symbol, a, b, cont) if hook is None else cap.call(
                    Const(hook), [a, b], {}, _unless(cap, cont, lambda: _unsupported(
                        symbol, a, b)))))  # fmt: skip
            return
    if hook is not None:
        cap.call(Const(hook), [a, b], {}, _unless_not_implemented(cap, symbol, a, b, cont))
        return
    if in_place and not isinstance(a, TensorValue):
        if _in_place_container(cap, symbol, a, b, cont):
            return
        binary(cap, symbol[:-1], a, b, cont)
        return
    hook = user_method(cap, b, reflected) if reflected else None
    if hook is not None:
        if isinstance(a, TensorValue) and any(hasattr(b.cls(), n) for n in _TENSOR_LIKE):
            raise refuse("W107", f"a Tensor {symbol} a {b.cls().__name__}", cap.loc())
        cap.call(Const(hook), [b, a], {}, _unless(cap, cont, lambda: _unsupported(symbol, a, b)))
        return
    if symbol == "%" and a.cls() is str:
        METHODS[(str, "__mod__")](cap, [a, b], {}, cont)
        return
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        tensor_binary(cap, fn, a, b, cont)
        return
    if _no_operator(cap, a, special) and (not reflected or _no_operator(cap, b, reflected)):
        _unsupported(symbol, a, b)
    plain_binary(cap, fn, payload(a), payload(b), cont)


# what makes a Tensor's own operator try to take an object
_TENSOR_LIKE = ("__torch_function__", "__array__", "__float__", "__index__", "__int__",
                "__complex__", "__bool__")  # fmt: skip


def _goes_first(b: Value, a: Value, reflected: str) -> bool:
    """Whether b's reflected method is asked first: its class is a subclass that overrides it."""
    kind, base = b.cls(), a.cls()
    return kind is not base and issubclass(kind, base) and (
        mro_lookup(kind, reflected) is not mro_lookup(base, reflected))  # fmt: skip


def _no_operator(cap: Capture, x: Value, special: str) -> bool:
    return isinstance(x, InstanceValue) and x.payload is None and (
        mro_lookup(x.klass, special) is MISSING)  # fmt: skip


def _unsupported(symbol: str, a: Value, b: Value) -> None:
    shown = "** or pow()" if symbol == "**" else symbol
    raise raised(TypeError, f"unsupported operand type(s) for {shown}: '{a.cls().__name__}' and "
                            f"'{b.cls().__name__}'")  # fmt: skip


def _unless(cap: Capture, cont: Cont | None, otherwise: Callable[[], None]) -> Cont:
    """Deliver a result unless it is NotImplemented."""

    def check(result: Value) -> None:
        if isinstance(result, Const) and result.obj is NotImplemented:
            otherwise()
        else:
            cap.deliver(result, cont)

    return check


def _unless_not_implemented(cap: Capture, symbol: str, a: Value, b: Value,
                            cont: Cont | None) -> Cont:  # fmt: skip
    def check(result: Value) -> None:
        if not (isinstance(result, Const) and result.obj is NotImplemented):
            cap.deliver(result, cont)
            return
        if symbol.endswith("="):
            binary(cap, symbol[:-1], a, b, cont)
            return
        hook = user_method(cap, b, BINARY[symbol][2]) if a.cls() is not b.cls() else None
        if hook is None:
            _unsupported(symbol, a, b)
            return
        cap.call(Const(hook), [b, a], {}, _unless(cap, cont, lambda: _unsupported(symbol, a, b)))

    return check


def _in_place_container(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> bool:
    """list +=, dict |=, set |= &= -= ^=: the object itself changes."""
    target = payload(a)
    name = {"+=": "extend", "|=": "update", "&=": "intersection_update", "*=": "__imul__",
            "-=": "difference_update", "^=": "symmetric_difference_update"}.get(symbol)  # fmt: skip
    if name is None or not isinstance(target, ListValue | DictValue | SetValue):
        return False
    if isinstance(target, SetValue) and target.kind is frozenset:
        return False
    handler = METHODS.get((target.cls(), name)) or (
        METHODS.get((dict, name)) if isinstance(target, DictValue) else None
    )
    if handler is None:
        return False
    handler(cap, [target, b], {}, lambda _: cap.deliver(a, cont))
    return True


def plain_binary(cap: Capture, fn: Any, a: Value, b: Value, cont: Cont | None) -> None:
    """An operator on containers and constants."""
    match a, b:
        case (Const() | LateText(), Const() | LateText()) if fn is operator.add and (
                LateText in (type(a), type(b)) and a.cls() is b.cls()):  # fmt: skip
            METHODS[(str, "__add__")](cap, [a, b], {}, cont)
            return
        case (ListValue(), ListValue()) if fn is operator.add:
            cap.deliver(ListValue([*a.items, *b.items]), cont)
            return
        case (TupleValue(), TupleValue()) if fn is operator.add:
            kind = torch.Size if a.kind is torch.Size and b.kind is torch.Size else tuple
            cap.deliver(TupleValue([*a.items, *b.items], kind), cont)
            return
        case (ListValue(), Const(obj=int() as n)) if fn is operator.mul:
            cap.deliver(ListValue(a.items * n), cont)
            return
        case (TupleValue(), Const(obj=int() as n)) if fn is operator.mul:
            cap.deliver(TupleValue(a.items * n, a.kind if a.kind is torch.Size else tuple), cont)
            return
        case (Const(obj=int()), ListValue() | TupleValue()) if fn is operator.mul:
            plain_binary(cap, fn, b, a, cont)
            return
        case (DictValue(), DictValue()) if fn is operator.or_:
            cap.deliver(merge_dicts(cap, a, b), cont)
            return
        case (SetValue() | ViewValue(), SetValue() | ViewValue()):
            handler = METHODS.get((set, _SET_OPS.get(fn, "")))
            if handler is not None:
                handler(cap, [a, b], {}, cont)
                return
    need_frozen(cap, a)
    need_frozen(cap, b)
    try:
        left, right = constant(cap.unwrap(a)), constant(cap.unwrap(b))
    except NotConstant:
        raise refuse("W107", f"{fn.__name__} of {a.cls().__name__} and {b.cls().__name__}",
                     cap.loc()) from None  # fmt: skip
    cap.deliver(real_call(fn, left, right), cont)


_SET_OPS = {operator.or_: "union", operator.and_: "intersection", operator.sub: "difference",
            operator.xor: "symmetric_difference"}  # fmt: skip


def merge_dicts(cap: Capture, a: DictValue, b: DictValue) -> DictValue:
    complete(cap, a)
    complete(cap, b)
    out = DictValue(a.kind)
    out.factory = a.factory
    for d in (a, b):
        out.items.update(d.items)
        out.keys.update({k: v for k, v in d.keys.items() if k not in out.keys})
    return out


def real_call(fn: Any, *args: Any) -> Value:
    """fn on real constants. Errors: Raised with what it raises."""
    try:
        return from_python(fn(*args))
    except Exception as error:
        raise raised(type(error), *error.args) from None


UNARY: dict[str, tuple[Any, str]] = {
    "-": (operator.neg, "__neg__"), "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}  # fmt: skip


def unary(cap: Capture, symbol: str, x: Value, cont: Cont | None = None) -> None:
    """-x, +x, ~x, not x, bool(x)."""
    if symbol in ("not", "bool"):
        flip = symbol == "not"
        truth(cap, x, lambda t: cap.deliver(boolean(t != flip), cont))
        return
    fn, special = UNARY[symbol]
    hook = user_method(cap, x, special)
    if hook is not None:
        cap.call(Const(hook), [x], {}, cont)
    elif isinstance(x, TensorValue):
        cap.deliver(cap.builder.call("call_function", fn, [x], {}, cap.loc()), cont)
    else:
        try:
            cap.deliver(real_call(fn, constant(x)), cont)
        except NotConstant:
            raise raised(TypeError, f"bad operand type for unary {symbol}") from None


# ------------------------------------------------------------------ comparison
def compare(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None = None) -> None:
    """a <symbol> b for the six comparisons."""
    fn, special, reflected = COMPARE[symbol]
    hook = user_method(cap, a, special)
    if symbol == "!=" and _ne_by_eq(cap, a, b, cont):
        return
    if _goes_first(b, a, reflected) and user_method(cap, b, reflected) is not None:
        cap.call(Const(user_method(cap, b, reflected)), [b, a], {}, _unless(
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


def _never_equal(a: Value, b: Value) -> bool:
    """A tensor compared with something that Tensor.__eq__ does not take."""
    other = b if isinstance(a, TensorValue) else a
    if isinstance(other, TensorValue):
        return False
    return not (isinstance(other, Const) and isinstance(other.obj, bool | int | float | complex))


def _compare_fallback(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> Cont:
    """After a's method: b's reflected one, then identity."""

    def reflect() -> None:
        hook = user_method(cap, b, COMPARE[symbol][2])
        end = _compare_end(cap, symbol, a, b, cont)
        if hook is None:
            end(Const(NotImplemented))
        else:
            cap.call(Const(hook), [b, a], {}, end)

    return _unless(cap, cont, reflect)


def _compare_end(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> Cont:
    def end() -> None:
        if symbol not in ("==", "!="):
            _not_ordered(symbol, a, b)
        cap.deliver(boolean(same(cap, a, b) == (symbol == "==")), cont)

    return _unless(cap, cont, end)


def _not_ordered(symbol: str, a: Value, b: Value) -> None:
    raise raised(TypeError, f"'{symbol}' not supported between instances of "
                 f"'{a.cls().__name__}' and '{b.cls().__name__}'")  # fmt: skip


def plain_compare(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> None:
    """A comparison that runs no user code, element by element for containers."""
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
    a, b = payload(a), payload(b)
    match a, b:
        case (Const(), Const()):
            need_frozen(cap, a)
            need_frozen(cap, b)
            return bool(a.obj == b.obj)
        case (TensorValue(), _) | (_, TensorValue()):
            if _never_equal(a, b):
                return False
            raise refuse("W101", "two Tensors are compared inside a container", cap.loc())
        case (ListValue(), ListValue()) if a.cls() is not b.cls() and DequeValue in (
                type(a), type(b)):  # fmt: skip
            return False
        case (ListValue(items=left), ListValue(items=right)) | (
            TupleValue(items=left), TupleValue(items=right)):  # fmt: skip
            return len(left) == len(right) and all(
                equal(cap, cap.force(x), cap.force(y)) for x, y in zip(left, right, strict=True)
            )
        case (DictValue(), DictValue()):
            complete(cap, a)
            complete(cap, b)
            if a.kind is b.kind is collections.OrderedDict and list(a.items) != list(b.items):
                return False
            return a.items.keys() == b.items.keys() and all(
                equal(cap, cap.force(v), cap.force(b.items[k])) for k, v in a.items.items()
            )
        case (SetValue() | ViewValue(), SetValue() | ViewValue()):
            return set(keys_of(cap, a)) == set(keys_of(cap, b))
        case (BoundValue(), BoundValue()):
            return a.self_ is b.self_ and equal(cap, a.func, b.func)
    if isinstance(a, LateText) or isinstance(b, LateText):
        raise refuse("W102", "a text that shows a Tensor is compared", cap.loc())
    try:
        return bool(constant(cap.unwrap(a)) == constant(cap.unwrap(b)))
    except NotConstant:
        guard_distinct(cap, a, b)
        return False


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
    match box:
        case DictValue():
            cont(read_key(cap, box, filed_key(cap, item)) is not None)
        case SetValue():
            cont(filed_key(cap, item) in box.items)
        case ViewValue() if box.what == "keys":
            cont(read_key(cap, box.of, filed_key(cap, item)) is not None)
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
        case TensorValue():
            raise refuse("W101", "membership in a Tensor", cap.loc())
        case Const():
            need_frozen(cap, box)
            try:
                cont(constant(item) in box.obj)  # type: ignore[operator]
            except NotConstant:
                raise refuse("W107", f"membership of a {item.cls().__name__}",
                             cap.loc()) from None  # fmt: skip
            except TypeError as error:
                raise raised(TypeError, *error.args) from None
        case _:
            kind = container.cls().__name__
            raise raised(TypeError, f"argument of type '{kind}' is not iterable")


def filed_key(cap: Capture, item: Value) -> object:
    try:
        return file_key(cap, item)
    except TypeError as error:
        raise raised(TypeError, *error.args) from None
