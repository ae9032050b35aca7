"""Where operators take numbers that are known when the graph runs: wherever a schema has a number.

An operator gets a torch.SymFloat there. If it asks for the value after all, the number is guarded.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from typing import Any

import torch

from torchweld.capture.late import LateNumber
from torchweld.capture.values.base import Const, Value

# operator on tensors -> what ATen calls it
_OPERATORS: dict[Any, str] = {
    operator.mod: "remainder", operator.imod: "remainder", operator.floordiv: "floor_divide",
    operator.ifloordiv: "floor_divide", operator.add: "add", operator.sub: "sub",
    operator.mul: "mul", operator.truediv: "div", operator.pow: "pow",
}  # fmt: skip
# how many elements there are depends on the number; the last one wants a number of Python's
_DECIDES = frozenset(("arange", "range", "histc"))
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.BuiltinMethodType)


def takes_symbol(target: Any, place: int | str, x: Value) -> bool:
    """Whether an operator may get a SymFloat at this place."""
    if target is operator.setitem:
        return place == 2
    name = _name(target)
    if name is None or place not in _places(name):
        return False
    return _is_within(_WITHIN.get(name.removesuffix("_")), x)


# floats of C++ that are taken apart behind the capture (graph/number_rows.py, number_draws.py):
# where they stand
_P, _BOUNDS, _EPS = (1, "p"), (1, 2, "from", "to"), "eps"
_BY_ROWS: dict[str, tuple[int | str, ...]] = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
                     "bernoulli", "bernoulli_", "geometric_"), _P),
    "uniform_": _BOUNDS, "normal_": (1, 2, "mean", "std"), "normal": (0, 1, "mean", "std"),
    "log_normal_": (1, 2, "mean", "std"), "cauchy_": (1, 2, "median", "sigma"),
    "exponential_": (1, "lambd"),
    "cross_entropy_loss": (5, "label_smoothing"), "smooth_l1_loss": (3, "beta"),
    "huber_loss": (3, "delta"), "margin_ranking_loss": (3, "margin"),
    "hinge_embedding_loss": (2, "margin"), "cosine_embedding_loss": (3, "margin"),
    "triplet_margin_loss": (3, 4, 5, "margin", "p", _EPS), "poisson_nll_loss": (4,),
    "batch_norm": (6, 7), "instance_norm": (6, 7), "group_norm": (4, _EPS),
    "pairwise_distance": (2, 3, "p", _EPS), "cosine_similarity": (3, _EPS),
    "nan_to_num": (1, 2, 3, "nan", "posinf", "neginf"), "pad": (3, "value"), "logit": (1, _EPS),
    "float_power": (1, "exponent"),
    "quantile": (1, "q"), "nanquantile": (1, "q"),
    "isclose": (2, 3, "rtol", "atol"), "scaled_dot_product_attention": (4, "dropout_p", "scale"),
}  # fmt: skip
# what they must be for these to be right: greater, and less than
_WITHIN: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
                     "cross_entropy_loss", "quantile", "nanquantile"), (0.0, 1.0)),
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), (0.0, math.inf)),
    **dict.fromkeys(("isclose", "celu", "softshrink", "cosine_similarity"), (0.0, math.inf)),
    "logit": (0.0, 0.5),
}  # fmt: skip
_SOME_WITHIN: dict[tuple[str, int | str], tuple[float, float]] = {
    **{("scaled_dot_product_attention", place): (0.0, 1.0) for place in (4, "dropout_p")},
    ("scaled_dot_product_attention", "scale"): (-math.inf, math.inf),
}


def takes_float(target: Any, place: int | str, x: Value) -> bool:
    """Whether a float that changes may be an argument here, which is no symbol."""
    name = _name(target)
    plain = "" if name is None else name.removesuffix("_")
    if name is None or place not in _BY_ROWS.get(name, _BY_ROWS.get(plain, ())):
        return False
    return _is_within(_WITHIN.get(plain) or _SOME_WITHIN.get((plain, place)), x)


def _is_within(bounds: tuple[float, float] | None, x: Value) -> bool:
    """Whether a number is within the bounds for which an operator does one and the same, which is
    guarded."""
    if bounds is None:
        return True
    if not isinstance(x, LateNumber) or x.drawn:
        return False
    decide = x.owner.decide
    return bool(decide(">", x, Const(bounds[0]))) and bool(decide("<", x, Const(bounds[1])))


def _name(target: Any) -> str | None:
    """What ATen calls an operator; None for what is none of its own."""
    if isinstance(target, str):
        return target
    known = _OPERATORS.get(target)
    return target.__name__ if known is None and isinstance(target, _BUILTIN) else known


@functools.cache
def _places(name: str) -> frozenset[int | str]:
    """The positions and names of the numbers of an operator."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name.removesuffix("_") in _DECIDES:
        return frozenset()
    found: set[int | str] = set()
    for overload in packet.overloads():
        for i, x in enumerate(getattr(packet, overload)._schema.arguments):
            if str(x.type) in ("number", "Optional[number]"):
                found.update((x.name,) if x.kwarg_only else (i, x.name))
    return frozenset(found)
