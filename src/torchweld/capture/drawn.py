"""Tensors that are drawn before the graph runs: inputs of it that come from no argument.

A generator that the frame names, of torch's or of NumPy's, must be left in eager's state, so that
the residual program draws from it, in the order of the frame, and gives the graph what it drew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.by_data import Made
from torchweld.capture.draws import generator_of
from torchweld.capture.late import LateNumber, LateTensor
from torchweld.capture.session import Capture
from torchweld.capture.symbolic import number_value
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    Loose,
    SizeValue,
    TensorValue,
    Value,
)
from torchweld.capture.values.owned import PreparedValue
from torchweld.ir.expr import Expr, atoms
from torchweld.ir.graph import BY_DATA, DRAWN, LOC, VAL
from torchweld.ir.size_node import symbolic


def drawn_input(cap: Capture, late: LateTensor) -> TensorValue:
    """The placeholder of a drawn tensor."""
    builder = cap.builder
    node = builder.placeholder(f"drawn_{len(cap.late.computed)}")
    node.meta[VAL], node.meta[DRAWN] = late.now, True
    builder.places.append(late)
    return builder.known(TensorValue(node, late.now))


def own_copy(cap: Capture, x: TensorValue) -> TensorValue:
    """A tensor that the frame may write to."""
    made = cap.builder.call("call_method", "clone", [x], {}, cap.loc())
    assert isinstance(made, TensorValue)
    return made


def real_generator(x: Value) -> Any:
    """The torch.Generator from outside that a value is; None if it is no such thing."""
    real = x.real if isinstance(x, InstanceValue | Loose) else getattr(x, "obj", None)
    return real if isinstance(real, torch.Generator) else None


def draw_tensor(cap: Capture, fake: torch.Tensor, generator: Value, fn: Callable[..., Any],
                args: list[Value]) -> TensorValue:  # fmt: skip
    """The tensor that fn(generator, *args) draws, which looks like `fake`."""
    if not isinstance(generator, PreparedValue):
        generator_of(cap, generator)
    cap.unguarded += 1
    late = cap.late.tensor(fake, fn, (generator, *args))
    return drawn_input(cap, late)


def as_size(cap: Capture, x: LateNumber) -> SizeValue | None:
    """A drawn integer as a size that only the data decides."""
    fake = cap.builder.run("call_function", torch.empty, [()], {"dtype": torch.int64}, cap.loc())
    late = LateTensor(cap.late, fake, None, torch.tensor, (x,), drawn=True)
    cap.late.computed.append(late)
    tensor, builder, data = drawn_input(cap, late), cap.builder, cap.sizes.data
    symbol = cap.sizes.env.unknown(int(x.now), *_bounds(x))
    data.maker.made.append(symbol)
    node = builder.graph.call_method("item", (tensor.node,))
    number = symbolic(cap.sizes.env, symbol)
    node.meta.update({VAL: number, LOC: cap.loc(), BY_DATA: True})
    builder.n_calls += 1
    data.found[symbol] = Made(tensor, node=node)
    builder.on_data()
    made = number_value(number)
    return made if isinstance(made, SizeValue) else None


def _bounds(x: LateNumber) -> tuple[int | None, int | None]:
    """The least and the greatest integer that is drawn, as far as its arguments say."""
    given = [a.obj for a in x.args[1:] if type(a) is Const and isinstance(a.obj, int)]
    name = getattr(x.fn, "__name__", "")
    if name not in _RANGES or len(given) != len(x.args) - 1 or not 0 < len(given) < 3:
        return None, None
    low, high = (0, *given)[-2:]
    return low, high - (x.fn is not random.Random.randint)


_RANGES = ("randint", "randrange", "integers")


def known_before(cap: Capture, x: Value) -> bool:
    """Whether a number is known before the graph runs."""
    if isinstance(x, SizeValue):
        held = x.number.node.value
        return isinstance(held, Expr) and atoms(held).isdisjoint(cap.sizes.data.found)
    return isinstance(x, Const)
