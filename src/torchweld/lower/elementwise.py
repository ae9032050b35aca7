"""How a pointwise rule becomes one nest: broadcasting, promotion, compute dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr
from torchweld.lower.builder import Builder, broadcast
from torchweld.lower.dtypes import common_dtype, representable
from torchweld.lower.registry import Rule, parameters
from torchweld.lower.tensor import Idx, Tensor
from torchweld.lower.value import Val, lift


@dataclass(frozen=True, slots=True)
class _Operand:
    tensor: Tensor
    as_is: bool  # load without any cast
    wide: bool  # no rounding to the common dtype


def lower_pointwise(b: Builder, rule: Rule, op: OpOverload,
                    bound: dict[str, object], vals: dict[str, object]) -> Tensor:  # fmt: skip
    """One nest that writes the result of `rule` at every index.

    vals: the fake tensors (and numbers) behind `bound`, for torch's promotion rules.
    """
    common = _common(rule, op, vals) if rule.common else b.spec.dtype
    wide = rule.wide in (True, b.spec.device)
    args: list[object] = []
    for n, p in enumerate(parameters(op)):
        if p.ignored:
            continue
        x = bound[p.name]
        if isinstance(x, Tensor):
            args.append(_Operand(x, n in rule.keep, wide and not x.shape))
        elif (p.number or p.tensor) and not wide and isinstance(x, int | float):
            args.append(representable(x, common))
        elif (p.number or p.tensor) and isinstance(x, Expr | Val):
            args.append(_number(x, common, wide))
        elif isinstance(x, complex):
            raise LoweringError("W203", "complex number")
        else:
            args.append(x)

    def body(idx: Idx) -> Val:
        out = rule.function(*(load(a, idx, common) if isinstance(a, _Operand) else a
                              for a in args))  # fmt: skip
        assert isinstance(out, Val)
        return out

    return b.emit(body)


def _number(x: Expr | Val, common: DType, wide: bool) -> Val:
    """A number that depends on sizes, in the compute type of `common`."""
    v = Val(x.s) if isinstance(x, Val) else lift(x, DType.I64)
    if common.is_float8:
        return v.to(common)
    return (v if wide and common.is_float else v.to(common)).to(common.compute)


def _common(rule: Rule, op: OpOverload, vals: dict[str, object]) -> DType:
    operands = [vals[p.name] for n, p in enumerate(parameters(op))
                if (p.tensor or p.number) and n not in rule.keep]  # fmt: skip
    return common_dtype(x for x in operands if isinstance(x, torch.Tensor | int | float))


def load(a: _Operand, idx: Idx, common: DType) -> Val:
    """The operand at a broadcast index, in the compute type of `common` (8-bit floats: in it).

    As in torch it takes the common dtype first, which may round.
    """
    x = a.tensor.load(broadcast(idx, a.tensor.shape))
    if a.as_is:
        return x
    if not x.dtype.computed or not common.computed:
        raise LoweringError("W203", f"arithmetic on {x.dtype.value}")
    if not (x.dtype.is_float and a.wide):
        x = x.to(common)
    return x if common.is_float8 else x.to(common.compute)
