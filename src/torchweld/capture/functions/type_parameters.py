"""Type parameters and aliases as Python 3.12 writes them (PEP 695): made for real, of constants.

Bounds and values of aliases are computed at once, where Python waits for somebody to ask.
"""

from __future__ import annotations

import typing
from typing import Any

from torchweld.capture.private import Recipe, keep, real_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.values.base import Const, FunctionValue, TupleValue, Value


def made_parameter(kind: str, name: str, *bound: Any) -> Any:
    """A type parameter; only Python's own syntax makes one that knows of no module."""
    names = {"bound": bound[0] if bound else None}
    values = names["bound"] if isinstance(names["bound"], tuple) else None
    limit = f"({', '.join(f'bound[{i}]' for i in range(len(values)))})" if values else "bound"
    text = f"type alias[{kind}{name}{f': {limit}' if bound else ''}] = None"
    exec(text, names)
    (made,) = names["alias"].__type_params__  # type: ignore[union-attr]
    if bound:
        made.__bound__, made.__constraints__  # noqa: B018  # computed now
    return made


def _made(cap: Capture, *args: Value) -> Value:
    made = made_parameter(*(real_of(cap, a) for a in args))
    return Const(keep(cap, made, Recipe(made_parameter, list(args), {})))


def parameter(cap: Capture, kind: str, name: Value) -> Value:
    """T, *Ts or **P."""
    return _made(cap, Const(kind), name)


def bounded(cap: Capture, name: Value, evaluate: Value, cont: Cont) -> None:
    """T: bound, or T: (constraint, another)."""
    _evaluated(cap, evaluate, lambda bound: cont(_made(cap, Const(""), name, bound)))


def _evaluated(cap: Capture, evaluate: Value, cont: Cont) -> None:
    """What a function gives that Python calls later. Errors: GraphBreak if it is too early."""

    def failed(_: Value) -> bool:
        raise refuse("W110", "a type that refers to what is not defined yet", cap.loc())

    cap.call(evaluate, [], {}, cont, failed)


def _subscripted(parameters: tuple[Any, ...]) -> Any:
    """Generic[parameters]"""
    unpacked = (typing.Unpack[p] if isinstance(p, typing.TypeVarTuple) else p for p in parameters)
    return typing.Generic[*unpacked]  # type: ignore[index]


def generic(cap: Capture, parameters: Value) -> Value:
    """The base of a class with type parameters."""
    made = _subscripted(real_of(cap, parameters))
    return Const(keep(cap, made, Recipe(_subscripted, [parameters], {})))


def made_alias(name: str, value: Any, parameters: tuple[Any, ...], module: str) -> Any:
    """type name[parameters] = value"""
    names = {"make": typing.TypeAliasType, "given": (name, value), "__name__": module,  # type: ignore[attr-defined]
             "parameters": parameters}  # fmt: skip
    return eval("make(*given, type_params=parameters)", names)


def alias(cap: Capture, given: Value, cont: Cont) -> None:
    """A type alias, of its name, parameters and what computes it."""
    assert isinstance(given, TupleValue)
    name, parameters, evaluate = cap.force_items(given.items)
    plain = isinstance(parameters, Const) and parameters.obj is None
    parameters = TupleValue([]) if plain else parameters
    module = Const(cap.top.globals.get("__name__"))

    def make(value: Value) -> None:
        args = [name, value, parameters, module]
        made = made_alias(*(real_of(cap, a) for a in args))
        cont(Const(keep(cap, made, Recipe(made_alias, args, {}))))

    _evaluated(cap, evaluate, make)


def set_parameters(cap: Capture, function: Value, parameters: Value) -> None:
    """The parameters of a function."""
    if not isinstance(function, FunctionValue):
        raise refuse("W110", "type parameters of what is no function", cap.loc())
    function.attrs["__type_params__"] = parameters
