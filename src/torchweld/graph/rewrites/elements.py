"""What an element of a mask is, as a function of its place, where sizes vary and no input decides.

Such a mask has no value that could be looked at: it has another one for every size. Its elements
are followed back to ranges and constants instead. An element is one of

    Expr        an integer, of its place and of sizes
    frozenset   a truth: every expression in it is at least 0
    float       a number
    Choice      one of two numbers, by a truth

and whatever is none of them is not known (`UnknownError`): the mask is then read as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.graph.rewrites.node import RESHAPES, arg, tensor
from torchweld.ir.expr import ONE, ZERO, Expr, Int, LoopSym, Sym, as_expr, index_symbol, substitute
from torchweld.ir.graph import VAL
from torchweld.ir.size_node import expr_of

aten = torch.ops.aten

Truth = frozenset[Expr]
Place = tuple[Expr, ...]
TRUE: Truth = frozenset()
FALSE: Truth = frozenset((as_expr(-1),))
_INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True)
class Choice:
    """`yes` where the truth holds, else `no`."""

    truth: Truth
    yes: float
    no: float


Element = Expr | Truth | float | Choice


class UnknownError(Exception):
    """An element that is not followed."""


def at_least_0(e: Expr) -> Truth:
    if e.lo is not None and e.lo >= 0:
        return TRUE
    return FALSE if e.hi is not None and e.hi < 0 else frozenset((e,))


def both(a: Truth, b: Truth) -> Truth:
    return FALSE if FALSE in (a, b) else a | b


def negated(t: Truth) -> Truth:
    """Errors: UnknownError for more than one condition."""
    if t in (TRUE, FALSE):
        return FALSE if t == TRUE else TRUE
    if len(t) > 1:
        raise UnknownError
    (e,) = t
    return at_least_0(-e - 1)


def places_of(x: Tensor) -> Place:
    """Any place of a tensor, in symbols."""
    return tuple(ZERO if _is_one(n) else index_symbol(f"place{d}", _size(n))
                 for d, n in enumerate(x.shape))  # fmt: skip


@dataclass(slots=True)
class Elements:
    """The elements of one graph's values. Errors of `at`: UnknownError."""

    known: dict[tuple[Node, Place], Element] = field(default_factory=dict)

    def at(self, node: Any, place: Place) -> Element:
        if not isinstance(node, Node) or node.target not in _RULES:
            raise UnknownError
        key = (node, place)
        if key not in self.known:
            self.known[key] = _RULES[node.target](self, node, place)
        return self.known[key]

    def operand(self, x: Any, place: Place) -> Element:
        """What an operator that broadcasts reads for an element of its result."""
        if isinstance(x, bool):
            return TRUE if x else FALSE
        if isinstance(x, float):
            return x
        if not isinstance(x, Node) or not isinstance(x.meta[VAL], Tensor):
            return _size(x)
        shape = tensor(x).shape
        ends = zip(shape, place[len(place) - len(shape) :], strict=True)
        return self.at(x, tuple(ZERO if _is_one(n) else p for n, p in ends))


def _is_one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


def _size(x: Any) -> Expr:
    value = x.meta[VAL] if isinstance(x, Node) else x
    try:
        return expr_of(value)
    except TypeError:
        raise UnknownError from None


def _source(node: Node) -> Node:
    x = node.args[0]
    if not isinstance(x, Node):
        raise UnknownError
    return x


def _dim(node: Node) -> int:
    return int(arg(node, 1, "dim", 0)) % tensor(_source(node)).dim()


# ---------------------------------------------------------------- made of nothing
def _arange(elements: Elements, node: Node, place: Place) -> Element:
    if tensor(node).dtype not in _INTEGERS:
        raise UnknownError
    start, step = (0, 1) if node.target is aten.arange.default else (node.args[0], 1)
    if node.target is aten.arange.start_step:
        step = arg(node, 2, "step", 1)
    return _size(start) + _size(step) * place[0]


def _filled(where: int | float, index: int = -1) -> Callable[[Elements, Node, Place], Element]:
    """An operator that fills a tensor: with a number, or with its argument at `index`."""

    def rule(elements: Elements, node: Node, place: Place) -> Element:
        value = where if index < 0 else node.args[index]
        if not isinstance(value, bool | int | float):
            raise UnknownError
        return _number(value, tensor(node).dtype)

    return rule


def _number(value: float, dtype: torch.dtype) -> Element:
    rounded = torch.tensor(value, dtype=dtype).item()
    if dtype is torch.bool:
        return TRUE if rounded else FALSE
    return float(rounded) if dtype.is_floating_point else as_expr(int(rounded))


# ---------------------------------------------------------------- moved
def _unsqueeze(elements: Elements, node: Node, place: Place) -> Element:
    dim = int(arg(node, 1, "dim", 0)) % len(place)
    return elements.at(node.args[0], place[:dim] + place[dim + 1 :])


def _expand(elements: Elements, node: Node, place: Place) -> Element:
    return elements.operand(node.args[0], place)


def _reshape(elements: Elements, node: Node, place: Place) -> Element:
    """Where only axes of one element come and go."""
    before, after = (tensor(n).shape for n in (_source(node), node))
    kept = [p for p, n in zip(place, after, strict=True) if not _is_one(n)]
    sizes = [[_size(n) for n in shape if not _is_one(n)] for shape in (before, after)]
    if sizes[0] != sizes[1]:
        raise UnknownError
    left = iter(kept)
    return elements.at(node.args[0], tuple(ZERO if _is_one(n) else next(left) for n in before))


def _slice(elements: Elements, node: Node, place: Place) -> Element:
    dim, start, step = _dim(node), arg(node, 2, "start"), arg(node, 4, "step", 1)
    first = ZERO if start is None else _size(start)
    if first.lo is None or first.lo < 0:
        raise UnknownError
    return elements.at(node.args[0], _changed(place, dim, place[dim] * _size(step) + first))


def _transpose(elements: Elements, node: Node, place: Place) -> Element:
    swapped = list(place)
    a, b = (int(d) % len(place) for d in node.args[1:3])  # type: ignore[arg-type]
    swapped[a], swapped[b] = swapped[b], swapped[a]
    return elements.at(node.args[0], tuple(swapped))


def _changed(place: Place, dim: int, e: Expr) -> Place:
    return (*place[:dim], e, *place[dim + 1 :])


def _cat(elements: Elements, node: Node, place: Place) -> Element:
    """One element in front of many whose formula it fits, as in differences of a range."""
    pieces, dim = arg(node, 0, "tensors"), int(arg(node, 1, "dim", 0)) % len(place)
    if len(pieces) != 2 or not _is_one(tensor(pieces[0]).shape[dim]):
        raise UnknownError
    at = Sym.make(f"place in {node.name}", None, None)
    formula = elements.at(pieces[1], _changed(place, dim, at))
    if not isinstance(formula, Expr):
        raise UnknownError
    lowest = place[dim].lo
    if lowest is None or lowest < 1:
        first = elements.at(pieces[0], _changed(place, dim, ZERO))
        if first is not substitute(formula, {at: as_expr(-1)}):
            raise UnknownError
    return substitute(formula, {at: place[dim] - 1})


def _index(elements: Elements, node: Node, place: Place) -> Element:
    source, indices = _source(node), arg(node, 1, "indices")
    if len(indices) != tensor(source).dim():
        raise UnknownError
    found = tuple(elements.operand(i, place) for i in indices)
    for e, n in zip(found, tensor(source).shape, strict=True):
        if not isinstance(e, Expr) or not _is_inside(e, _size(n)):
            raise UnknownError
    return elements.at(source, found)  # type: ignore[arg-type]


def _is_inside(e: Expr, size: Expr) -> bool:
    if e.lo is None or e.lo < 0:
        return False
    last = (size - 1 - e).lo
    return (isinstance(e, LoopSym) and e.size is size) or (last is not None and last >= 0)


# ---------------------------------------------------------------- computed
def _converted(elements: Elements, node: Node, place: Place) -> Element:
    value, dtype = elements.at(node.args[0], place), tensor(node).dtype
    if isinstance(value, Expr):
        if dtype is torch.int64 or dtype is tensor(_source(node)).dtype:
            return value
        if isinstance(value, Int):
            return _number(value.n, dtype)
    if isinstance(value, frozenset):
        if dtype is torch.bool:
            return value
        value = Choice(value, 1.0, 0.0)
    if not dtype.is_floating_point:
        raise UnknownError
    return _mapped(value, lambda v: torch.tensor(v, dtype=dtype).item())


def _mapped(value: Element, fn: Callable[[float], Any]) -> Element:
    if isinstance(value, Choice):
        return Choice(value.truth, float(fn(value.yes)), float(fn(value.no)))
    if isinstance(value, float):
        return float(fn(value))
    raise UnknownError


def _arithmetic(sign: int) -> Callable[[Elements, Node, Place], Element]:
    """Sums of integers, and numbers by the operator itself."""

    def rule(elements: Elements, node: Node, place: Place) -> Element:
        a, b = (elements.operand(x, place) for x in node.args[:2])
        if isinstance(a, Expr) and isinstance(b, Expr) and tensor(node).dtype in _INTEGERS:
            if sign == 0:
                return a * b
            return a + b * sign if arg(node, 2, "alpha", 1) == 1 else _refused()
        return _by_operator(node, a, b)

    return rule


def _refused() -> Element:
    raise UnknownError


def _by_operator(node: Node, a: Element, b: Element) -> Element:
    """An operator of two numbers, one of which a truth chooses, run for both of them."""
    if not tensor(node).dtype.is_floating_point or len(node.args) > 2 or node.kwargs:
        raise UnknownError
    given = [
        torch.tensor(0.0, dtype=tensor(x).dtype) if isinstance(x, Node) else x
        for x in node.args[:2]
    ]
    if any(isinstance(g, Tensor) and not g.dtype.is_floating_point for g in given):
        raise UnknownError

    def run(left: float, right: float) -> float:
        numbers = (
            torch.full_like(g, v) if isinstance(g, Tensor) else v
            for g, v in zip(given, (left, right), strict=True)
        )
        return float(node.target(*numbers))  # type: ignore[operator]

    if isinstance(a, Expr | float) and isinstance(b, Choice):
        return _mapped(b, lambda v: run(_plain(a), v))
    return _mapped(a, lambda v: run(v, _plain(b)))


def _plain(x: Element) -> float:
    if isinstance(x, Int):
        return float(x.n)
    if not isinstance(x, float):
        raise UnknownError
    return x


def _compared(fn: Callable[[Expr, Expr], Truth]) -> Callable[[Elements, Node, Place], Element]:
    def rule(elements: Elements, node: Node, place: Place) -> Element:
        a, b = (elements.operand(x, place) for x in node.args[:2])
        if not isinstance(a, Expr) or not isinstance(b, Expr):
            raise UnknownError
        return fn(a, b)

    return rule


def _equal(elements: Elements, node: Node, place: Place) -> Truth:
    a, b = (elements.operand(x, place) for x in node.args[:2])
    if isinstance(a, Choice) and a.yes != a.no and isinstance(b, float | Int):
        value = _plain(b)
        if value in (a.yes, a.no):
            return a.truth if value == a.yes else negated(a.truth)
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        raise UnknownError
    apart = a - b
    if apart is ZERO:
        return TRUE
    if apart.lo is None or apart.hi is None or apart.lo <= 0 <= apart.hi:
        raise UnknownError
    return FALSE


def _different(elements: Elements, node: Node, place: Place) -> Truth:
    return negated(_equal(elements, node, place))


def _and(elements: Elements, node: Node, place: Place) -> Truth:
    a, b = _truths(elements, node, place)
    return both(a, b)


def _or(elements: Elements, node: Node, place: Place) -> Truth:
    a, b = _truths(elements, node, place)
    if TRUE in (a, b) or a == b:
        return TRUE if TRUE in (a, b) else a
    if FALSE in (a, b):
        return b if a == FALSE else a
    raise UnknownError


def _not(elements: Elements, node: Node, place: Place) -> Truth:
    value = elements.at(node.args[0], place)
    if not isinstance(value, frozenset):
        raise UnknownError
    return negated(value)


def _truths(elements: Elements, node: Node, place: Place) -> Iterator[Truth]:
    for x in node.args[:2]:
        value = elements.operand(x, place)
        if not isinstance(value, frozenset):
            raise UnknownError
        yield value


def _where(elements: Elements, node: Node, place: Place) -> Element:
    truth, yes, no = (elements.operand(x, place) for x in node.args)
    return _chosen(truth, yes, no)


def _masked_fill(elements: Elements, node: Node, place: Place) -> Element:
    x, truth, value = (elements.operand(x, place) for x in node.args)
    dtype = tensor(node).dtype
    if not dtype.is_floating_point:
        raise UnknownError
    return _chosen(truth, torch.tensor(_plain(value), dtype=dtype).item(), x)


def _chosen(truth: Element, yes: Element, no: Element) -> Element:
    if not isinstance(truth, frozenset) or not isinstance(yes, float) or not isinstance(no, float):
        raise UnknownError
    return Choice(truth, yes, no)


def _triangle(sign: int) -> Callable[[Elements, Node, Place], Element]:
    def rule(elements: Elements, node: Node, place: Place) -> Element:
        value, diagonal = elements.at(node.args[0], place), _size(arg(node, 1, "diagonal", 0))
        kept = at_least_0((place[-1] - place[-2] - diagonal) * sign)
        if isinstance(value, frozenset):
            return both(value, kept)
        return Choice(kept, _plain(value), 0.0)

    return rule


def _cumsum(elements: Elements, node: Node, place: Place) -> Element:
    """Of nothing but zeros."""
    dim = _dim(node)
    at = index_symbol(f"place in {node.name}", _size(tensor(node).shape[dim]))
    value = elements.at(node.args[0], _changed(place, dim, at))
    if value not in (FALSE, ZERO) or tensor(node).dtype not in _INTEGERS:
        raise UnknownError
    return ZERO


_RULES: dict[Any, Callable[[Elements, Node, Place], Element]] = {
    aten.arange.default: _arange, aten.arange.start: _arange, aten.arange.start_step: _arange,
    aten.zeros.default: _filled(0), aten.new_zeros.default: _filled(0),
    aten.zeros_like.default: _filled(0), aten.ones.default: _filled(1),
    aten.new_ones.default: _filled(1), aten.ones_like.default: _filled(1),
    aten.full.default: _filled(0, 1), aten.full_like.default: _filled(0, 1),
    aten.new_full.default: _filled(0, 2), aten.scalar_tensor.default: _filled(0, 0),
    aten.unsqueeze.default: _unsqueeze, aten.expand.default: _expand, aten.slice.Tensor: _slice,
    aten.transpose.int: _transpose, aten.cat.default: _cat, aten.index.Tensor: _index,
    **dict.fromkeys(RESHAPES, _reshape),
    aten._to_copy.default: _converted, aten.clone.default: _converted,
    aten.add.Tensor: _arithmetic(1), aten.sub.Tensor: _arithmetic(-1),
    aten.mul.Tensor: _arithmetic(0), aten.rsub.Scalar: lambda e, n, p: _by_operator(
        n, *(e.operand(x, p) for x in n.args[:2])),
    aten.le.Tensor: _compared(lambda a, b: at_least_0(b - a)),
    aten.lt.Tensor: _compared(lambda a, b: at_least_0(b - a - ONE)),
    aten.ge.Tensor: _compared(lambda a, b: at_least_0(a - b)),
    aten.gt.Tensor: _compared(lambda a, b: at_least_0(a - b - ONE)),
    aten.le.Scalar: _compared(lambda a, b: at_least_0(b - a)),
    aten.lt.Scalar: _compared(lambda a, b: at_least_0(b - a - ONE)),
    aten.ge.Scalar: _compared(lambda a, b: at_least_0(a - b)),
    aten.gt.Scalar: _compared(lambda a, b: at_least_0(a - b - ONE)),
    aten.eq.Tensor: _equal, aten.eq.Scalar: _equal,
    aten.ne.Tensor: _different, aten.ne.Scalar: _different,
    aten.bitwise_and.Tensor: _and, aten.logical_and.default: _and,
    aten.bitwise_or.Tensor: _or, aten.logical_or.default: _or,
    aten.bitwise_not.default: _not, aten.logical_not.default: _not,
    aten.where.self: _where, aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.tril.default: _triangle(-1), aten.triu.default: _triangle(1), aten.cumsum.default: _cumsum,
}  # fmt: skip
