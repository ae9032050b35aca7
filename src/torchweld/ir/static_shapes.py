"""What torch.fx.experimental.symbolic_shapes answers about plain numbers, without importing it.

It imports sympy, which takes half a second or more, to answer questions such as "is this size
known to be 1?". Where every number is a plain int, float or bool, the answers are these. A question
about anything else, and every name that is missing here, goes to the real module, which is imported
then. `torch_functions` and `quiet` say who reads these names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

SHAPES = "torch.fx.experimental.symbolic_shapes"
FUNCTIONS = "torch.utils._sympy.functions"

# One type each: a subclass is the real module's to judge.
_NUMBERS = (int, float, bool)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module(SHAPES), name)


def _identity(kinds: tuple[type, ...], name: str) -> Callable[..., Any]:
    """A question whose answer about a number of these types is the number itself."""

    def answer(a: Any, *args: Any, **options: Any) -> Any:
        return a if type(a) in kinds else _real(name)(a, *args, **options)

    answer.__name__ = name
    return answer


def _fixed(value: object, name: str) -> Callable[..., Any]:
    """A question whose answer about any plain number is `value`."""

    def answer(a: Any, *args: Any, **options: Any) -> Any:
        return value if type(a) in _NUMBERS else _real(name)(a, *args, **options)

    answer.__name__ = name
    return answer


def _real(name: str) -> Any:
    return getattr(import_module(SHAPES), name)


guard_or_false = _identity((bool,), "guard_or_false")
guard_or_true = _identity((bool,), "guard_or_true")
guard_size_oblivious = _identity((bool,), "guard_size_oblivious")
statically_known_true = _identity((bool,), "statically_known_true")
expect_true = _identity((bool,), "expect_true")
guard_int = _identity((int,), "guard_int")
optimization_hint = _identity((int,), "optimization_hint")
guarding_hint_or_throw = _identity((int, bool), "guarding_hint_or_throw")
size_hint = _identity((int,), "size_hint")  # torch 2.11

is_symbolic = _fixed(False, "is_symbolic")
is_nested_int = _fixed(False, "is_nested_int")
has_guarding_hint = _fixed(True, "has_guarding_hint")
has_hint = _fixed(True, "has_hint")  # torch 2.11
_advise_is_size = _fixed(None, "_advise_is_size")
_advise_is_bounded = _fixed(None, "_advise_is_bounded")


def _constrain_range_for_size(*args: Any, **options: Any) -> Any:
    """Only asked about symbols, but imported by functions that then find that there are none."""
    return _real("_constrain_range_for_size")(*args, **options)


def sym_and(x: Any, *others: Any) -> Any:
    """x and all others."""
    if type(x) is bool and all(type(y) is bool for y in others):
        return x and all(others)
    return _real("sym_and")(x, *others)


def sym_or(x: Any, *others: Any) -> Any:
    """x or any other."""
    if type(x) is bool and all(type(y) is bool for y in others):
        return x or any(others)
    return _real("sym_or")(x, *others)


def sym_eq(x: Any, y: Any) -> Any:
    """Whether two ints, or two sequences of ints, are equal; tuples equal lists."""
    if type(x) is int and type(y) is int:
        return x == y
    if _ints(x) and _ints(y):
        return list(x) == list(y)
    return _real("sym_eq")(x, y)


def _ints(x: object) -> bool:
    return isinstance(x, (tuple, list)) and all(type(n) is int for n in x)


def _without_symbols(x: object) -> bool:
    """Whether no number in `x` is symbolic, as far as that is seen without asking for nodes."""
    if isinstance(x, torch.Tensor):
        dense = x.layout == torch.strided and not x.is_nested
        return dense and not x._has_symbolic_sizes_strides
    if isinstance(x, (tuple, list)):
        return all(_without_symbols(item) for item in x)
    return x is None or type(x) in _NUMBERS


def has_free_symbols(val: Any) -> bool:
    """Whether a symbol is part of a size in `val`."""
    return False if _without_symbols(val) else _real("has_free_symbols")(val)


def has_free_unbacked_symbols(x: Any) -> bool:
    """Whether a symbol that only the data decides is part of a size in `x`."""
    return False if _without_symbols(x) else _real("has_free_unbacked_symbols")(x)


def free_unbacked_symbols(x: Any) -> Any:
    """The symbols in `x` that only the data decides."""
    return set() if _without_symbols(x) else _real("free_unbacked_symbols")(x)


def _iterate_exprs(val: Any) -> Iterator[Any]:
    """The symbolic expressions in `val`."""
    return iter(()) if _without_symbols(val) else _real("_iterate_exprs")(val)


def _iterate_nodes(val: Any) -> Iterator[Any]:
    """The symbolic nodes in `val`."""
    return iter(()) if _without_symbols(val) else _real("_iterate_nodes")(val)


def compute_unbacked_bindings(shape_env: Any, *args: Any, **options: Any) -> Any:
    """Where new symbols are in a result: nowhere if nobody makes symbols."""
    if shape_env is None:
        return None
    return _real("compute_unbacked_bindings")(shape_env, *args, **options)


class GuardOnDataDependentSymNode(RuntimeError):
    """For `except` clauses: while the real module is not imported, nobody raises its error."""


def Max(*args: Any) -> Any:
    """torch.utils._sympy.functions.Max"""
    return import_module(FUNCTIONS).Max(*args)


class NoSympy(ModuleType):
    """Answers `import sympy` in functions that ask isinstance(x, sympy.Basic).

    While nobody has imported sympy, no object is one. Every other name imports it.
    """

    class _Basic:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "Basic":
            return getattr(sys.modules.get("sympy"), name, self._Basic)
        return getattr(import_module("sympy"), name)
