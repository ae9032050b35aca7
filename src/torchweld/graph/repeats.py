"""Equal stretches of a captured graph that follow one another, as the layers of a model do.

    before   R0  R1  R2  R3  ...  R(n-1)   after

A stretch is the one before it with other parameters: every argument is either the value as far
back, or the same value from before all stretches, or a placeholder of its own. The graph with
a few of them is compiled, and the Program is lengthened afterwards (ir/lengthen.py), so the time of
the stages grows with what is different in a model, not with its depth.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.graph.schema import writes_in_place
from torchweld.ir.graph import OWNED, VAL
from torchweld.ir.lengthen import Inputs
from torchweld.ir.size_node import expr_of, node_of

# A stretch in the middle has an equal one on both sides; two of those are compared, the first and
# the last are like no other.
_LEAST_KEPT = 5
# fewer cost more to find than to compile
_LEAST_COUNT = _LEAST_KEPT + 2
_LEAST_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Repeats:
    """calls[start + k * period :][:period] is stretch k of `count`; own: its placeholders, by slot.

    Slot s of every stretch is used at the same places.
    """

    calls: tuple[Node, ...]
    start: int
    period: int
    count: int
    own: tuple[tuple[Node, ...], ...]

    @property
    def kept(self) -> int:
        """How many are compiled."""
        return _LEAST_KEPT


def find_repeats(graph: Graph) -> Repeats | None:
    """The equal stretches of a graph; None if there are too few, or something forbids it."""
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    if len(calls) < _LEAST_COUNT * _LEAST_LENGTH:
        return None
    tokens = _tokens(calls)
    period = _period(tokens)
    if period is None or any(map(_writes_input, calls)):
        return None
    for start, several, count in _candidates(tokens, period):
        own = _own(calls, start, several, count)
        found = own and Repeats(tuple(calls), start, several, count, own)
        if found and _apart(graph, found):
            return found
    return None


def shortened(graph: Graph, r: Repeats) -> Graph:
    """The graph with the first stretches only; what follows them reads the last of these."""
    gone = {n for row in r.own[r.kept :] for n in row}
    cut = r.start + r.kept * r.period
    end = r.start + r.count * r.period
    shift = end - cut
    new = Graph()
    made: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node not in gone:
            made[node] = new.node_copy(node)
    for node in r.calls[:cut]:
        made[node] = new.node_copy(node, made.__getitem__)
    # the last two of all are the last two that are left
    for i in range(max(end - 2 * r.period, cut), end):
        made[r.calls[i]] = made[r.calls[i - shift]]
    for node in r.calls[end:]:
        made[node] = new.node_copy(node, made.__getitem__)
    last = graph.output_node()
    made[last] = new.node_copy(last, made.__getitem__)
    return new


def inputs_of(graph: Graph, r: Repeats) -> Inputs:
    """How the inputs of the shortened graph and of the whole one correspond."""
    label = {p: (k, slot) for k, row in enumerate(r.own) for slot, p in enumerate(row)}
    labels: dict[int, tuple[int, int]] = {}
    shared: dict[int, int] = {}
    places: dict[tuple[int, int], int] = {}
    short = 0
    for long, p in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        if p in label:
            places[label[p]] = long
            if label[p][0] >= r.kept:
                continue
            labels[short] = label[p]
        else:
            shared[short] = long
        short += 1
    return Inputs(labels, shared, places, r.count - r.kept)


# ---------------------------------------------------------------- equal calls
def _tokens(calls: Sequence[Node]) -> list[int]:
    """A number for each call: equal for those that do the same to values that look the same."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(_token(n), len(numbers)) for n in calls]


def _token(n: Node) -> object:
    return n.op, n.target, _frozen(n.args), _frozen(n.kwargs), _looks(n.meta.get(VAL))


def _frozen(x: Any) -> object:
    if isinstance(x, Node):
        return (x.op == "placeholder", _looks(x.meta.get(VAL)), bool(x.meta.get(OWNED)))
    if isinstance(x, (tuple, list)):
        return (type(x), *[_frozen(i) for i in x])
    if isinstance(x, dict):
        return tuple([(k, _frozen(v)) for k, v in x.items()])
    if isinstance(x, slice):
        return (slice, _frozen(x.start), _frozen(x.stop), _frozen(x.step))
    if isinstance(x, (float, complex)):
        return (type(x), repr(x))  # which tells -0.0 from 0.0
    if x is None or isinstance(x, _CONSTANTS):
        return (type(x), x)
    return (type(x), id(x))


_CONSTANTS = (bool, int, str, torch.dtype, torch.device, torch.layout,
              torch.memory_format)  # fmt: skip


def _looks(value: Any) -> object:
    if isinstance(value, Tensor):
        sizes, strides = (tuple(map(_size, row)) for row in (value.shape, value.stride()))
        return (sizes, strides, value.dtype, value.device, value.requires_grad,
                _size(value.storage_offset()), value.is_inference())  # fmt: skip
    if isinstance(value, (tuple, list)):
        return tuple([_looks(v) for v in value])
    return (type(value), _size(value))


def _size(n: Any) -> object:
    """A size so that equal ones are equal: an expression, if it is symbolic."""
    if type(n) is int:
        return n
    node = node_of(n)
    if node is None:
        return None
    return expr_of(n) if node.is_int() else id(node)


# ---------------------------------------------------------------- where they repeat
def _run(tokens: Sequence[int], period: int) -> tuple[int, int]:
    """Start and number of the stretches of the longest run with this period."""
    best = (0, 0)
    begin = None
    for i in range(len(tokens) - period + 1):
        same = i + period < len(tokens) and tokens[i] == tokens[i + period]
        if same and begin is None:
            begin = i
        elif not same and begin is not None:
            best = max(best, (i + period - begin, begin), key=lambda b: b[0])
            begin = None
    length, start = best
    return start + length % period, length // period  # what is left over comes before


def _candidates(tokens: Sequence[int], period: int) -> Iterator[tuple[int, int, int]]:
    """Start, period and number of stretches that may be equal.

    Layers of two kinds that take turns may look alike, and all may read what the first one made.
    """
    for several in (period, 2 * period):
        start, count = _run(tokens, several)
        for left_out in (0, 1):
            if count - left_out >= _LEAST_COUNT:
                yield start + left_out * several, several, count - left_out


def _period(tokens: Sequence[int]) -> int | None:
    """The distance at which most kinds of calls come back regularly."""
    places: dict[int, list[int]] = {}
    for i, t in enumerate(tokens):
        places.setdefault(t, []).append(i)
    votes: Counter[int] = Counter()
    for at in places.values():
        if len(at) >= _LEAST_COUNT:
            gap, many = Counter(b - a for a, b in pairwise(at)).most_common(1)[0]
            if many >= _LEAST_COUNT - 1 and many * 4 >= len(at) * 3 - 4:
                votes[gap] += 1
    usual = [p for p, _ in votes.most_common() if p >= _LEAST_LENGTH]
    return usual[0] if usual else None


# ---------------------------------------------------------------- what they read
def _own(
    calls: Sequence[Node], start: int, period: int, count: int
) -> tuple[tuple[Node, ...], ...] | None:
    """The placeholders of each stretch, by slot; None if a stretch is not the one before it."""
    inside = calls[start : start + period * count]
    if any(n.meta.get(VAL) is None for n in inside):  # a mode is set, or something is checked
        return None
    at = {n: i for i, n in enumerate(calls)}
    follows: list[dict[Node, Node]] = []
    for k in range(count - 1):
        next_of: dict[Node, Node] = {}
        for i in range(start + k * period, start + (k + 1) * period):
            pairs = zip(_operands(calls[i]), _operands(calls[i + period]), strict=True)
            if not all(_matches(a, b, at, start, period, k, next_of) for a, b in pairs):
                return None
        own = {a: b for a, b in next_of.items() if a is not b}
        if len(set(own.values())) != len(own) or set(own.values()) & (next_of.keys() - own.keys()):
            return None
        follows.append(own)
    rows = [tuple(follows[0])]
    for own in follows:
        if own.keys() != set(rows[-1]):
            return None
        rows.append(tuple(own[p] for p in rows[-1]))
    return tuple(rows)


def _operands(n: Node) -> Iterator[Node]:
    """The nodes in the arguments, in order, each as often as it stands there."""
    stack: list[Any] = [n.kwargs, n.args]
    while stack:
        x = stack.pop()
        if isinstance(x, Node):
            yield x
        elif isinstance(x, (tuple, list)):
            stack.extend(reversed(x))
        elif isinstance(x, dict):
            stack.extend(x.values())
        elif isinstance(x, slice):
            stack.extend((x.step, x.stop, x.start))


def _matches(a: Node, b: Node, at: dict[Node, int], start: int, period: int, k: int,
             next_of: dict[Node, Node]) -> bool:  # fmt: skip
    """Whether `b` is to stretch k + 1 what `a` is to stretch k."""
    if a.op == "placeholder":
        return b.op == "placeholder" and next_of.setdefault(a, b) is b
    if b.op == "placeholder":
        return False
    if at[b] == at[a] + period:
        return at[a] >= start or k == 0
    return at[a] < start and (a is b or (k == 0 and at[b] >= start))


def _apart(graph: Graph, r: Repeats) -> bool:
    """Whether nobody else reads what a stretch owns, and what follows only reads the last two."""
    end = r.start + r.count * r.period
    stretch = {n: (i - r.start) // r.period for i, n in enumerate(r.calls) if r.start <= i < end}
    for k, row in enumerate(r.own):
        if any(stretch.get(user) != k for p in row for user in p.users):
            return False
    after = [*r.calls[end:], graph.output_node()]
    read = [stretch[a] for n in after for a in n.all_input_nodes if a in stretch]
    return all(k >= r.count - 2 for k in read)


def _writes_input(n: Node) -> bool:
    """Whether a call plainly writes to an input; what hides it shows in the Program."""
    if n.target is not operator.setitem and not writes_in_place(n):
        return False
    return any(a.op == "placeholder" for a in n.all_input_nodes[:1])
