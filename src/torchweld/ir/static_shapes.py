"""What torch.fx.experimental.symbolic_shapes answers about plain numbers, without importing it.

It imports sympy, which takes half a second or more, to answer questions such as "is this size
known to be 1?". Where every number is a plain int, float or bool, the answers are these. A question
about anything else, and every name that is missing here, goes to the real module, which is imported
then. `torch_functions` and `quiet` say who reads these names.

Our own symbolic numbers (`size_node`) are answered for as well.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from torchweld.ir.size_node import SizeNode, node_of
from torchweld.ir.size_values import symbols_of

SHAPES = "torch.fx.experimental.symbolic_shapes"
FUNCTIONS = "torch.utils._sympy.functions"

# One type each: a subclass is the real module's to judge.
_NUMBERS = (int, float, bool)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module(SHAPES), name)


def _identity(
    kinds: tuple[type, ...], name: str, ours: Callable[[SizeNode], object]
) -> Callable[..., Any]:
    """A question whose answer about a number of these types is the number itself."""

    def answer(a: Any, *args: Any, **options: Any) -> Any:
        if type(a) in kinds:
            return a
        node = node_of(a)
        return _real(name)(a, *args, **options) if node is None else ours(node)

    answer.__name__ = name
    return answer


def _fixed(
    value: object, name: str, ours: Callable[[SizeNode], object]
) -> Callable[..., Any]:
    """A question whose answer about any plain number is `value`."""

    def answer(a: Any, *args: Any, **options: Any) -> Any:
        if type(a) in _NUMBERS:
            return value
        node = node_of(a)
        return _real(name)(a, *args, **options) if node is None else ours(node)

    answer.__name__ = name
    return answer


def _real(name: str) -> Any:
    return getattr(import_module(SHAPES), name)


def _hint(node: SizeNode) -> object:
    return node.hint


def _known(node: SizeNode) -> bool:
    return node.statically_known_true("", 0)


guard_or_false = _identity((bool,), "guard_or_false", lambda n: n.guard_or_false("", 0))
guard_or_true = _identity((bool,), "guard_or_true", lambda n: n.guard_or_true("", 0))
guard_size_oblivious = _identity((bool,), "guard_size_oblivious",
                                 lambda n: n.guard_or_false("", 0))  # fmt: skip
statically_known_true = _identity((bool,), "statically_known_true", _known)
expect_true = _identity((bool,), "expect_true", lambda n: n.expect_true("", 0))
guard_bool = _identity((bool,), "guard_bool", SizeNode.bool_)
guard_int = _identity((int,), "guard_int", SizeNode.int_)
guard_float = _identity((float,), "guard_float", SizeNode.fixed)
guard_scalar = _identity(_NUMBERS, "guard_scalar", SizeNode.fixed)
optimization_hint = _identity((int,), "optimization_hint", _hint)
guarding_hint_or_throw = _identity((int, bool), "guarding_hint_or_throw", _hint)
size_hint = _identity((int,), "size_hint", _hint)  # torch 2.11

is_symbolic = _fixed(False, "is_symbolic", SizeNode.is_symbolic)
is_nested_int = _fixed(False, "is_nested_int", lambda node: False)
is_concrete_int = _fixed(True, "is_concrete_int", SizeNode.is_constant)
has_static_value = _fixed(True, "has_static_value", SizeNode.is_constant)
has_guarding_hint = _fixed(True, "has_guarding_hint", lambda node: not node.is_open())
has_hint = _fixed(True, "has_hint", lambda node: not node.is_open())  # torch 2.11
_advise_is_size = _fixed(None, "_advise_is_size", lambda node: None)
_advise_is_bounded = _fixed(None, "_advise_is_bounded", lambda node: None)


def _constrain_range_for_size(*args: Any, **options: Any) -> Any:
    """Only asked about symbols, but imported by functions that then find that there are none."""
    return _real("_constrain_range_for_size")(*args, **options)


def sym_and(x: Any, *others: Any) -> Any:
    """x and all others."""
    if all(_is_truth(y) for y in (x, *others)):
        return functools.reduce(operator.and_, others, x)
    return _real("sym_and")(x, *others)


def sym_or(x: Any, *others: Any) -> Any:
    """x or any other."""
    if all(_is_truth(y) for y in (x, *others)):
        return functools.reduce(operator.or_, others, x)
    return _real("sym_or")(x, *others)


def _is_truth(x: object) -> bool:
    return type(x) is bool or node_of(x) is not None


def sym_eq(x: Any, y: Any) -> Any:
    """Whether two ints, or two sequences of ints, are equal; tuples equal lists."""
    if _is_int(x) and _is_int(y):
        return x == y
    if _ints(x) and _ints(y):
        if all(type(n) is int for n in (*x, *y)):
            return list(x) == list(y)
        pairs = zip(x, y, strict=True) if len(x) == len(y) else ()
        return len(x) == len(y) and sym_and(True, *(a == b for a, b in pairs))
    return _real("sym_eq")(x, y)


def _is_int(x: object) -> bool:
    return type(x) is int or node_of(x) is not None


def _ints(x: object) -> bool:
    return isinstance(x, (tuple, list)) and all(_is_int(n) for n in x)


def _ours(x: object) -> list[SizeNode] | None:
    """Our symbolic numbers in `x`; None if something in it is not ours to judge."""
    if x is None or type(x) in _NUMBERS:
        return []
    if isinstance(x, torch.Tensor):
        dense = x.layout == torch.strided and not x.is_nested
        if dense and not x._has_symbolic_sizes_strides:
            return []
        return _ours((*x.shape, *x.stride(), x.storage_offset())) if dense else None
    if isinstance(x, (tuple, list)):
        found = [_ours(item) for item in x]
        return None if None in found else [n for part in found for n in part or ()]
    node = node_of(x)
    return None if node is None else [node] if node.is_symbolic() else []


def _without_symbols(x: object) -> bool:
    """Whether no number in `x` is symbolic, as far as that is seen without asking for nodes."""
    return _ours(x) == []


def has_free_symbols(val: Any) -> bool:
    """Whether a symbol is part of a size in `val`."""
    found = _ours(val)
    return _real("has_free_symbols")(val) if found is None else bool(found)


def free_symbols(val: Any) -> Any:
    """The symbols in `val`."""
    found = _ours(val)
    if found is None:
        return _real("free_symbols")(val)
    return set().union(*(symbols_of(n.value) for n in found))


def has_free_unbacked_symbols(x: Any) -> bool:
    """Whether a symbol that only the data decides is part of a size in `x`."""
    found = _ours(x)
    if found is None:
        return bool(_real("has_free_unbacked_symbols")(x))
    return any(n.is_open() for n in found)


def free_unbacked_symbols(x: Any) -> Any:
    """The symbols in `x` that only the data decides."""
    found = _ours(x)
    if found is None:
        return _real("free_unbacked_symbols")(x)
    return set().union(*(n.env.unbacked & symbols_of(n.value) for n in found))


def _iterate_exprs(val: Any) -> Iterator[Any]:
    """The symbolic expressions in `val`."""
    found = _ours(val)
    return _real("_iterate_exprs")(val) if found is None else iter([n.expr for n in found])


def _iterate_nodes(val: Any) -> Iterator[Any]:
    """The symbolic nodes in `val`."""
    found = _ours(val)
    return _real("_iterate_nodes")(val) if found is None else iter(found)


def compute_unbacked_bindings(shape_env: Any, *args: Any, **options: Any) -> Any:
    """Where new symbols are in a result: nowhere if nobody makes symbols."""
    if shape_env is None:
        return None
    return _real("compute_unbacked_bindings")(shape_env, *args, **options)


class GuardOnDataDependentSymNode(RuntimeError):
    """For `except` clauses: while the real module is not imported, nobody raises its error."""


def Max(*args: Any) -> Any:
    """torch.utils._sympy.functions.Max"""
    if all(_is_int(x) for x in args):
        return functools.reduce(torch.sym_max, args)
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
