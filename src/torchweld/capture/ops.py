"""Python's operators on abstract values: truth, arithmetic, comparison, items, iteration."""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.base.errors import GraphBreak
from torchweld.capture import polyfills
from torchweld.capture.arrays.operators import (
    array_binary,
    array_length,
    array_unary,
    number_of,
    untold,
)
from torchweld.capture.attrs import MISSING, from_python, mro_lookup, watch_class
from torchweld.capture.numbers import (
    buffer_decide,
    draw_decide,
    is_graph_number,
    number_binary,
    number_call,
    number_decide,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.symbolic import is_varying, number_value
from torchweld.capture.tables import METHODS
from torchweld.capture.tensors import tensor_binary
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    DictValue,
    InstanceValue,
    LateText,
    ListValue,
    Mutable,
    NotConstant,
    SetValue,
    SizeValue,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
    boolean,
    constant,
)
from torchweld.capture.values.owned import OwnedValue
from torchweld.capture.values.sequences import DequeValue, GrowingList, UnreadTuple
from torchweld.capture.wrap import complete, file_key, need_frozen
from torchweld.ir.source import Applied, Source

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


def user_method(cap: Capture, x: Value, name: str) -> Any:
    """A special method written in Python, or one of C under another name; or None."""
    if isinstance(x, InstanceValue | TupleValue | Const):
        kind = x.cls()
        raw = mro_lookup(kind, name)
        if isinstance(x, InstanceValue):
            watch_class(cap, kind)
        if isinstance(raw, types.FunctionType):
            flag = isinstance(x, Const) and raw.__module__ == "enum" and name in _OF_FLAGS
            return None if flag else raw
        if isinstance(raw, _OF_C) and raw.__name__ != name:
            return raw  # `__getitem__ = dict.get`
    return None


_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType)


# of members of an enum.Flag, done for real: they make a member at most, which then stays
_OF_FLAGS = ("__or__", "__and__", "__xor__", "__ror__", "__rand__", "__rxor__", "__invert__",
             "__contains__", "__bool__")  # fmt: skip


def lacking(cap: Capture, x: Value, special: str, *message: str) -> Exception:
    """TypeError for what a value cannot do. A GraphBreak if its class can, in a way that is not
    known here."""
    if mro_lookup(x.cls(), special) not in (MISSING, None):
        return refuse("W107", f"{special} of a {x.cls().__name__}", cap.loc())
    return raised(TypeError, *message)


def payload(x: Value) -> Value:
    """The built-in part of an instance of a subclass of a built-in container."""
    return x.payload if isinstance(x, InstanceValue) and x.payload is not None else x


_HEAP_TYPE = 1 << 9


def changed(cap: Capture, box: Mutable) -> None:
    """A container was changed."""
    cap.mark(box)


def late_text(cap: Capture) -> GraphBreak:
    return refuse("W102", "a text that shows a Tensor is looked at", cap.loc())


# ----------------------------------------------------------------------- truth
def truth(cap: Capture, x: Value, cont: Callable[[bool], None]) -> None:
    """bool(x), given to `cont`. Errors: GraphBreak W101 for a tensor."""
    hook = user_method(cap, x, "__bool__") or (
        None if isinstance(x, Const) else user_method(cap, x, "__len__")
    )
    if hook is None:
        cont(plain_truth(cap, payload(x)))
        return

    def told(v: Value) -> None:
        if hook.__name__ == "__bool__" and not issubclass(v.cls(), bool):
            kind = v.cls().__name__
            raise raised(TypeError, f"__bool__ should return bool, returned {kind}")
        truth(cap, check_length(v) if hook.__name__ == "__len__" else v, cont)

    cap.call(Const(hook), [x], {}, told)


def check_length(n: Value) -> Value:
    """What a user's __len__ gives. Errors: Raised if that is no length."""
    if type(n) is Const and not (isinstance(n.obj, int) and 0 <= n.obj <= sys.maxsize):
        real_call(lambda: len(Sized(n.obj)))
    return n


def check_index(n: Value) -> Value:
    """What a user's __index__ gives. Errors: Raised if that is no integer."""
    if not issubclass(n.cls(), int):
        raise raised(TypeError, f"__index__ returned non-int (type {n.cls().__name__})")
    return n


def check_iterator(made: Value) -> Value:
    """What a user's __iter__ gives. Errors: Raised if that is no iterator."""
    kind = made.cls()
    if not hasattr(kind, "__next__"):
        raise raised(TypeError, f"iter() returned non-iterator of type '{kind.__name__}'")
    return made


class Sized:
    """Something with a length."""

    def __init__(self, n: object) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n  # type: ignore[return-value]


def plain_truth(cap: Capture, x: Value) -> bool:
    """bool(x) where no user code runs."""
    if is_graph_number(x):
        return number_decide(cap, operator.ne, x, Const(0))
    late = cap.late.decide("!=", x, Const(0))
    if late is not None:
        return bool(late)
    match x:
        case Const() if is_varying(x):
            number = cap.sizes.as_number(x)
            return number if type(number) is bool else bool(number != 0)
        case Const():
            if type(x.obj).__flags__ & _HEAP_TYPE or hasattr(x.obj, "__len__"):
                need_frozen(cap, x)
            return bool(x.obj)
        case TensorValue():
            if x.fake.numel() != 1:
                many = "more than one" if x.fake.numel() else "no"
                raise raised(RuntimeError, f"Boolean value of Tensor with {many} value is "
                                           "ambiguous")  # fmt: skip
            known = draw_decide(x)
            if known is None:
                known = buffer_decide(cap, x)
            if known is not None:
                return known
            raise refuse("W101", "the value is known only when the graph runs", cap.loc())
        case LateText():
            raise late_text(cap)
        case ArrayValue():
            raise untold(cap)
        case ListValue() | TupleValue() | DictValue() | ViewValue():
            n = counted(cap, x)
            return plain_truth(cap, n) if is_varying(n) else length(cap, x) > 0
        case SetValue():
            return bool(x.items)
        case InstanceValue() if any(mro_lookup(x.klass, n) is not MISSING
                                    for n in ("__bool__", "__len__")):  # fmt: skip
            raise refuse("W107", f"bool() of a {x.klass.__name__}", cap.loc())
        case _:
            return True


def counted(cap: Capture, x: Value) -> Value:
    """len(x) where no user code runs: a number that varies if it did so before."""
    box = x.of if isinstance(x, ViewValue) else x
    place = _place_of_length(cap, box)
    if place is None:
        return Const(length(cap, x))
    n = cap.wrap(len(box.real), place)  # type: ignore[attr-defined]
    added = len(box.tail) if isinstance(box, GrowingList) else 0  # behind what the frame was given
    return (cap.late.binary("+", n, Const(added)) or n) if added else n


def _place_of_length(cap: Capture, x: Value) -> Source | None:
    """Where the length of a container is found that varies; None if it is known."""
    is_read = not (isinstance(x, GrowingList | UnreadTuple) and x.open is not None) and not (
        isinstance(x, DictValue) and not x.complete and not x.changed)  # fmt: skip
    if is_read or x.source is None:
        return None
    is_deque = isinstance(x, DequeValue)
    place = Applied.make(Applied.make(x.source, tuple) if is_deque else x.source, len)
    forgets = isinstance(x, DequeValue) and x.maxlen is not None and x.tail
    return place if place in cap.late.sources and not forgets else None


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
        case ArrayValue():
            return array_length(x)
        case LateText():
            raise late_text(cap)
        case Const() if hasattr(type(x.obj), "__len__"):
            need_frozen(cap, x)
            return len(x.obj)  # type: ignore[arg-type]
        case OwnedValue() if hasattr(x.klass, "__len__"):
            return len(x.twin)
        case _:
            raise lacking(cap, x, "__len__", f"object of type '{x.cls().__name__}' has no len()")


# ------------------------------------------------------------------ arithmetic
def binary(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None = None) -> None:
    """a <symbol> b, in-place forms included."""
    if isinstance(a, TensorValue):
        b = number_of(cap, a, b)
    if isinstance(a, ArrayValue) or isinstance(b, ArrayValue):
        cap.deliver(array_binary(cap, symbol, a, b), cont)
        return
    fn, special, reflected = BINARY[symbol]
    in_place = symbol.endswith("=")
    if isinstance(a, SizeValue) or isinstance(b, SizeValue):
        made = _of_sizes(cap, fn, a, b)
        if made is not None:
            cap.deliver(made, cont)
            return
    made = number_binary(cap, symbol, a, b) if is_graph_number(a, b) else None
    if made is not None:
        cap.deliver(made, cont)
        return
    hook = user_method(cap, a, special)
    if reflected and goes_first(b, a, reflected):
        after = user_method(cap, b, reflected)
        if after is not None:
            cap.call(Const(after), [b, a], {}, unless(cap, cont, lambda: binary(
                cap, symbol, a, b, cont) if hook is None else cap.call(
                    Const(hook), [a, b], {}, unless(cap, cont, lambda: _unsupported(
                        symbol, a, b)))))  # fmt: skip
            return
    if hook is not None:
        cap.call(Const(hook), [a, b], {}, _unless_not_implemented(cap, symbol, a, b, cont))
        return
    if symbol == "|" and any(says_its_keys(cap, x) for x in (a, b)) and (
            all(_of_dict(x.cls()) for x in (a, b))):  # fmt: skip
        cap.call(Const(polyfills.dict_or), [a, b], {}, cont)
        return
    if symbol in ("|", "|=") and any(map(_ordered, (a, b))):
        why = f"{symbol} of a {(a if _ordered(a) else b).cls().__name__}"
        raise refuse("W107", why, cap.loc())
    if in_place and not isinstance(a, TensorValue):
        if _in_place_container(cap, symbol, a, b, cont):
            return
        binary(cap, symbol[:-1], a, b, cont)
        return
    hook = user_method(cap, b, reflected) if reflected else None
    if hook is not None:
        if isinstance(a, TensorValue) and any(hasattr(b.cls(), n) for n in _TENSOR_LIKE):
            raise refuse("W107", f"a Tensor {symbol} a {b.cls().__name__}", cap.loc())
        cap.call(Const(hook), [b, a], {}, unless(cap, cont, lambda: _unsupported(symbol, a, b)))
        return
    if symbol == "%" and a.cls() is str:
        METHODS[(str, "__mod__")](cap, [a, b], {}, cont)
        return
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        tensor_binary(cap, fn, cap.unwrap(a), cap.unwrap(b), cont)
        return
    if _no_operator(cap, a, special) and (not reflected or _no_operator(cap, b, reflected)):
        _unsupported(symbol, a, b)
    plain_binary(cap, fn, payload(a), payload(b), cont)


def _ordered(x: Value) -> bool:
    """Whether C code makes another one of its class, or puts items in by its `__setitem__`."""
    return isinstance(x, InstanceValue) and issubclass(x.klass, collections.OrderedDict)


def _of_sizes(cap: Capture, fn: Any, *args: Value) -> Value | None:
    """An operator on numbers that are made of sizes; None if another operand is no number."""
    try:
        found = cap.sizes.compute(fn, args)
    except ArithmeticError as error:
        raise raised(type(error), *error.args) from None
    return None if found is NotImplemented else number_value(found)


# what makes a Tensor's own operator try to take an object
_TENSOR_LIKE = ("__torch_function__", "__array__", "__float__", "__index__", "__int__",
                "__complex__", "__bool__")  # fmt: skip


def goes_first(b: Value, a: Value, reflected: str) -> bool:
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


def unless(cap: Capture, cont: Cont | None, otherwise: Callable[[], None]) -> Cont:
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
        cap.call(Const(hook), [b, a], {}, unless(cap, cont, lambda: _unsupported(symbol, a, b)))

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
        case (DequeValue(), DequeValue()) if fn is operator.add:
            cap.deliver(DequeValue([*a.items, *b.items], a.maxlen), cont)
            return
        case (DequeValue(), Const(obj=int() as n)) if fn is operator.mul:
            cap.deliver(DequeValue(a.items * n, a.maxlen), cont)
            return
        case (ListValue(), ListValue()) if fn is operator.add and a.cls() is b.cls():
            cap.deliver(ListValue([*a.items, *b.items]), cont)
            return
        case (TupleValue(), TupleValue()) if fn is operator.add:
            cap.deliver(TupleValue([*a.items, *b.items], _kind_of_sum(a.kind, b.kind)), cont)
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
        case (SetValue() | ViewValue(), SetValue() | ViewValue()) | (
                ViewValue(), ListValue() | TupleValue() | DictValue()):  # fmt: skip
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


def _kind_of_sum(a: type, b: type) -> type:
    """What a tuple and a torch.Size give differs from version to version."""
    left, right = (torch.Size() if k is torch.Size else () for k in (a, b))
    return type(left + right)


_SET_OPS = {operator.or_: "union", operator.and_: "intersection", operator.sub: "difference",
            operator.xor: "symmetric_difference"}  # fmt: skip


def _of_dict(kind: type) -> bool:
    """Whether `|` of a class is that of dict."""
    return getattr(kind, "__or__", None) is dict.__or__


def says_its_keys(cap: Capture, x: Value) -> bool:
    """Whether C asks a dict for its keys and items, instead of copying what it holds."""
    return (isinstance(x, InstanceValue) and isinstance(x.payload, DictValue)
            and user_method(cap, x, "__iter__") is not None)  # fmt: skip


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
    made = _of_sizes(cap, fn, x) if isinstance(x, SizeValue) else number_call(cap, fn, [x])
    if made is not None:
        cap.deliver(made, cont)
    elif hook is not None:
        cap.call(Const(hook), [x], {}, cont)
    elif isinstance(x, ArrayValue):
        cap.deliver(array_unary(cap, symbol, x), cont)
    elif isinstance(x, TensorValue):
        cap.deliver(cap.builder.call("call_function", fn, [x], {}, cap.loc()), cont)
    else:
        need_frozen(cap, x)
        try:
            cap.deliver(real_call(fn, constant(x)), cont)
        except NotConstant:
            raise raised(TypeError, f"bad operand type for unary {symbol}") from None


def filed_key(cap: Capture, item: Value) -> object:
    try:
        return file_key(cap, item)
    except TypeError as error:
        raise raised(TypeError, *error.args) from None
