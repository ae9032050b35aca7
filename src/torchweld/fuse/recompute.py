"""Recompute a value in the stages and kernels that read it, where a row cannot be kept for it.

The inliner decides before kernels are known; here they are. Two places ask:

    recompute_far   a kernel's rows are too long to be held: what later stages read of a pointwise
                    nest is computed there again, if that moves no more bytes than storing it
    recompute_apart a value that other kernels read: computed by each of them, if that moves fewer
                    bytes than storing and loading it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchweld.fuse.canonical import stored
from torchweld.fuse.cost import size_of
from torchweld.fuse.deps import uses
from torchweld.fuse.facts import Substitution, address, body_facts, linear, points
from torchweld.fuse.group import Group, Member, index_members, loads_of
from torchweld.fuse.inline import MAX_BODY, MAX_LOADS, Index, at_index, index_symbols, sites_of
from torchweld.fuse.stages import Level
from torchweld.fuse.tidy import covers
from torchweld.ir.expr import ONE, ZERO
from torchweld.ir.loop import Buffer, Extern, Load, LoopGraph, Nest, Scalar

FLOPS_PER_BYTE = 15.0  # operations that take no longer than moving a byte
LAUNCH_BYTES = 4 << 20  # moved in the time that a launch takes
ACROSS = 8  # times the bytes of an element are moved when its neighbours are not wanted
GAIN = 0.75  # of the cost of storing is what recomputing may cost
Items = list[Group | Extern]


class _Bodies(Substitution):
    """Replaces loads of chosen buffers by what their nests compute."""

    __slots__ = ("chosen",)

    def __init__(self, chosen: dict[Buffer, Nest]) -> None:
        super().__init__({})
        self.chosen = chosen

    def load(self, x: Load, index: Index) -> Scalar:
        nest = self.chosen.get(x.buffer)
        if nest is None:
            return Load.make(x.buffer, index)
        return stored(nest) if index == nest.index else at_index(nest, index)


def _inside(n: Nest, chosen: dict[Buffer, Nest]) -> Nest:
    """The nest with the chosen values computed inside of it."""
    if not any(ld.buffer in chosen for ld in loads_of(n)):
        return n
    sub = _Bodies(chosen)
    return replace(n, index=sub.index(n.index), body=sub.scalar(n.body))


def _with(m: Member, chosen: dict[Buffer, Nest]) -> Member:
    """The member with the chosen values computed inside of it."""
    nest = _inside(m.nest, chosen)
    return m if nest is m.nest else Member(nest, m.at, loads_of(nest), m.shape)


def _regroup(g: Group, members: Sequence[Member]) -> Group:
    out = Group(list(members), g.sizes, g.keep, alone=g.alone)
    index_members(out)
    return out


def _plain(g: Group, m: Member) -> bool:
    """Whether the value of `m` can be computed anywhere from what it reads."""
    n = m.nest
    return (
        m.shape == "point" and n.mode == "set" and n.out.role == "temp"
        and len(g.writes[n.out]) == 1 and not body_facts(n.body).checks
    )  # fmt: skip


def _fits(reader: Nest, value: Nest) -> bool:
    """Whether the reader's body stays of a size that compiles well."""
    sites = len(sites_of(reader, value.out))
    body, facts = body_facts(reader.body), body_facts(value.body)
    return (body.size + sites * facts.size <= MAX_BODY
            and len(body.loads) + sites * len(facts.loads) <= MAX_LOADS)  # fmt: skip


# ---------------------------------------------------------------- within a kernel


def recompute_far(g: Group, levels: Sequence[Level], outside: frozenset[Buffer]) -> Group:
    """The group with what later stages read computed there again, where that pays."""
    stage = {id(m): i for i, lv in enumerate(levels) for m in lv.members}
    chosen: dict[Buffer, Nest] = {}
    members: list[Member] = []
    for old in g.members:
        m = _with(old, chosen)
        members.append(m)
        readers = g.reads.get(m.nest.out, ())
        if all(stage[id(r)] == stage[id(old)] for r in readers) or not _plain(g, m):
            continue
        if not _stable(g, m) or not _pays_far(g, m, outside):
            continue
        if not covers(m.nest) and not all(_same_place(r, m) for r in readers):
            continue
        if all(_fits(r.nest, m.nest) for r in readers):
            chosen[m.nest.out] = m.nest
    kept = [m for m in members if m.nest.out not in chosen or m.nest.out in outside]
    return _regroup(g, kept) if chosen else g


def _same_place(r: Member, m: Member) -> bool:
    return all(ld.index == m.nest.index for ld in r.loads if ld.buffer is m.nest.out)


def _stable(g: Group, m: Member) -> bool:
    """Whether what `m` reads is the same in every later stage."""
    for ld in m.loads:
        writers = g.writes.get(ld.buffer, ())
        if len(writers) > 1 or any(w.at >= m.at or w.shape == "scatter" for w in writers):
            return False
    return True


def _pays_far(g: Group, m: Member, outside: frozenset[Buffer]) -> bool:
    """Loads and operations against a store and a load (a load only, if it is stored anyway)."""
    loops = {s for s in g.sizes if s not in g.kept()}
    facts = body_facts(stored(m.nest))
    read = sum(ld.buffer.dtype.bytes for ld in m.loads if loops & index_symbols(ld.index))
    moved = m.nest.out.dtype.bytes * (1 if m.nest.out in outside else 2)
    return read + facts.flops / FLOPS_PER_BYTE <= moved + 2


# ---------------------------------------------------------------- between kernels


@dataclass(slots=True)
class _Items:
    """Groups and externs in order, and where each buffer is read and written.

    nests: those of the members by position, in coordinates of their own.
    """

    items: Items
    nests: dict[int, Nest]
    readers: dict[Buffer, set[int]]
    writers: dict[Buffer, int]  # how often
    returned: set[Buffer]

    def compute(self, at: int, chosen: dict[Buffer, Nest]) -> None:
        """Let the group at `at` compute the chosen values."""
        group = self.items[at]
        assert isinstance(group, Group)
        for m in group.members:
            self.nests[m.at] = _inside(self.nests[m.at], chosen)
        self.swap(at, [_with(m, chosen) for m in group.members])

    def swap(self, at: int, members: Sequence[Member]) -> None:
        """Give the group at `at` other members."""
        old = self.items[at]
        assert isinstance(old, Group)
        for b in old.reads:
            self.readers[b].discard(at)
        new = self.items[at] = _regroup(old, members)
        for b in new.reads:
            self.readers.setdefault(b, set()).add(at)


def recompute_apart(g: LoopGraph, items: Items, allowed: Callable[[Group], bool]) -> Items:
    """The items of a graph with values that other kernels read computed by each of those."""
    nests = {at: n for at, n in enumerate(g.nodes) if isinstance(n, Nest)}
    returned = {v.buffer for v in g.outputs if v is not None}
    s = _Items(list(items), nests, {}, {}, returned)
    for at, x in enumerate(items):
        if isinstance(x, Group):
            for b in x.reads:
                s.readers.setdefault(b, set()).add(at)
            for b, found in x.writes.items():
                s.writers[b] = s.writers.get(b, 0) + len(found)
            continue
        u = uses(x)
        for b in u.reads:
            s.readers.setdefault(b, set()).add(at)
        for b in u.writes:
            s.writers[b] = s.writers.get(b, 0) + 1
    for at, x in enumerate(items):
        if isinstance(x, Group) and allowed(x):
            for m in reversed(x.members):
                _try_apart(s, at, m.nest.out)
    return [x for x in s.items if not isinstance(x, Group) or x.members]


def _try_apart(s: _Items, at: int, b: Buffer) -> None:
    """Move what computes `b` into the kernels that read it, if that is right and pays."""
    home = s.items[at]
    assert isinstance(home, Group)
    found = home.writes.get(b, ())
    others = sorted(s.readers.get(b, set()) - {at})
    if len(found) != 1 or not others or b in s.returned or s.writers[b] != 1:
        return
    (w,) = found
    groups = [x for i in others if isinstance(x := s.items[i], Group) and not x.alone]
    if len(groups) < len(others) or any(x.device != home.device for x in groups):
        return
    value = s.nests[w.at]
    if not _plain(home, w) or not covers(value) or not _unchanged(s, w):
        return
    if not _pays_apart(s, at, w, groups):
        return
    if not all(_fits(m.nest, value) for x in groups for m in x.reads[b]):
        return
    for i in others:
        s.compute(i, {b: value})
    if b not in home.reads:
        s.swap(at, [m for m in home.members if m is not w])


def _unchanged(s: _Items, w: Member) -> bool:
    """Whether what `w` reads holds for good once `w` may run."""
    return all(
        s.writers.get(ld.buffer, 0) <= (1 if ld.buffer.role == "temp" else 0) for ld in w.loads
    )


def _pays_apart(s: _Items, at: int, w: Member, groups: Sequence[Group]) -> bool:
    """Bytes and operations of computing it in every reader, against a store and their loads."""
    home = s.items[at]
    assert isinstance(home, Group)
    b = w.nest.out
    saved = size_of(b) * (1 + len(groups))
    if len(home.members) == 1:
        saved += LAUNCH_BYTES
    total = points(tuple(a.size for a in w.nest.axes))
    facts = body_facts(stored(w.nest))
    cost = len(groups) * total * facts.flops / FLOPS_PER_BYTE
    for c in facts.buffers:
        need = min(size_of(c), total * c.dtype.bytes) * (ACROSS if _strided(w.nest, c) else 1)
        cost += sum(need for x in groups if c not in x.reads)
        if c in home.writes and c not in s.returned and s.readers.get(c, set()) <= {at}:
            cost += size_of(c)  # it did not reach memory so far
    return cost <= GAIN * saved


def _strided(n: Nest, b: Buffer) -> bool:
    """Whether `n` reads `b` across the axis along which it stores."""
    stores = linear(address(n.out.strides, n.index)).strides
    inner = [s for s, step in stores.items() if step is ONE]
    for ld in body_facts(n.body).loads:
        form = linear(address(b.strides, ld.index)) if ld.buffer is b else None
        if form is not None and any(form.stride(s) not in (ZERO, ONE) for s in inner):
            return True
    return False
