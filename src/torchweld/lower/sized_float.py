"""Floats that depend on sizes, as values of a kernel: n ** 0.5, computed in f64 as in Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torchweld.base.errors import LoweringError
from torchweld.ir.conditions import Ratio
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr
from torchweld.ir.size_node import node_of
from torchweld.ir.size_values import Loose
from torchweld.ir.sizes import SizeEnv
from torchweld.lower.sizes import expr_in
from torchweld.lower.value import Number, Val, constant, exp, lift, log, power, sqrt

_FUNCTIONS: dict[Callable[..., Any], Callable[..., Val]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.truediv: operator.truediv,
    operator.neg: operator.neg,
    operator.pow: power,
    float: lambda x: x,
    math.sqrt: sqrt,
    math.log: log,
    math.exp: exp,
}


def sized_float(x: object) -> Val:
    """The value of a torch.SymFloat of ours. Errors: LoweringError W204 for an unknown function."""
    node = node_of(x)
    if node is None:
        raise LoweringError("W204", f"number {x} is symbolic")
    return Number(_value(node.env, node.value).s)


def _value(env: SizeEnv, x: object) -> Val:
    match x:
        case Expr():
            return lift(expr_in(env, x), DType.F64)
        case Ratio():
            return lift(expr_in(env, x.num), DType.F64) / float(x.den)
        case Loose() if x.fn in _FUNCTIONS:
            return _FUNCTIONS[x.fn](*(_value(env, a) for a in x.args))
        case float() | int():
            return constant(float(x), DType.F64)
    raise LoweringError("W204", f"a number is computed from sizes by {x}")

