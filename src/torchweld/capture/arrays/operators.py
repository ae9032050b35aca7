"""Python's operators where an operand is a NumPy array: ufuncs, items, iteration."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from torchweld.base.errors import GraphBreak
from torchweld.capture.arrays.record import array_of, cast, dtype_of, operand, record, scalar_of
from torchweld.capture.arrays.ufuncs import apply, in_place
from torchweld.capture.modes import memory
from torchweld.capture.session import Capture
from torchweld.capture.state import raised, refuse
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    IteratorValue,
    ListValue,
    NotConstant,
    SliceValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
)

_SYMBOLS: dict[str, Any] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide,
    "%": np.remainder, "**": np.power, "@": np.matmul, "&": np.bitwise_and, "|": np.bitwise_or,
    "^": np.bitwise_xor, "<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal,
    ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
# where torch takes a NumPy number for one of Python's, without rounding it otherwise
_EXACT = (torch.float32, torch.float64)
_UNARY: dict[str, Any] = {"-": np.negative, "+": np.positive, "~": np.invert, "abs": np.absolute}


def array_binary(cap: Capture, symbol: str, a: Value, b: Value) -> Value:
    """a <symbol> b, one of them an array; in-place forms too."""
    for x in (a, b):
        if not isinstance(x, ArrayValue | Const | ListValue | TupleValue):
            raise refuse("W103", f"an array {symbol} a {x.cls().__name__}", cap.loc())
    if symbol.startswith("**") and isinstance(a, ArrayValue) and dtype_of(a) == np.bool:
        raise refuse("W103", "a power of an array of bool", cap.loc())
    plain = symbol[:-1] if symbol.endswith("=") and symbol not in _COMPARISONS else symbol
    fn = _SYMBOLS.get(plain)
    if fn is None:
        raise refuse("W103", f"an array {symbol} a {b.cls().__name__}", cap.loc())
    if plain != symbol and isinstance(a, ArrayValue) and not a.scalar:
        if fn is np.matmul:
            raise refuse("W103", "an array @= another", cap.loc())
        return in_place(cap, fn, a, b)
    return apply(cap, fn, [a, b], {})


def number_of(cap: Capture, x: TensorValue, number: Value) -> Value:
    """A NumPy number as the second operand of an operator of a tensor: it decides no dtype."""
    if not isinstance(number, ArrayValue) or not number.scalar or (
            x.fake.dtype not in _EXACT or number.tensor.fake.is_complex()):  # fmt: skip
        return number
    return record(cap, "to", number, x.fake.dtype)


def array_unary(cap: Capture, symbol: str, x: ArrayValue) -> Value:
    """-x, +x, ~x, abs(x)."""
    return apply(cap, _UNARY[symbol], [x], {})


def untold(cap: Capture) -> GraphBreak:
    """Why an array cannot decide what Python does next."""
    return refuse("W101", "the truth of an array is known only when the graph runs", cap.loc())


def array_length(x: ArrayValue) -> int:
    """len() of an array. Errors: Raised(TypeError)."""
    if x.tensor.fake.ndim == 0:
        name = x.cls().__name__
        raise raised(TypeError, f"object of type '{name}' has no len()" if x.scalar
                     else "len() of unsized object")  # fmt: skip
    return int(x.tensor.fake.shape[0])


# ----------------------------------------------------------------------- items
def array_item(cap: Capture, x: ArrayValue, key: Value) -> Value:
    """x[key]: a view, a copy or a number, as NumPy says."""
    if x.scalar:
        raise refuse("W103", "an item of a NumPy number", cap.loc())
    index, picks, single = _index(cap, key)
    found = cap.builder.call("call_function", operator.getitem, [x.tensor, index], {}, cap.loc())
    if not isinstance(found, TensorValue):
        raise refuse("W103", "an item of an array", cap.loc())
    if found.fake.ndim == 0 and single:
        return array_of(cap, record(cap, "clone", found), scalar=True)
    if found is x.tensor:  # x[...] is another array
        found = record(cap, "detach", found)
    if picks and found.fake.ndim > 1:
        raise refuse("W103", "an item whose layout NumPy may choose otherwise", cap.loc())
    return array_of(cap, found)


def array_setitem(cap: Capture, x: ArrayValue, key: Value, value: Value) -> None:
    """x[key] = value, cast as NumPy does."""
    if x.scalar:
        raise refuse("W103", "assignment to a NumPy number", cap.loc())
    index, _, _ = _index(cap, key)
    given = operand(cap, value)
    known = given if isinstance(given, ArrayValue) else scalar_of(cap, given, dtype_of(x))
    if known.tensor.fake.ndim > x.tensor.fake.ndim:
        raise refuse("W103", "assignment of an array with more axes", cap.loc())
    tensor = cast(cap, known, dtype_of(x))
    if memory(tensor) == memory(x.tensor):  # a[1:] = a[:-1] reads everything before it writes
        tensor = record(cap, "clone", tensor)
    cap.builder.call("call_function", operator.setitem, [x.tensor, index, tensor], {}, cap.loc())





def _index(cap: Capture, key: Value) -> tuple[Value, bool, bool]:
    """An index as torch takes it; whether it picks elements of other axes than the first ones;
    whether it may name one element.

    Errors: GraphBreak for what torch has no view of, such as negative steps.
    """
    parts = cap.force_items(key.items) if isinstance(key, TupleValue) else [key]
    found = [_index_part(cap, p) for p in parts]
    kinds = [isinstance(p, TensorValue) for p in found]
    picks = any(kinds[kinds.index(False) :]) if False in kinds else False
    single = not any(isinstance(p, Const) and p.obj is Ellipsis for p in found)
    return TupleValue(list(found)) if isinstance(key, TupleValue) else found[0], picks, single


def _index_part(cap: Capture, part: Value) -> Value:
    if isinstance(part, ArrayValue):
        kind = dtype_of(part).kind
        if kind not in "bi" or part.tensor.fake.ndim == 0:
            raise refuse("W102", "an index that is a NumPy number, or no index", cap.loc())
        if kind == "b":
            return part.tensor
        return cap.builder.call("call_method", "long", [part.tensor], {}, cap.loc())
    if isinstance(part, ListValue):
        return _index_part(cap, operand(cap, part)) if part.items else _no_index(cap, part)
    if isinstance(part, SliceValue):
        return _no_index(cap, part)
    try:
        real = constant(part)
    except NotConstant:
        return _no_index(cap, part)
    if isinstance(real, slice):
        step = real.step
        if step is not None and int(step) < 1:
            raise refuse("W103", "a negative step, of which torch has no view", cap.loc())
        return Const(slice(*(None if p is None else int(p) for p in
                             (real.start, real.stop, real.step))))  # fmt: skip
    if real is None or real is ...:
        return Const(real)
    if isinstance(real, bool) or not isinstance(real, int | np.integer):
        return _no_index(cap, part)
    return Const(int(real))


def _no_index(cap: Capture, part: Value) -> Value:
    raise refuse("W103", f"an array indexed by a {part.cls().__name__}", cap.loc())


def array_iterator(cap: Capture, x: ArrayValue) -> IteratorValue:
    """iter(x): views of the rows, or numbers."""
    if x.tensor.fake.ndim == 0:
        name = "iteration over a 0-d array" if not x.scalar else (
            f"'{x.cls().__name__}' object is not iterable")  # fmt: skip
        raise raised(TypeError, name)
    places = iter(range(int(x.tensor.fake.shape[0])))

    def step() -> Value | None:
        i = next(places, None)
        return None if i is None else array_item(cap, x, Const(i))

    return IteratorValue(step, type(iter(np.empty(0))))


