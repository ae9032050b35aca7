"""Equal updates: what an optimizer does to each of many parameters is fused once and copied.

    p0, m0, v0 <- g0        one class of such islands: the kernels of the first one are made,
    p1, m1, v1 <- g1        those of the others are these with other buffers
    ...

An island is all that leads to some written inputs and to nothing else, as far as it runs at one
point of them. It begins with what is in memory anyway: gradients that a product left, inputs, and
numbers. Such islands are found before the passes. Others are found behind them, with the sums of
parts that lead to them; a gradient that another reduction makes is stored for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torchweld.fuse.deps import Deps, analyse
from torchweld.fuse.facts import BufferSwap, body_facts, points
from torchweld.fuse.group import loads_of
from torchweld.ir.expr import ONE, ZERO
from torchweld.ir.loop import Buffer, Load, LoopGraph, Nest, Node, Op, Scalar, View, walk
from torchweld.ir.plan import Kernel, Stage

LEAST = 4  # equal islands: fewer cost less than what is not fused with them
WRITTEN = 2  # inputs of an island. Statistics and averages have one, and are better off elsewhere
Key = tuple[object, ...]


@dataclass(slots=True)
class Island:
    """at: its nests' positions in the graph. buffers: in the order in which they are met, so that
    those of equal islands correspond. made: those that it writes."""

    at: list[int]
    buffers: list[Buffer] = field(default_factory=list)
    made: set[Buffer] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Twins:
    """Equal islands. graph: the first one on its own, in which what it reads is an input. rows:
    for each island, the buffers that correspond to those of `graph`, which are the keys."""

    graph: LoopGraph
    rows: tuple[dict[Buffer, Buffer], ...]

    def copies(self, kernels: Sequence[Kernel], first: int) -> Iterator[Kernel]:
        """The kernels of all islands, made of those of `graph`. first: a number for their names."""
        known = self.rows[0].keys()
        inside = {b for k in kernels for b in k.args if b not in known}
        for i, row in enumerate(self.rows):
            own = {b: _named(b, f"{b.name}_{i}") for b in inside} if i else {}
            for j, k in enumerate(kernels):
                yield _copy(k, f"k{first + i * len(kernels) + j}", {**row, **own})


def find_twins(g: LoopGraph, final: bool) -> tuple[LoopGraph, list[Twins]]:
    """The graph without what is in twins, for which it returns what these read, behind its results
    (None where a twin makes one); and the twins.

    final: the nests will not change any more. Twins run behind everything else. Cost: linear in the
    nodes.
    """
    deps = analyse(g)
    returned = {v.buffer for v in g.outputs if v is not None}
    classes: dict[Key, list[Island]] = {}
    for island in _islands(g, deps):
        if len(island.at) > 1 and _may_wait(g, deps, island) and (
                final or _starts_in_memory(g, deps, island)):  # fmt: skip
            classes.setdefault(_key(g, island, returned), []).append(island)
    many = [row for row in classes.values() if len(row) >= LEAST]
    if not many:
        return g, []
    gone = {at for row in many for island in row for at in island.at}
    made = {b for row in many for island in row for b in island.made if b.role == "temp"}
    read = {b: None for row in many for i in row for b in i.buffers
            if b not in i.made and b.role == "temp"}  # fmt: skip
    wanted = tuple(map(_whole, read))
    kept = tuple(None if v is None or v.buffer in made else v for v in g.outputs)
    rest = replace(g, nodes=tuple(n for at, n in enumerate(g.nodes) if at not in gone),
                   outputs=(*kept, *wanted))  # fmt: skip
    return rest, [_twins(g, row, returned) for row in many]


def _named(b: Buffer, name: str, role: str = "") -> Buffer:
    return Buffer.make(name, b.dtype, b.shape, b.strides, b.offset, role or b.role, b.device)


def _whole(b: Buffer) -> View:
    return View(b, b.shape, b.strides, b.offset)


def _twins(g: LoopGraph, row: list[Island], returned: set[Buffer]) -> Twins:
    first = row[0]
    as_input = {b: b if b in first.made or b.role != "temp" else _named(b, b.name, "input")
                for b in first.buffers}  # fmt: skip
    nests = [g.nodes[at] for at in first.at]
    nodes = tuple(_moved(n, as_input) for n in nests if isinstance(n, Nest))
    given = tuple(b for b in as_input.values() if b.role == "input")
    kept = tuple(b for b in as_input.values() if b.role == "const")
    keys = list(as_input.values())
    rows = tuple(dict(zip(keys, island.buffers, strict=True)) for island in row)
    outputs = tuple(_whole(b) for b in first.buffers if b in first.made and b in returned)
    return Twins(LoopGraph((*given, *kept), nodes, outputs), rows)


def _moved(n: Nest, buffers: dict[Buffer, Buffer]) -> Nest:
    swap = BufferSwap(buffers)
    return replace(n, out=buffers.get(n.out, n.out), body=swap.scalar(n.body))


def _copy(k: Kernel, name: str, buffers: dict[Buffer, Buffer]) -> Kernel:
    swap = BufferSwap(buffers)

    def nest(n: Nest) -> Nest:
        return Nest(buffers.get(n.out, n.out), n.axes, swap.index(n.index), swap.scalar(n.body),
                    n.reduce, n.mode, n.origins)  # fmt: skip

    stages = tuple(Stage(s.loops, tuple(map(nest, s.nests))) for s in k.stages)
    args = tuple(buffers.get(b, b) for b in k.args)
    return replace(k, name=name, stages=stages, args=args)


# ---------------------------------------------------------------- which islands there are


def _islands(g: LoopGraph, deps: Deps) -> list[Island]:
    """All islands, by their first nest."""
    home: dict[int, int] = {}  # position -> some position of its island
    for at in range(len(g.nodes) - 1, -1, -1):
        n = g.nodes[at]
        if not isinstance(n, Nest) or not _by_point(n, deps) or deps.only_writer(n.out) is None:
            continue
        if n.out.role == "input":
            home[at] = at
        elif n.out.role == "temp":
            readers = deps.readers.get(n.out, [])
            if readers and all(r in home for r in readers):
                home[at] = at
                for r in readers:
                    _unite(home, at, r)
    found: dict[int, Island] = {}
    for at in sorted(home):
        found.setdefault(_root(home, at), Island([])).at.append(at)
    return list(found.values())


def _root(home: dict[int, int], at: int) -> int:
    while home[at] != at:
        home[at] = at = home[home[at]]
    return at


def _unite(home: dict[int, int], a: int, b: int) -> None:
    home[_root(home, b)] = _root(home, a)


def _by_point(n: Nest, deps: Deps) -> bool:
    """Whether each point of a nest over several writes an element of its own, at its place, made
    of one point of others or of parts that nobody else reads."""
    if n.mode != "set" or not n.axes or tuple(e for e in n.index if e is not ZERO) != tuple(
            a.sym for a in n.axes):  # fmt: skip
        return False
    if n.reduce is not None:
        part = n.body.buffer if isinstance(n.body, Load) else None
        if part is None or part.role != "temp" or len(deps.readers[part]) > 1 or (
                n.reduce.is_scan or n.reduce.kind.startswith("arg")):  # fmt: skip
            return False
    sizes = tuple(a.size for a in n.axes)
    return all(x.is_const for x in sizes) and points(sizes) > 1 and not body_facts(n.body).checks


def _starts_in_memory(g: LoopGraph, deps: Deps, island: Island) -> bool:
    """Whether no nest makes what the island reads, but for numbers."""
    read = (b for b in island.buffers if b not in island.made and b.role == "temp"
            and not all(n is ONE for n in b.shape))  # fmt: skip
    return not any(isinstance(g.nodes[at], Nest) for b in read for at in deps.writers.get(b, ()))


def _may_wait(g: LoopGraph, deps: Deps, island: Island) -> bool:
    """Whether the island may run behind everything else. Fills what it touches."""
    inside = set(island.at)
    met: dict[Buffer, None] = {}
    written = 0
    for at in island.at:
        n = g.nodes[at]
        assert isinstance(n, Nest)
        for ld in loads_of(n):
            met.setdefault(ld.buffer)
            if any(w > at and w not in inside for w in deps.writers.get(ld.buffer, ())):
                return False
        met.setdefault(n.out)
        island.made.add(n.out)
        if n.out.role == "input":
            written += 1
            if any(r > at and r not in inside for r in deps.readers.get(n.out, ())):
                return False
    island.buffers = list(met)
    return written >= WRITTEN and len({b.device for b in island.made}) == 1


def _key(g: LoopGraph, island: Island, returned: set[Buffer]) -> Key:
    """Equal for islands that do the same to buffers that look the same."""
    number = {b: i for i, b in enumerate(island.buffers)}
    looks = tuple([(b.dtype, b.shape, b.strides, b.offset, b.role, b.device, b in island.made,
                    b in island.made and b in returned)
                   for b in island.buffers])  # fmt: skip
    return looks, tuple([_nest_key(g.nodes[at], number) for at in island.at])


def _nest_key(n: Node, number: dict[Buffer, int]) -> Key:
    assert isinstance(n, Nest)
    rows: dict[Scalar, int] = {}
    key: list[object] = [number[n.out], n.axes, n.index, n.reduce]
    for x in walk(n.body):  # children first
        rows[x] = len(rows)
        if isinstance(x, Op):
            key.append((x.name, x.dtype, tuple([rows[a] for a in x.args])))
        elif isinstance(x, Load):
            key.append((number[x.buffer], x.index))
        else:
            key.append(x)
    return tuple(key)


def renamed(twins: Sequence[Twins], before: LoopGraph, after: LoopGraph) -> list[Twins] | None:
    """The twins, where passes have turned `before` into `after`: what they read may have become
    another buffer. None if it is laid out otherwise there."""
    names: dict[Buffer, Buffer] = {}
    for old, new in zip(before.outputs, after.outputs, strict=True):
        if old is not None and new is not None and new.buffer is not old.buffer:
            a, b = old.buffer, new.buffer
            names[a] = b
            if not new.whole or _looks(a) != _looks(b):
                names.pop(a)
                if any(a in row.values() for t in twins for row in t.rows):
                    return None
    if not names:
        return list(twins)
    return [replace(t, rows=tuple({k: names.get(b, b) for k, b in row.items()} for row in t.rows))
            for t in twins]  # fmt: skip


def _looks(b: Buffer) -> Key:
    return b.dtype, b.shape, b.strides, b.offset, b.device


def with_twins(rest: LoopGraph, stages: Sequence[LoopGraph], twins: Sequence[Twins]) -> LoopGraph:
    """What all kernels together are made of: `rest`, and the islands behind it.

    stages: the graphs in which islands were found, the last first. They know the results that
    islands make.
    """
    moved: list[Nest] = []
    for found in twins:
        nests = [n for n in found.graph.nodes if isinstance(n, Nest)]
        moved += [_moved(n, row) for row in found.rows for n in nests]
    count = len(stages[-1].outputs)
    rows = zip(*(g.outputs[:count] for g in (rest, *stages)), strict=True)
    outputs = tuple(next((v for v in row if v is not None), None) for row in rows)
    return replace(rest, nodes=(*rest.nodes, *moved), outputs=outputs)
