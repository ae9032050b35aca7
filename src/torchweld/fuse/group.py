"""Group: the nests that one kernel will hold, in common coordinates.

All members name their loops alike: an axis symbol means the same loop in every member. `keep` are
the parallel axes of a kernel with several stages: each point of them is one row that a thread does
alone. `keep` is None while all members are pointwise over the same axes: then every axis is
parallel, and a merge may still turn some of them into loops of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchweld.fuse.cost import size_of
from torchweld.fuse.facts import body_facts, digits, index_scalars, points
from torchweld.ir.expr import Expr, Sym
from torchweld.ir.loop import Axis, Buffer, Load, Nest


@dataclass(slots=True)
class Member:
    """A nest of a group and where it stood in the program."""

    nest: Nest
    at: int
    loads: tuple[Load, ...]
    shape: str  # "point", "reduce", "scan", "scatter"


@dataclass(slots=True)
class Group:
    """Members in program order."""

    members: list[Member]
    sizes: dict[Sym, Expr]
    keep: tuple[Sym, ...] | None
    reads: dict[Buffer, list[Member]] = field(default_factory=dict)
    writes: dict[Buffer, list[Member]] = field(default_factory=dict)
    alone: bool = False  # runs in an order of its own: takes no other nest
    scores: dict[Sym, float] = field(default_factory=dict)  # contiguous traffic along each axis
    counted: int | None = None  # `bytes`, if somebody has asked

    @property
    def bytes(self) -> int:
        """Of all elements that the group touches."""
        if self.counted is None:
            self.counted = _touched(self)
        return self.counted

    @property
    def device(self) -> str:
        return self.members[0].nest.out.device

    def kept(self) -> tuple[Sym, ...]:
        """The parallel axes: `keep`, or all axes of a pointwise group."""
        return tuple(self.sizes) if self.keep is None else self.keep

    def axis(self, sym: Sym) -> Axis:
        return Axis(sym, self.sizes[sym])

    def extent_of(self, syms: tuple[Sym, ...]) -> int:
        return points(tuple(self.sizes[s] for s in syms))


def loads_of(n: Nest) -> tuple[Load, ...]:
    """Every distinct load of a nest, those in its store index included."""
    found = body_facts(n.body).loads
    extra = [ld for s in index_scalars(n.index) for ld in body_facts(s).loads]
    return found + tuple(ld for ld in dict.fromkeys(extra) if ld not in found) if extra else found


def single(n: Nest, at: int, parallel: bool = False) -> Group:
    """A group of one nest. parallel: if it is a scatter, its points may run in any order."""
    shape = shape_of(n)
    member = Member(n, at, loads_of(n), shape)
    sizes = {a.sym: a.size for a in n.all_axes}
    keep: tuple[Sym, ...] | None = None
    if shape == "scatter":
        keep = tuple(a.sym for a in n.axes if parallel or owns(n, a.sym))
    elif shape != "point":
        keep = tuple(a.sym for a in n.axes)
    g = Group([member], sizes, keep, alone=shape == "scatter")
    index_members(g)
    return g


def index_members(g: Group) -> None:
    """Refill the tables of who reads and writes what."""
    g.scores = {}
    g.reads = {}
    g.writes = {}
    for m in g.members:
        for b in dict.fromkeys(ld.buffer for ld in m.loads):
            g.reads.setdefault(b, []).append(m)
        g.writes.setdefault(m.nest.out, []).append(m)
        if m.nest.mode != "set":
            g.reads.setdefault(m.nest.out, []).append(m)
    g.counted = None


def _touched(g: Group) -> int:
    """Bytes of the elements that the members touch, each buffer at most once."""
    counts: dict[Buffer, int] = {}
    for m in g.members:
        every = points(tuple(a.size for a in m.nest.all_axes))
        for b in dict.fromkeys((m.nest.out, *(ld.buffer for ld in m.loads))):
            counts[b] = counts.get(b, 0) + every
    return sum(min(n * b.dtype.bytes, size_of(b)) for b, n in counts.items())


def shape_of(n: Nest) -> str:
    """Which kind of loop nest this is."""
    if n.reduce is not None:
        return "scan" if n.reduce.is_scan else "reduce"
    if n.mode != "set" or not all(owns(n, a.sym) for a in n.axes):
        return "point" if n.mode == "set" and injective(n) else "scatter"
    if reads_own_result(n):
        return "scatter"
    return "point"


def owns(n: Nest, sym: Sym) -> bool:
    """Whether different values of `sym` write different elements: it is alone in a dimension.

    A load of the same buffer must sit at the same place in that dimension.
    """
    dims = [d for d, e in enumerate(n.index) if e is sym]
    if not dims:
        return False
    own = [ld for ld in loads_of(n) if ld.buffer is n.out]
    return any(all(ld.index[d] is sym for ld in own) for d in dims)


def reads_own_result(n: Nest) -> bool:
    """Whether a point reads an element of `out` other than the one that it writes."""
    return any(ld.buffer is n.out and ld.index != n.index for ld in loads_of(n))


def injective(n: Nest) -> bool:
    """Whether every point writes an element of its own, by mixed radix in each dimension."""
    if reads_own_result(n):
        return False
    left = {a.sym for a in n.axes}
    for e in n.index:
        number = digits(e)
        left -= {s for _, s in number[1]} if number is not None else set()
    return not left
