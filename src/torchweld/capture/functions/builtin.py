"""Functions of the builtins module."""

from __future__ import annotations

import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture import polyfills
from torchweld.capture.arrays.operators import array_unary
from torchweld.capture.attrs import MISSING, get_attr, mro_lookup
from torchweld.capture.attrs_write import del_attr, set_attr
from torchweld.capture.comparison import COMPARE, compare, contains
from torchweld.capture.functions.checks import extreme
from torchweld.capture.generator_frames import drives, resume
from torchweld.capture.handlers import tests_next
from torchweld.capture.identity import same
from torchweld.capture.items import del_item, get_item, get_iter, next_value, set_item
from torchweld.capture.late import INTEGERS, LateNumber
from torchweld.capture.numbers import range_of, whole_item
from torchweld.capture.object_ids import identity_of
from torchweld.capture.ops import (
    BINARY,
    UNARY,
    binary,
    check_index,
    check_length,
    counted,
    payload,
    real_call,
    truth,
    unary,
    unless,
    user_method,
)
from torchweld.capture.policy import Policy
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, raised, refuse
from torchweld.capture.strings import format_value
from torchweld.capture.symbolic import is_varying, number_value
from torchweld.capture.tables import FUNCTIONS, CallHandler, function, klass
from torchweld.capture.tensors import float_of
from torchweld.capture.values.base import (
    ArrayValue,
    BoundValue,
    CellValue,
    Const,
    FunctionValue,
    GeneratorValue,
    InstanceValue,
    ListValue,
    NotConstant,
    PartialValue,
    SliceValue,
    Slot,
    SuperValue,
    TensorValue,
    TupleValue,
    Value,
    boolean,
    constant,
)
from torchweld.ir.size_makers import holds_number

Args = list[Value]
Kwargs = dict[str, Value]


def text_of(cap: Capture, x: Value) -> str:
    """The name of an attribute, a constant."""
    try:
        name = constant(x)
    except NotConstant:
        raise refuse("W107", "attribute name that is not constant", cap.loc()) from None
    if not isinstance(name, str):
        raise raised(TypeError, f"attribute name must be string, not '{x.cls().__name__}'")
    return name


def polyfill(name: Any, fn: Callable[..., Any]) -> None:
    """Run `fn` of polyfills.py in place of the built-in `name`."""
    value = Const(fn)

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.call(value, args, kwargs, cont)

    FUNCTIONS.add(name, handler)


@function(len)
def len_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (x,) = args
    hook = user_method(cap, x, "__len__")
    if hook is not None:
        cap.call(Const(hook), [x], {}, lambda n: cap.deliver(check_length(n), cont))
        return
    if isinstance(x, TensorValue) and x.fake.ndim:
        cap.deliver(number_value(x.fake.shape[0]), cont)
        return
    cap.deliver(counted(cap, payload(x)), cont)


@function(getattr)
def getattr_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    obj, name = args[0], text_of(cap, args[1])
    if len(args) < 3:
        get_attr(cap, obj, name, cont)
        return
    get_attr_or(cap, obj, name, cont, lambda: cap.deliver(args[2], cont))


def get_attr_or(cap: Capture, obj: Value, name: str, cont: Cont | None,
                          missing: Callable[[], None]) -> None:  # fmt: skip
    """get_attr; `missing` runs instead if an AttributeError comes out, now or from a getter."""
    depth = len(cap.frames)
    try:
        get_attr(cap, obj, name, cont)
    except Raised as error:
        if not issubclass(error.value.cls(), AttributeError):
            raise
        missing()
        return
    if len(cap.frames) > depth:
        _watch(cap, depth, missing)


def _watch(cap: Capture, depth: int, missing: Callable[[], None]) -> None:
    """Run `missing` if an AttributeError comes out of the frame at this depth, or out of the
    `__getattr__` that is asked then."""
    frame = cap.frames[depth]
    before = frame.on_raise

    def on_raise(exc: Value) -> bool:
        try:
            if before is not None and before(exc):
                if len(cap.frames) > depth:
                    _watch(cap, depth, missing)
                return True
        except Raised as error:
            exc = error.value
            if not issubclass(exc.cls(), AttributeError):
                raise
        if not issubclass(exc.cls(), AttributeError):
            return False
        missing()
        return True

    frame.on_raise = on_raise


@function(hasattr)
def hasattr_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    obj, name = args[0], text_of(cap, args[1])
    get_attr_or(cap, obj, name, lambda _: cap.deliver(boolean(True), cont),
                          lambda: cap.deliver(boolean(False), cont))  # fmt: skip


@function(setattr)
def setattr_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    set_attr(cap, args[0], text_of(cap, args[1]), args[2], lambda _: cap.deliver(Const(None), cont))


@function(delattr)
def delattr_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    name = text_of(cap, args[1])
    del_attr(cap, args[0], name, lambda _: cap.deliver(Const(None), cont))


@function(callable)
def callable_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (x,) = args
    if isinstance(x, Const):
        cap.deliver(boolean(callable(x.obj)), cont)
    elif isinstance(x, FunctionValue | BoundValue | PartialValue):
        cap.deliver(boolean(True), cont)
    else:
        cap.deliver(boolean(mro_lookup(x.cls(), "__call__") is not MISSING), cont)


@function(iter)
def iter_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) != 1:
        cap.call(Const(polyfills.until), args, {}, cont)
        return
    get_iter(cap, args[0], cont)


@function(next)
def next_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    it = args[0]

    def stop() -> None:
        if len(args) < 2:
            raise raised(StopIteration)
        cap.deliver(args[1], cont)

    hook = user_method(cap, it, "__next__")
    if len(args) < 2 and isinstance(it, GeneratorValue):
        resume(cap, it, Const(None), lambda v: cap.deliver(v, cont), stop_with)
        if cont is None:
            drives(it)
    elif len(args) < 2 and hook is not None:
        cap.call(Const(hook), [it], {}, cont)
    else:
        next_value(cap, it, lambda v: cap.deliver(v, cont), stop)


def stop_with(result: Value) -> None:
    """The end of a generator, for who drives it by hand."""
    none = isinstance(result, Const) and result.obj is None
    exc = InstanceValue(StopIteration)
    exc.attrs["args"] = TupleValue([] if none else [result])
    raise Raised(exc)


@function(id)
def id_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(identity_of(cap, args[0]), cont)


@function(hash)
def hash_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    hook = user_method(cap, args[0], "__hash__")
    if hook is not None:
        cap.call(Const(hook), args, {}, lambda found: cap.deliver(_hash_of(found), cont))
        return
    try:
        cap.deliver(real_call(hash, constant(cap.unwrap(args[0]))), cont)
    except NotConstant:
        raise refuse("W107", f"hash of {args[0].cls().__name__}", cap.loc()) from None


def _hash_of(found: Value) -> Value:
    """What Python makes of the result of a user's __hash__."""
    if not isinstance(found, Const) or not isinstance(found.obj, int):
        raise raised(TypeError, "__hash__ method should return an integer")
    number = int(found.obj)
    if not -sys.maxsize - 1 <= number <= sys.maxsize:
        number = hash(number)
    return Const(-2 if number == -1 else number)


@function(repr)
def repr_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    format_value(cap, args[0], "r", "", cont)


@function(format)
def format_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) > 1 and not issubclass(args[1].cls(), str):
        kind = args[1].cls().__name__
        raise raised(TypeError, f"format() argument 2 must be str, not {kind}")
    spec = text_of(cap, args[1]) if len(args) > 1 else ""
    format_value(cap, args[0], None, spec, cont)


@function(abs)
def abs_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if isinstance(args[0], ArrayValue):
        cap.deliver(array_unary(cap, "abs", args[0]), cont)
        return
    _tensor_or_real(cap, abs, torch.abs, args, kwargs, cont)


@function(divmod)
def divmod_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    hook = user_method(cap, args[0], "__divmod__")
    if hook is not None:
        cap.call(Const(hook), args, {}, unless(cap, cont, lambda: _rdivmod(cap, args, cont)))
    else:
        _rdivmod(cap, args, cont)


def _rdivmod(cap: Capture, args: Args, cont: Cont | None) -> None:
    hook = user_method(cap, args[1], "__rdivmod__")
    if hook is not None:
        def unsupported() -> None:
            kinds = (a.cls().__name__ for a in args)
            shown = "' and '".join(kinds)
            raise raised(TypeError, f"unsupported operand type(s) for divmod(): '{shown}'")

        cap.call(Const(hook), args[::-1], {}, unless(cap, cont, unsupported))
        return
    try:
        cap.deliver(real_call(divmod, *(constant(a) for a in args)), cont)
    except NotConstant:
        raise refuse("W107", f"divmod of {args[0].cls().__name__}", cap.loc()) from None


@function(round)
def round_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _tensor_or_real(cap, round, torch.round, args, kwargs, cont)


@function(pow)
def pow_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    _tensor_or_real(cap, pow, torch.pow, args, kwargs, cont)


def _tensor_or_real(cap: Capture, real: Any, on_tensor: Any, args: Args, kwargs: Kwargs,
                    cont: Cont | None) -> None:  # fmt: skip
    if any(isinstance(a, TensorValue) for a in args):
        cap.deliver(cap.builder.call("call_function", on_tensor, args, kwargs, cap.loc()), cont)
        return
    hook = user_method(cap, args[0], f"__{real.__name__}__")
    if hook is not None:
        cap.call(Const(hook), args, kwargs, cont)
        return
    try:
        named = {k: constant(v) for k, v in kwargs.items()}
        values = [constant(payload(a)) for a in args]
        cap.deliver(real_call(lambda *a: real(*a, **named), *values), cont)
    except NotConstant:
        raise refuse("W107", f"{real.__name__} of {args[0].cls().__name__}", cap.loc()) from None


def _extreme(larger: bool) -> CallHandler:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        given = args
        if len(args) == 1 and isinstance(args[0], ListValue | TupleValue):
            given = cap.force_items(args[0].items)
        made = None if kwargs else extreme(cap, larger, given)
        if made is not None:
            cap.deliver(made, cont)
            return
        missing = Const(polyfills._MISSING)
        items: Value = TupleValue(list(args)) if len(args) > 1 else args[0]
        cap.call(Const(polyfills.extreme), [items, kwargs.get("key", Const(None)),
                                            kwargs.get("default", missing), missing,
                                            boolean(larger)], {}, cont)  # fmt: skip

    return handler


FUNCTIONS.add(max, _extreme(True))
FUNCTIONS.add(min, _extreme(False))


# ---------------------------------------------------------------------- classes
@klass(super)
def super_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) == 2:
        kind, self_ = args
    else:
        f = cap.top
        cell = f.cells.get("__class__")
        name = f.code.params[0] if f.code.params else ""
        held = f.cells.get(name)
        first: Slot | None = held.contents if held is not None else f.locals.get(name)
        if first is None:
            what = "arg[0] deleted" if name else "no arguments"
            raise raised(RuntimeError, f"super(): {what}")
        if cell is None or cell.contents is None:
            what = "empty __class__ cell" if cell else "__class__ cell not found"
            raise raised(RuntimeError, f"super(): {what}")
        kind = cell.contents = cap.force(cell.contents)
        self_ = cap.force(first)
    if not (isinstance(kind, Const) and isinstance(kind.obj, type)):
        raise refuse("W107", "super() of a class that is not constant", cap.loc())
    cap.deliver(SuperValue(kind.obj, self_), cont)


@klass(type)
def type_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) != 1:
        FUNCTIONS[type.__new__](cap, [Const(type), *args], kwargs, cont)
        return
    cap.deliver(Const(args[0].cls()), cont)


@klass(bool)
def bool_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        cap.deliver(boolean(False), cont)
        return
    if isinstance(args[0], TensorValue) and cont is None and tests_next(cap.top):
        cap.deliver(args[0], cont)
        return
    truth(cap, args[0], lambda t: cap.deliver(boolean(t), cont))


_ITEMS = {float: float_of, int: whole_item}


def _number(kind: type, special: str) -> CallHandler:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if kind in _ITEMS and args and isinstance(args[0], TensorValue):
            _ITEMS[kind](cap, args, kwargs, cont)
            return
        if args and isinstance(args[0], TensorValue | ArrayValue):
            raise refuse("W102", f"{kind.__name__}() of a Tensor", cap.loc())
        hook = user_method(cap, args[0], special) if args else None
        if hook is not None:
            owner = args[0].cls().__name__
            cap.call(Const(hook), args, {}, lambda n: cap.deliver(
                _as_number(kind, owner, n), cont))  # fmt: skip
            return
        try:
            named = {k: constant(v) for k, v in kwargs.items()}
            real = [constant(payload(a)) for a in args]
        except NotConstant:
            raise refuse("W107", f"{kind.__name__}() of {args[0].cls().__name__}",
                         cap.loc()) from None  # fmt: skip
        cap.deliver(real_call(lambda *a: kind(*a, **named), *real), cont)

    return handler


def _as_number(kind: type, owner: str, n: Value) -> Value:
    """What `__int__`, `__float__` or `__complex__` of a user's class gave, checked as by `kind`."""
    if type(n) is not Const or type(n.obj) is kind:
        return n
    given = n.obj
    gives = dict.fromkeys(("__int__", "__float__", "__complex__"), lambda _: given)
    return real_call(kind, type(owner, (), gives)())


for _kind, _special in ((int, "__int__"), (float, "__float__"), (complex, "__complex__")):
    klass(_kind)(_number(_kind, _special))


@klass(str)
def str_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        cap.deliver(Const(""), cont)
        return
    if len(args) > 1 or kwargs:  # what it decodes is bytes
        Policy.PURE.run(cap, str, args, kwargs, cont)
        return
    format_value(cap, args[0], "s", "", cont)


@klass(object)
def object_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if args or kwargs:
        raise raised(TypeError, "object() takes no arguments")
    cap.deliver(InstanceValue(object), cont)


@klass(slice)
def slice_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    from_parts = [Const(None), args[0]] if len(args) == 1 else args
    if any(map(is_varying, from_parts)):
        first, last, *step = from_parts
        cap.deliver(SliceValue((first, last, step[0] if step else Const(None))), cont)
        return
    try:
        cap.deliver(Const(slice(*(constant(p) for p in from_parts))), cont)
    except NotConstant:
        raise refuse("W107", "slice() of a Tensor", cap.loc()) from None


@klass(range)
def range_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    at = next((i for i, a in enumerate(args) if isinstance(a, InstanceValue)), None)
    hook = user_method(cap, args[at], "__index__") if at is not None else None
    if at is not None and hook is not None:
        cap.call(Const(hook), [args[at]], {}, lambda n: range_(
            cap, [*args[:at], check_index(n), *args[at + 1 :]], kwargs, cont))  # fmt: skip
        return
    for i, x in enumerate(args):
        if isinstance(x, TensorValue):
            if not holds_number(x.fake) or x.fake.numel() != 1 or not cap.builder.takes_data:
                raise refuse("W102", "range() of a Tensor", cap.loc())
            args[i] = cap.builder.whole_number(x, cap.loc())
        elif isinstance(x, LateNumber) and x.cls() in INTEGERS:
            args[i] = cap.sizes.given(x) or x
    varying = range_of(args)
    if varying is not None:
        cap.deliver(varying, cont)
        return
    try:
        cap.deliver(real_call(range, *(constant(a) for a in args)), cont)
    except NotConstant:
        raise refuse("W107", "range() of a value that is not constant", cap.loc()) from None


@klass(types.CellType)
def cell_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(CellValue(args[0] if args else None), cont)


# --------------------------------------------------------------- operator module
def _binary_function(symbol: str) -> CallHandler:
    return lambda cap, args, kwargs, cont: binary(cap, symbol, args[0], args[1], cont)


def _compare_function(symbol: str) -> CallHandler:
    return lambda cap, args, kwargs, cont: compare(cap, symbol, args[0], args[1], cont)


def _unary_function(symbol: str) -> CallHandler:
    return lambda cap, args, kwargs, cont: unary(cap, symbol, args[0], cont)


for _symbol, (_fn, _, _) in BINARY.items():
    FUNCTIONS.add(_fn, _binary_function(_symbol))
FUNCTIONS.add(operator.iconcat, _binary_function("+="))
for _symbol, (_fn, _, _) in COMPARE.items():
    FUNCTIONS.add(_fn, _compare_function(_symbol))
for _symbol, (_fn, _) in UNARY.items():
    FUNCTIONS.add(_fn, _unary_function(_symbol))


@function(operator.getitem)
def getitem_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    get_item(cap, args[0], args[1], cont)


@function(operator.setitem)
def setitem_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    set_item(cap, args[0], args[1], args[2])
    cap.deliver(Const(None), cont)


@function(operator.delitem)
def delitem_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    del_item(cap, args[0], args[1])
    cap.deliver(Const(None), cont)


@function(operator.contains)
def contains_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    contains(cap, args[0], args[1], lambda t: cap.deliver(boolean(t), cont))


@function(operator.not_)
def not_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    truth(cap, args[0], lambda t: cap.deliver(boolean(not t), cont))


@function(operator.truth)
def truth_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    truth(cap, args[0], lambda t: cap.deliver(boolean(t), cont))


@function(operator.is_)
def is_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(same(cap, args[0], args[1])), cont)


@function(operator.is_not)
def is_not(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(not same(cap, args[0], args[1])), cont)


for _name, _polyfill in (
    (sum, polyfills.sum_), (any, polyfills.any_), (all, polyfills.all_),
    (math.prod, polyfills.prod_),
):  # fmt: skip
    polyfill(_name, _polyfill)
