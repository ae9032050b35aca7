"""Python's operators on abstract values: truth, arithmetic, comparison, items, iteration."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.attrs import from_python, mro_lookup
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import METHODS
from torchweld.capture.tensors import tensor_binary
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    DictValue,
    InstanceValue,
    ListValue,
    NotConstant,
    SetValue,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
    boolean,
    constant,
    hash_key,
)
from torchweld.capture.wrap import complete, read_key

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


def user_method(x: Value, name: str) -> types.FunctionType | None:
    """A special method written in Python, or None."""
    if isinstance(x, InstanceValue | TupleValue | Const):
        raw = mro_lookup(x.cls(), name)
        if isinstance(raw, types.FunctionType):
            return raw
    return None


def payload(x: Value) -> Value:
    """The built-in part of an instance of a subclass of a built-in container."""
    return x.payload if isinstance(x, InstanceValue) and x.payload is not None else x


# ----------------------------------------------------------------------- truth
def truth(cap: Capture, x: Value, cont: Callable[[bool], None]) -> None:
    """bool(x), given to `cont`. Errors: GraphBreak W101 for a tensor."""
    hook = user_method(x, "__bool__") or (
        None if isinstance(x, Const) else user_method(x, "__len__")
    )
    if hook is not None:
        cap.call(Const(hook), [x], {}, lambda v: truth(cap, v, cont))
        return
    cont(plain_truth(cap, payload(x)))


def plain_truth(cap: Capture, x: Value) -> bool:
    """bool(x) where no user code runs."""
    match x:
        case Const():
            if isinstance(x.obj, torch.nn.Module):
                return True
            return bool(x.obj)
        case TensorValue():
            if x.fake.numel() != 1:
                raise raised(RuntimeError, "Boolean value of Tensor with "
                             f"{'more than one' if x.fake.numel() else 'no'} value is ambiguous")  # fmt: skip
            raise refuse("W101", "the value is known only when the graph runs", cap.loc())
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
        case Const() if hasattr(x.obj, "__len__"):
            return len(x.obj)
        case _:
            raise raised(TypeError, f"object of type '{x.cls().__name__}' has no len()")


# ------------------------------------------------------------------ arithmetic
def binary(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None = None) -> None:
    """a <symbol> b, in-place forms included."""
    fn, special, reflected = BINARY[symbol]
    in_place = symbol.endswith("=")
    hook = user_method(a, special)
    if hook is not None:
        cap.call(Const(hook), [a, b], {}, _unless_not_implemented(cap, symbol, a, b, cont))
        return
    if in_place and not isinstance(a, TensorValue):
        if _in_place_container(cap, symbol, a, b, cont):
            return
        binary(cap, symbol[:-1], a, b, cont)
        return
    hook = user_method(b, reflected) if reflected else None
    if hook is not None:
        cap.call(Const(hook), [b, a], {}, cont)
        return
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        tensor_binary(cap, fn, a, b, cont)
        return
    plain_binary(cap, fn, payload(a), payload(b), cont)


def _unless_not_implemented(cap: Capture, symbol: str, a: Value, b: Value,
                            cont: Cont | None) -> Cont:  # fmt: skip
    def check(result: Value) -> None:
        if not (isinstance(result, Const) and result.obj is NotImplemented):
            cap.deliver(result, cont)
            return
        if symbol.endswith("="):
            binary(cap, symbol[:-1], a, b, cont)
            return
        hook = user_method(b, BINARY[symbol][2])
        if hook is None:
            raise raised(TypeError, f"unsupported operand type(s) for {symbol}")
        cap.call(Const(hook), [b, a], {}, cont)

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
        case (ListValue(), ListValue()) if fn is operator.add:
            cap.deliver(ListValue([*a.items, *b.items]), cont)
            return
        case (TupleValue(), TupleValue()) if fn is operator.add:
            kind = torch.Size if a.kind is torch.Size and b.kind is torch.Size else tuple
            cap.deliver(TupleValue([*a.items, *b.items], kind), cont)
            return
        case (ListValue(), Const(obj=int())) if fn is operator.mul:
            cap.deliver(ListValue(a.items * b.obj), cont)
            return
        case (TupleValue(), Const(obj=int())) if fn is operator.mul:
            cap.deliver(TupleValue(a.items * b.obj, a.kind), cont)
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
    hook = user_method(x, special)
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
    hook = user_method(a, special)
    if hook is not None and hook is not object:
        cap.call(Const(hook), [a, b], {}, _compare_fallback(cap, symbol, a, b, cont))
        return
    hook = user_method(b, reflected)
    if hook is not None:
        cap.call(Const(hook), [b, a], {}, cont)
        return
    if (isinstance(a, TensorValue) or isinstance(b, TensorValue)) and not (
        symbol in ("==", "!=") and _never_equal(a, b)
    ):
        tensor_binary(cap, fn, a, b, cont)
        return
    plain_compare(cap, symbol, payload(a), payload(b), cont)


def _never_equal(a: Value, b: Value) -> bool:
    """A tensor compared with something that Tensor.__eq__ does not take."""
    other = b if isinstance(a, TensorValue) else a
    if isinstance(other, TensorValue):
        return False
    return not (isinstance(other, Const) and isinstance(other.obj, bool | int | float | complex))


def _compare_fallback(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> Cont:
    def check(result: Value) -> None:
        if not (isinstance(result, Const) and result.obj is NotImplemented):
            cap.deliver(result, cont)
        elif symbol in ("==", "!="):
            cap.deliver(boolean((a is b) == (symbol == "==")), cont)
        else:
            raise raised(TypeError, f"'{symbol}' not supported between instances of "
                         f"'{a.cls().__name__}' and '{b.cls().__name__}'")  # fmt: skip

    return check


def plain_compare(cap: Capture, symbol: str, a: Value, b: Value, cont: Cont | None) -> None:
    """A comparison that runs no user code, element by element for containers."""
    if symbol in ("==", "!="):
        cap.deliver(boolean(equal(cap, a, b) == (symbol == "==")), cont)
        return
    if isinstance(a, SetValue | ViewValue) and isinstance(b, SetValue | ViewValue):
        left, right = set(keys_of(cap, a)), set(keys_of(cap, b))
        cap.deliver(boolean(COMPARE[symbol][0](left, right)), cont)
        return
    try:
        left_c, right_c = constant(cap.unwrap(a)), constant(cap.unwrap(b))
    except NotConstant:
        raise refuse("W107", f"{symbol} of {a.cls().__name__} and {b.cls().__name__}",
                     cap.loc()) from None  # fmt: skip
    cap.deliver(real_call(COMPARE[symbol][0], left_c, right_c), cont)


def keys_of(cap: Capture, x: Value) -> list[object]:
    """The hash keys of a set or of a dict's key view."""
    if isinstance(x, SetValue):
        return list(x.items)
    if isinstance(x, ViewValue) and x.what == "keys":
        complete(cap, x.of)
        return list(x.of.items)
    raise refuse("W107", f"set operation on {x.cls().__name__}", cap.loc())


def equal(cap: Capture, a: Value, b: Value) -> bool:
    """a == b as a Python bool, for values without user-written __eq__."""
    if a is b:
        return not isinstance(a, TensorValue) or True
    a, b = payload(a), payload(b)
    match a, b:
        case (Const(), Const()):
            return bool(a.obj == b.obj)
        case (TensorValue(), _) | (_, TensorValue()):
            if _never_equal(a, b):
                return False
            raise refuse("W101", "two Tensors are compared inside a container", cap.loc())
        case (ListValue(), ListValue()) | (TupleValue(), TupleValue()):
            return len(a.items) == len(b.items) and all(
                equal(cap, cap.force(x), cap.force(y))
                for x, y in zip(a.items, b.items, strict=True)
            )
        case (DictValue(), DictValue()):
            complete(cap, a)
            complete(cap, b)
            return a.items.keys() == b.items.keys() and all(
                equal(cap, cap.force(v), cap.force(b.items[k])) for k, v in a.items.items()
            )
        case (SetValue() | ViewValue(), SetValue() | ViewValue()):
            return set(keys_of(cap, a)) == set(keys_of(cap, b))
        case (BoundValue(), BoundValue()):
            return a.self_ is b.self_ and same(a.func, b.func)
    try:
        return bool(constant(cap.unwrap(a)) == constant(cap.unwrap(b)))
    except NotConstant:
        if user_method(a, "__eq__") or user_method(b, "__eq__"):
            raise refuse("W107", "user-written __eq__ inside a container", cap.loc()) from None
        return False


def same(a: Value, b: Value) -> bool:
    """a is b."""
    if isinstance(a, Const) and isinstance(b, Const):
        if isinstance(a.obj, int | float | str | bytes | tuple | complex):
            return type(a.obj) is type(b.obj) and bool(a.obj == b.obj)
        return a.obj is b.obj
    return a is b


def contains(cap: Capture, container: Value, item: Value, cont: Callable[[bool], None]) -> None:
    """item in container."""
    hook = user_method(container, "__contains__")
    if hook is not None:
        cap.call(Const(hook), [container, item], {}, lambda v: truth(cap, v, cont))
        return
    box = payload(container)
    match box:
        case DictValue():
            cont(read_key(cap, box, filed_key(item)) is not None)
        case SetValue():
            cont(filed_key(item) in box.items)
        case ViewValue() if box.what == "keys":
            cont(read_key(cap, box.of, filed_key(item)) is not None)
        case ListValue() | TupleValue():
            cont(any(x is item or equal(cap, x, item) for x in cap.force_items(box.items)))
        case TensorValue():
            raise refuse("W101", "membership in a Tensor", cap.loc())
        case Const():
            try:
                cont(constant(item) in box.obj)  # type: ignore[operator]
            except NotConstant:
                cont(False)
            except TypeError as error:
                raise raised(TypeError, *error.args) from None
        case _:
            raise refuse("W107", f"membership in {container.cls().__name__}", cap.loc())


def filed_key(item: Value) -> object:
    try:
        return hash_key(item)
    except TypeError as error:
        raise raised(TypeError, *error.args) from None
