"""Stretched: the joint graph of a model with many equal layers, known from one with few of them.

`graph/repeats.py` shortens the captured graph; its joint graph has equal stretches forward and, in
the opposite order, backward. What a stretch saves is named by the captured call that made it, so
that outputs of the forward Program and inputs of the backward one correspond, and both can be
lengthened (ir/lengthen.py).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.fx import Graph, Node

from torchweld.graph.repeats import Repeats, inputs_of
from torchweld.ir.graph import ORIGIN, VAL, Backward, GraphPair, Joint
from torchweld.ir.lengthen import Inputs, Label

Name = Label | None  # of a value: None if it belongs to no stretch


@dataclass(frozen=True, slots=True)
class Stretched:
    """short: of the shortened graph. long: what is known of that of the whole graph; its `graph`
    and `tangents` are those of `short`, and in `saved` a node stands for its like in all stretches.

    forward: how the forward Program is lengthened. kept, count: stretches of the two.
    names: of what the two save.
    """

    short: Joint
    long: Joint
    forward: Inputs
    kept: int
    count: int
    names: tuple[tuple[Name, ...], tuple[Name, ...]]

    def backward(self, cut: Backward, given: Sequence[bool]) -> tuple[Inputs, Backward] | str:
        """How the Program of a backward graph cut from `short` is lengthened, and where the
        gradients are then; or why it is not."""
        places = {place: label for label, place in self.forward.places.items()}
        parts = (self.short, self.forward.labels, self.kept), (self.long, places, self.count)
        rows: list[list[Name]] = []
        for (joint, labels, count), names in zip(parts, self.names, strict=True):
            rest: list[Name] = [None] * len(joint.kept_results)
            row = [*(labels.get(i) for i in joint.kept_inputs), *rest, *names]
            tangents = [t for t, there in zip(joint.tangents, given, strict=True) if t and there]
            alone = *tangents, *cut.numbers
            rows.append([*(_turned(n, count) for n in row), *(None for _ in alone)])
        short, long = rows
        unnamed = [[i for i, n in enumerate(row) if n is None] for row in rows]
        if len(unnamed[0]) != len(unnamed[1]):
            return "a stretch keeps other inputs than the next"
        made = self._gradients(cut, places)
        if made is None:
            return "a gradient of a stretch is used twice"
        results, returned, gradients = made
        inputs = Inputs(
            labels={i: n for i, n in enumerate(short) if n is not None},
            shared=dict(zip(*unnamed, strict=True)),
            places={n: i for i, n in enumerate(long) if n is not None},
            more=self.forward.more, results=results, returned=returned,
        )  # fmt: skip
        return inputs, Backward(cut.pair, gradients, cut.numbers)

    def _gradients(
        self, cut: Backward, places: dict[int, Label]
    ) -> tuple[dict[int, Label], tuple[int | Label, ...], tuple[int | None, ...]] | None:
        """Labels of the short Program's outputs, the long one's, and which is whose gradient."""
        out = dict(zip(self.short.gradients, cut.gradients, strict=True))
        results: dict[int, Label] = {}
        for i, label in self.forward.labels.items():
            place = out.get(i)
            if place is not None:
                if sum(p == place for p in cut.gradients) > 1:
                    return None
                results[place] = (self.kept - 1 - label[0], label[1])
        at = {label: i for i, label in self.forward.labels.items()}
        alone = {long: short for short, long in self.forward.shared.items()}
        returned: list[int | Label] = []
        gradients: list[int | None] = []
        for i in self.long.gradients:
            mine = places.get(i)
            like = alone[i] if mine is None else at[_like(mine, self.kept, self.count)]
            name: int | Label | None = out.get(like)
            if mine is not None and name is not None:
                name = (self.count - 1 - mine[0], mine[1])
            if name is not None and name not in returned:
                returned.append(name)
            gradients.append(None if name is None else returned.index(name))
        return results, tuple(returned), tuple(gradients)


def _turned(name: Name, count: int) -> Name:
    """The name in a backward, which begins with the last stretch."""
    return None if name is None else (count - 1 - name[0], name[1])


def _like(label: Label, kept: int, count: int) -> Label:
    """The label in the shortened graph of what is like this in the whole one."""
    k = 0 if label[0] == 0 else kept - 1 if label[0] == count - 1 else 1
    return k, label[1]


def stretched(graph: Graph, few: Graph, r: Repeats, short: Joint) -> Stretched | str:
    """The joint graph of `graph`, seen through that of its shortened form; or why it is not seen.

    few: the shortened graph, of which `short` is the joint graph.
    """
    inputs = inputs_of(graph, r)
    if short.forward.mutated or short.reread:
        return "inputs are changed"
    if any(row.input in inputs.labels for row in short.forward.sizes):
        return "sizes are read of a parameter"
    kept_inputs = _positions(short.kept_inputs, inputs, r)
    wanted = _positions(short.gradients, inputs, r)
    unreached = _positions(short.unreached, inputs, r)
    found = _saved(short.saved, few, r)
    if kept_inputs is None or wanted is None or unreached is None or found is None:
        return "a stretch saves other values than the next"
    names, long_names, nodes = found
    first = len(short.tangents)
    results = {first + i: n for i, n in enumerate(names) if n is not None}
    others = iter([first + i for i, n in enumerate(names) if n is None])
    saved = [next(others) if n is None else n for n in long_names]
    inputs = replace(inputs, results=results, returned=(*range(first), *saved))
    places = [replace(x, place=inputs.shared[x.place]) if x.of_input else x
              for x in short.returned]  # fmt: skip
    sizes = tuple(replace(row, input=inputs.shared[row.input]) for row in short.forward.sizes)
    pair = GraphPair(graph, (), short.forward.aliases, sizes=sizes)
    long = replace(short, forward=pair, gradients=wanted, unreached=unreached,
                   kept_inputs=kept_inputs, saved=nodes, returned=tuple(places))  # fmt: skip
    return Stretched(short, long, inputs, r.kept, r.count, (names, long_names))


def _positions(short: Sequence[int], inputs: Inputs, r: Repeats) -> tuple[int, ...] | None:
    """The inputs of the whole graph that are like these of the shortened one; None if the stretches
    in the middle differ in theirs."""
    mine = {inputs.labels[i] for i in short if i in inputs.labels}
    rows = [{slot for k, slot in mine if k == at} for at in range(1, r.kept - 1)]
    if any(row != rows[0] for row in rows):
        return None
    found = {inputs.shared[i] for i in short if i in inputs.shared}
    found |= {place for label, place in inputs.places.items()
              if _like(label, r.kept, r.count) in mine}  # fmt: skip
    return tuple(sorted(found))


def saved_by(saved: Sequence[Node], graph: Graph, r: Repeats) -> list[tuple[int, object] | None]:
    """For each saved value, the stretch whose call made it and which of that stretch's it is."""
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    at = {n.name: divmod(i - r.start, r.period) for i, n in enumerate(calls) if i >= r.start}
    last = (len(calls) - len(r.calls)) // r.period + r.count  # what comes behind has no stretch
    seen: Counter[tuple[object, ...]] = Counter()
    found: list[tuple[int, object] | None] = []
    for node in saved:
        place = at.get(node.meta.get(ORIGIN, ""))
        if place is None or place[0] >= last:
            found.append(None)
            continue
        which = (*place, *_what(node))
        found.append((place[0], (*which[1:], seen[which])))
        seen[which] += 1
    return found


def _what(node: Node) -> tuple[object, ...]:
    """The operator, and which of its results."""
    if node.target is operator.getitem:
        source, place = node.args
        assert isinstance(source, Node)
        return source.target, place
    return node.target, 0


def _saved(
    saved: Sequence[Node], few: Graph, r: Repeats
) -> tuple[tuple[Name, ...], tuple[Name, ...], tuple[Node, ...]] | None:
    """Names of what the shortened graph saves, of what the whole one saves, and nodes like those;
    None if the stretches in the middle save different values."""
    made = saved_by(saved, few, r)
    rows = [[m[1] for m in made if m and m[0] == k] for k in range(1, r.kept - 1)]
    if any(row != rows[0] for row in rows):
        return None
    first = len(r.own[0])
    slots = {key: first + i for i, key in enumerate(rows[0])}
    short = [None if m is None or m[1] not in slots else (m[0], slots[m[1]]) for m in made]
    long = _repeated(list(zip(short, saved, strict=True)), first, r)
    if long is None:
        return None
    return tuple(short), tuple(n for n, _ in long), tuple(node for _, node in long)


def _repeated(
    row: list[tuple[Name, Node]], slot: int, r: Repeats
) -> list[tuple[Name, Node]] | None:
    """The row of the whole graph: what lies between two stretches comes more often.

    slot: of the first value of a stretch.
    """
    at = [[i for i, (n, _) in enumerate(row) if n == (k, slot)]
          for k in range(r.kept - 4, r.kept - 1)]  # fmt: skip
    if not all(at):
        return row if all(n is None for n, _ in row) else None
    (a,), (b,), (c,) = at
    names = [n for n, _ in row[b:c]]
    if None in names or names != [_later(n, 1) for n, _ in row[a:b]]:
        return None
    more = r.count - r.kept
    between = [(_later(n, k), node) for k in range(1, more + 1) for n, node in row[b:c]]
    return [*row[:c], *between, *((_later(n, more), node) for n, node in row[c:])]


def _later(name: Name, stretches: int) -> Name:
    return None if name is None else (name[0] + stretches, name[1])


def agrees(seen: Stretched, whole: Joint, graph: Graph, r: Repeats) -> bool:
    """Whether the joint graph of the whole graph is what was seen of it."""
    long = seen.long
    made = saved_by(whole.saved, graph, r)
    slots: dict[object, int] = {}
    for m in made:
        if m is not None and m[0] == 1:
            slots[m[1]] = len(r.own[0]) + len(slots)
    names = [None if m is None or m[1] not in slots else (m[0], slots[m[1]]) for m in made]
    same = (whole.kept_inputs, whole.kept_results, whole.gradients) == (
        long.kept_inputs, long.kept_results, long.gradients)  # fmt: skip
    looks = [(_looks(a), _looks(b)) for a, b in zip(whole.saved, long.saved, strict=False)]
    return same and tuple(names) == seen.names[1] and all(a == b for a, b in looks)


def _looks(node: Node) -> object:
    value = node.meta[VAL]
    return value.shape, value.stride(), value.dtype, value.device
