"""Arrays and lists that a generator of NumPy's or Python's gives: drawn before the graph runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchweld.capture.arrays.dtypes import TORCH
from torchweld.capture.arrays.record import array_of, record
from torchweld.capture.drawn import drawn_input, own_copy
from torchweld.capture.draws import draw, generator_of
from torchweld.capture.late import NUMBERS, LateNumber
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.values.base import (
    NONE,
    ArrayValue,
    Const,
    ListValue,
    Value,
    constant,
)


class AsTensor:
    """What draws an array as the tensor that has its memory."""

    __slots__ = ("method",)

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __call__(self, generator: Any, *args: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.method(generator, *args)))


def drawn_array(cap: Capture, now: np.ndarray[Any, Any], method: Callable[..., Any], x: Value,
                args: list[Value]) -> Value:  # fmt: skip
    """The array that method(x, *args) draws in each call; `now` is one of them."""
    wanted = TORCH.get(now.dtype)
    if wanted is None:
        raise refuse("W120", f"an array of {now.dtype} is drawn", cap.loc())
    like = cap.builder.run("call_function", torch.empty, [now.shape], {"dtype": wanted}, cap.loc())
    late = cap.late.tensor(like, AsTensor(method), (x, *args))
    return array_of(cap, own_copy(cap, drawn_input(cap, late)))


def drawn_list(cap: Capture, now: list[Any], late: LateNumber) -> Value:
    """The list that is drawn as `late`: numbers of one type, which are known in each call.

    Errors: GraphBreak for other items.
    """
    kinds = set(map(type, now))
    if len(kinds) > 1 or not kinds <= {int, float, str}:
        raise refuse("W120", f"a list of {' and '.join(k.__name__ for k in kinds)} is drawn",
                     cap.loc())  # fmt: skip
    return ListValue([_item(cap, late, i) for i in range(len(now))])


def _item(cap: Capture, late: LateNumber, i: int) -> LateNumber:
    return cap.late.draw(late.now[i], operator.getitem, (late, Const(i)))


# ------------------------------------------------------------------ in place, and of arrays
def shuffle_list(cap: Capture, x: Value, box: ListValue, fn: Callable[..., Any]) -> None:
    """Shuffle a list of the frame: its items are numbers that are drawn anew."""
    items = [constant(cap.unwrap(i)) for i in cap.force_items(box.items)]
    kinds = set(map(type, items))
    if len(kinds) > 1 or not kinds <= {int, float}:
        raise refuse("W120", "a list of other things than numbers is shuffled", cap.loc())
    found = draw(cap, fn, x, [Const(items)])
    assert isinstance(found, ListValue)
    cap.mark(box)
    box.items = list(found.items)


def places(generator: Any, n: int) -> Any:
    """The numbers below n, in the order in which a generator shuffles an array."""
    return generator.permutation(n)


def chosen(generator: Any, n: int, *args: Any) -> Any:
    """Numbers below n that a generator chooses."""
    return generator.choice(n, *args)


def of_array(cap: Capture, name: str, args: list[Value], cont: Cont | None) -> None:
    """shuffle, permutation and choice of an array with one axis: places are drawn.

    Errors: GraphBreak for other arrays, which NumPy shuffles otherwise.
    """
    x, array, *rest = args
    assert isinstance(array, ArrayValue)
    if array.tensor.fake.ndim != 1 or (name != "choice" and rest):
        raise refuse("W103", f"{name} of an array with several axes", cap.loc())
    size = Const(int(array.tensor.fake.shape[0]))
    found = draw(cap, chosen if name == "choice" else places, x, [size, *rest])
    if not isinstance(found, ArrayValue):
        raise refuse("W120", "an element of an array is chosen", cap.loc())
    taken = record(cap, operator.getitem, array, found)
    if name == "shuffle":
        record(cap, "copy_", array, taken)
        cap.deliver(NONE, cont)
        return
    cap.deliver(array_of(cap, taken), cont)


# ------------------------------------------------------------------ states
def get_state(cap: Capture, method: Callable[..., Any], x: Value) -> Value:
    """The state of a generator, which nobody looks into."""
    generator = generator_of(cap, x)
    return cap.late.draw(method(generator.twin), method, (x,))


def set_state(cap: Capture, method: Callable[..., Any], x: Value, state: Value) -> None:
    """Errors: GraphBreak for a state that was not read in the frame."""
    generator = generator_of(cap, x)
    late = isinstance(state, LateNumber) and not state.fixed and type(state.now) not in NUMBERS
    if not late:
        raise refuse("W107", "a state of a generator from elsewhere", cap.loc())
    assert isinstance(state, LateNumber)
    method(generator.twin, state.now)
    generator.known = False
    cap.late.draw(None, method, (x, state))

