"""The one table of lowerings, keyed by the overload's full name ("aten.silu.default").

@pointwise   the mathematics of one element: Val -> Val; broadcasting, promotion, layout are done
@view        Tensor -> Tensor: an index map, never a nest
@reduction   (Builder, ...) -> Tensor(s), for operators that combine elements
@lowering    (Builder, ...) -> Tensor(s), anything else

Functions other than pointwise ones get the operator's arguments by their schema names (`self` and
`input` are called `x`); pointwise ones get them by position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, TypeVar

from torch._ops import OpOverload

from torchweld.base.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator is lowered.

    common: pointwise, compute in the operands' common dtype instead of the output's.
    keep: pointwise, positions of operands that are loaded as they are (conditions).
    wide: pointwise, numbers and zero-dimensional tensors are not rounded to the common dtype before
        they meet the compute type (measured against eager for bf16 and f16, torch 2.13); a device:
        only there.
    """

    kind: str
    function: Callable[..., Any]
    common: bool = False
    keep: tuple[int, ...] = ()
    wide: bool | str = False


LOWERINGS: Registry[str, Rule] = Registry("lowerings")

# arguments that only say what node.meta["val"] says too, or that do not change values
_IGNORED = frozenset({
    "dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit",
})  # fmt: skip
_RENAMED = {"self": "x", "input": "x", "a": "x"}


def pointwise(*ops: str, common: bool = False, keep: tuple[int, ...] = (),
              wide: bool | str = False) -> Callable[[F], F]:  # fmt: skip
    return _register(ops, "pointwise", common, keep, wide)


def view(*ops: str) -> Callable[[F], F]:
    return _register(ops, "view")


def reduction(*ops: str) -> Callable[[F], F]:
    return _register(ops, "reduction")


def lowering(*ops: str) -> Callable[[F], F]:
    return _register(ops, "lowering")


def _register(ops: tuple[str, ...], kind: str, common: bool = False, keep: tuple[int, ...] = (),
              wide: bool | str = False) -> Callable[[F], F]:  # fmt: skip
    def decorate(f: F) -> F:
        for op in ops:
            LOWERINGS.add(op, Rule(kind, f, common, keep, wide))
        return f

    return decorate


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an operator's schema."""

    name: str
    default: object
    number: bool  # takes a Python number that takes part in the arithmetic
    tensor: bool
    ignored: bool


@cache
def parameters(op: OpOverload) -> tuple[Parameter, ...]:
    """The schema's arguments, renamed as lowering functions call them."""
    out = []
    for a in op._schema.arguments:
        default = a.default_value if a.has_default_value() else None
        kind = str(a.type)
        number = kind in ("number", "Optional[number]", "float", "Optional[float]")
        out.append(Parameter(_RENAMED.get(a.name, a.name), default, number,
                             "Tensor" in kind, a.name in _IGNORED))  # fmt: skip
    return tuple(out)


def bind(op: OpOverload, args: tuple[object, ...],
         kwargs: dict[str, object]) -> dict[str, object]:  # fmt: skip
    """Every argument of the call by parameter name, defaults filled in."""
    bound: dict[str, object] = {}
    named = {_RENAMED.get(k, k): v for k, v in kwargs.items()}
    for n, p in enumerate(parameters(op)):
        bound[p.name] = args[n] if n < len(args) else named.get(p.name, p.default)
    return bound


@cache
def accepted(f: Callable[..., Any]) -> frozenset[str]:
    return frozenset(signature(f).parameters)


def arguments_for(f: Callable[..., Any], op: OpOverload,
                  bound: dict[str, object]) -> dict[str, object]:  # fmt: skip
    """What `f` is called with: all arguments but those that the result's metadata repeats."""
    names = accepted(f)
    return {p.name: bound[p.name] for p in parameters(op) if p.name in names or not p.ignored}


def supported() -> dict[str, str]:
    """Every overload with a lowering, and its kind (for the documentation)."""
    return {op: rule.kind for op, rule in sorted(LOWERINGS.items())}
