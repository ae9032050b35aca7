"""Arrays as operands: what a graph node gets for one, and the array of what it gives; the arguments
of NumPy functions by name, and as constants."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchweld.capture.arrays.dtypes import BY_DTYPE_ALONE, NUMPY, TORCH, raises_on_errors
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import CallHandler
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    DictValue,
    ListValue,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
)

# constants up to this size are written into the graph
_SPELLED_OUT = 64


def record(cap: Capture, fn: Any, *args: Any, **kwargs: Any) -> TensorValue:
    """fn(*args, **kwargs) as a node; a string is a method of Tensor. Arguments: values or not."""
    given = [_value(a) for a in args]
    named = {k: _value(v) for k, v in kwargs.items()}
    op = "call_method" if isinstance(fn, str) else "call_function"
    out = cap.builder.call(op, fn, given, named, cap.loc())
    if not isinstance(out, TensorValue):
        raise refuse("W103", f"{fn} of arrays", cap.loc())
    return out


def _value(x: Any) -> Value:
    if isinstance(x, ArrayValue):
        return x.tensor
    if isinstance(x, list | tuple):
        return TupleValue([_value(i) for i in x])
    return x if isinstance(x, Value) else Const(x)


def array_of(cap: Capture, x: TensorValue, scalar: bool = False,
             dtype: np.dtype[Any] | None = None) -> ArrayValue:  # fmt: skip
    """The array that has the memory of a tensor. dtype: what it must be of.

    Errors: GraphBreak where NumPy has no such dtype, chooses dtypes by values, or raises at
    overflow and the like, which compiled code does not see.
    """
    known = NUMPY.get(x.fake.dtype)
    if known is None or (dtype is not None and dtype != known) or not BY_DTYPE_ALONE:
        raise refuse("W103", f"an array of {x.fake.dtype} in NumPy {np.__version__}", cap.loc())
    if raises_on_errors():
        raise refuse("W115", "numpy.seterr asks for more than a warning", cap.loc())
    cap.guard("state", None, (raises_on_errors, False))
    return ArrayValue(x, scalar)


def made(cap: Capture, x: TensorValue, dtype: np.dtype[Any] | None = None) -> ArrayValue:
    """What NumPy's operators give: an array of its own, or a number where there is no axis."""
    return array_of(cap, x, x.fake.ndim == 0, dtype)


def dtype_of(x: ArrayValue) -> np.dtype[Any]:
    return NUMPY[x.tensor.fake.dtype]


def dtype_arg(cap: Capture, x: Value | None) -> np.dtype[Any] | None:
    """An argument called dtype. Errors: GraphBreak for one that torch does not have."""
    if x is None or (isinstance(x, Const) and x.obj is None):
        return None
    try:
        found: np.dtype[Any] = np.dtype(constant(x))
    except (NotConstant, TypeError):
        raise refuse("W103", "a dtype that NumPy does not take", cap.loc()) from None
    if found not in TORCH:
        raise refuse("W103", f"an array of {found}", cap.loc())
    return found


def cast(cap: Capture, x: ArrayValue, dtype: np.dtype[Any]) -> TensorValue:
    """The tensor of an array in another dtype; the array's own if it has that dtype."""
    wanted = TORCH.get(dtype)
    if wanted is None:
        raise refuse("W103", f"an array of {dtype}", cap.loc())
    if x.tensor.fake.dtype is wanted:
        return x.tensor
    if x.tensor.fake.is_complex() and not wanted.is_complex:
        raise refuse("W103", "a complex array without its imaginary part", cap.loc())
    return record(cap, "to", x, wanted)


def holds_array(x: Value) -> bool:
    """Whether an argument has arrays in it, as far as it was looked into."""
    if isinstance(x, ListValue | TupleValue):
        return any(isinstance(i, Value) and holds_array(i) for i in x.items)
    if isinstance(x, DictValue):
        return any(isinstance(i, Value) and holds_array(i) for i in x.items.values())
    return isinstance(x, ArrayValue)


def constant_array(cap: Capture, real: np.ndarray[Any, Any]) -> ArrayValue:
    """A new array whose elements are known now."""
    if real.dtype not in TORCH:
        raise refuse("W103", f"an array of {real.dtype}", cap.loc())
    wanted = TORCH[real.dtype]
    if real.size <= _SPELLED_OUT and real.flags.c_contiguous:
        return array_of(cap, record(cap, torch.tensor, _listed(real.tolist()), dtype=wanted))
    tensor = torch.from_numpy(real.copy())
    cap.kept.append(tensor)
    return array_of(cap, record(cap, "clone", cap.builder.input(tensor, cap.pin(tensor))))


def _listed(x: Any) -> Value:
    return ListValue([_listed(i) for i in x]) if isinstance(x, list) else Const(x)


def operand(cap: Capture, x: Value) -> ArrayValue | Const:
    """An argument where NumPy takes arrays: an array, or a number as it is."""
    if isinstance(x, ArrayValue):
        return x
    if isinstance(x, Const) and isinstance(x.obj, bool | int | float | complex | np.generic):
        return x
    if isinstance(x, ListValue | TupleValue):
        return sequence(cap, x)
    raise refuse("W103", f"a NumPy function of a {x.cls().__name__}", cap.loc())


def sequence(cap: Capture, x: ListValue | TupleValue,
             dtype: np.dtype[Any] | None = None) -> ArrayValue:  # fmt: skip
    """np.array of a list or tuple, of constants or of arrays and numbers."""
    try:
        return constant_array(cap, np.array(constant(cap.unwrap(x)), dtype))
    except NotConstant:
        pass
    items = [operand(cap, i) for i in cap.force_items(x.items)]
    known = [i if isinstance(i, ArrayValue) else scalar_of(cap, i) for i in items]
    if len({tuple(i.tensor.fake.shape) for i in known}) != 1:
        raise refuse("W103", "an array of parts that have different shapes", cap.loc())
    wanted = dtype or np.result_type(*(dtype_of(i) for i in known))
    return array_of(cap, record(cap, torch.stack, [cast(cap, i, wanted) for i in known]))


def scalar_of(cap: Capture, x: Const, dtype: np.dtype[Any] | None = None) -> ArrayValue:
    """A number as an array without axes. Errors: GraphBreak if the dtype does not hold it."""
    try:
        real = np.asarray(x.obj) if dtype is None else np.asarray(dtype.type(x.obj))
    except (OverflowError, TypeError, ValueError):
        raise refuse("W103", f"{x.obj!r} as {dtype}", cap.loc()) from None
    if real.dtype not in TORCH:
        raise refuse("W103", f"an array of {real.dtype}", cap.loc())
    return array_of(cap, record(cap, torch.full, (), real.item(), dtype=TORCH[real.dtype]))


def settled(cap: Capture, *xs: ArrayValue) -> None:
    """Refuse what NumPy may lay out otherwise than torch does.

    The layout of a result shows in its strides and in what is a view of it.
    """
    for x in xs:
        fake = x.tensor.fake
        if fake.ndim > 1 and not fake.is_contiguous():
            raise refuse("W103", "a NumPy function of an array that is not C-contiguous",
                         cap.loc())  # fmt: skip


def as_array(cap: Capture, x: Value, dtype: np.dtype[Any] | None = None) -> ArrayValue:
    """np.asarray of an operand."""
    known = operand(cap, x)
    if isinstance(known, Const):
        known = scalar_of(cap, known, dtype)
    return array_of(cap, known.tensor if dtype is None else cast(cap, known, dtype))


# ----------------------------------------------------------------------- arguments by name
Args = list[Value]
Kwargs = dict[str, Value]
# (capture, name -> argument) -> result
Body = Callable[[Capture, Kwargs], Value]


def no(cap: Capture, why: str) -> Exception:
    return refuse("W103", why, cap.loc())


@functools.lru_cache(maxsize=256)
def _signature(fn: Any) -> inspect.Signature:
    return inspect.signature(fn)


# the arguments of functions in C, which older NumPy does not tell
_IN_C = {np.array: ("object", "dtype"), np.asarray: ("a", "dtype"),
         np.where: ("condition", "x", "y"), np.concatenate: ("arrays", "axis", "out"),
         np.dot: ("a", "b", "out"), np.empty_like: ("prototype", "dtype")}  # fmt: skip


def _named(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Kwargs:
    """The arguments by name."""
    try:
        bound = _signature(fn).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise no(cap, str(error)) from None
    except ValueError:
        names = _IN_C[fn]
        if len(args) > len(names):
            raise no(cap, f"numpy.{fn.__name__} of {len(args)} arguments") from None
        return {**dict(zip(names, args, strict=False)), **kwargs}
    return {k: TupleValue([*v]) if isinstance(v, tuple) else v for k, v in bound.items()}


def handler(fn: Any, body: Body) -> CallHandler:
    """Calls of `fn`: of constants for real, of arrays through `body`, which takes names."""

    def run(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        for x in (*args, *kwargs.values()):
            if isinstance(x, ListValue | TupleValue):
                cap.force_items(x.items)
        if any(holds_array(x) for x in (*args, *kwargs.values())):
            cap.deliver(body(cap, _named(cap, fn, args, kwargs)), cont)
        else:
            cap.deliver(of_constants(cap, fn, args, kwargs), cont)

    return run


def of_constants(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """The result of a function without side effects. Errors: GraphBreak."""
    try:
        real = [constant(cap.unwrap(a)) for a in args]
        named = {k: constant(cap.unwrap(v)) for k, v in kwargs.items()}
    except NotConstant:
        raise no(cap, f"numpy.{fn.__name__} of values that are not constant") from None
    try:
        found = fn(*real, **named)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    if isinstance(found, np.ndarray):
        return constant_array(cap, found)
    if isinstance(found, np.generic | bool | int | float | np.dtype):
        return Const(found)
    raise no(cap, f"numpy.{fn.__name__} gives a {type(found).__name__}")


def only(cap: Capture, given: Kwargs, *names: str) -> None:
    """Refuse arguments other than these, unless they say nothing."""
    for name, x in given.items():
        nothing = isinstance(x, Const) and (x.obj is None or x.obj is np._NoValue)
        if name not in names and not nothing and not _is_default(name, x):
            raise no(cap, f"the argument {name} of a NumPy function")


_DEFAULTS: dict[str, tuple[object, ...]] = {
    "order": ("C", "K"), "subok": (True, False), "copy": (None,), "keepdims": (False,),
    "mode": ("raise",), "like": (None,), "optimize": (False,),
}  # fmt: skip


def _is_default(name: str, x: Value) -> bool:
    return isinstance(x, Const) and x.obj in _DEFAULTS.get(name, ())


def first(cap: Capture, given: Kwargs) -> ArrayValue:
    return as_array(cap, next(iter(given.values())))


def number(cap: Capture, given: Kwargs, name: str, default: Any = None) -> Any:
    """An argument that has to be known now."""
    if name not in given:
        return default
    try:
        found = constant(cap.unwrap(given[name]))
    except NotConstant:
        raise no(cap, f"{name} is not a constant") from None
    return default if found is np._NoValue else found
