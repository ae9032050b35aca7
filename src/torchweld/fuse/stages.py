"""Cut the members of a group into stages: the inner loops that one grid point runs in turn.

A member may share a stage with one that it depends on only if they touch the shared element at the
same loop point; otherwise a stage ends in between (a barrier within the row, not between threads).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.fuse.facts import apart
from torchweld.fuse.group import Group, Member
from torchweld.ir.expr import Sym
from torchweld.ir.loop import Buffer, Load


@dataclass(slots=True)
class Level:
    """A stage under construction: its loops and members in order."""

    loops: tuple[Sym, ...]
    members: list[Member]


@dataclass(frozen=True, slots=True)
class _Edge:
    """`late` depends on `early`; `barrier`: not at the same loop point."""

    early: int
    late: int
    barrier: bool


def loops_of(g: Group, m: Member) -> tuple[Sym, ...]:
    """The axes of a member that are loops of its stage, in its own order."""
    keep = g.kept()
    return tuple(a.sym for a in m.nest.all_axes if a.sym not in keep)


def stages_of(g: Group, scans: bool = False) -> list[Level]:
    """The members in as few stages as their dependencies allow.

    scans: what a scan has reached may be read at the same point of its stage.
    """
    loops = [frozenset(loops_of(g, m)) for m in g.members]
    edges = _edges(g, loops, ("point", "scan") if scans else ("point",))
    level = [0] * len(g.members)
    for e in edges:  # edges are sorted by `late`, so `early` is final
        level[e.late] = max(level[e.late], level[e.early] + e.barrier)
    _sink(level, loops, edges, g)
    found: dict[tuple[int, frozenset[Sym]], Level] = {}
    for i, m in enumerate(g.members):
        at = found.setdefault((level[i], loops[i]), Level(loops_of(g, m), []))
        at.members.append(m)
    return [found[k] for k in sorted(found, key=lambda k: (k[0], len(k[1])))]


def _edges(g: Group, loops: list[frozenset[Sym]], at_once: tuple[str, ...]) -> list[_Edge]:
    """The dependencies inside of the group, sorted by the later member.

    at_once: shapes of members whose results may be read where they have just been stored.
    """
    edges: list[_Edge] = []
    written: dict[Buffer, list[int]] = {}
    read: dict[Buffer, list[tuple[int, Load]]] = {}
    for j, m in enumerate(g.members):
        for ld in m.loads:
            for i in written.get(ld.buffer, ()):
                w = g.members[i]
                near = w.shape in at_once and loops[i] == loops[j] and ld.index == w.nest.index
                edges.append(_Edge(i, j, not near))
        out = m.nest.out
        for i, ld in read.get(out, ()):
            if i != j:
                same = loops[i] == loops[j] and ld.index == m.nest.index and m.shape == "point"
                edges.append(_Edge(i, j, not same))
        for i in written.get(out, ()):
            theirs = g.members[i].nest.index
            if any(apart(e, f) for e, f in zip(theirs, m.nest.index, strict=True)):
                continue
            same = loops[i] == loops[j] and theirs == m.nest.index
            same = same and m.shape == g.members[i].shape == "point"
            edges.append(_Edge(i, j, not same))
        for ld in m.loads:
            read.setdefault(ld.buffer, []).append((j, ld))
        written.setdefault(out, []).append(j)
    return edges


def _sink(
    level: list[int], loops: list[frozenset[Sym]], edges: list[_Edge], g: Group
) -> None:
    """Move pointwise members down to the stage that reads them, so that no row is kept for it."""
    there = set(zip(level, loops, strict=True))
    users: dict[int, list[_Edge]] = {}
    for e in edges:
        users.setdefault(e.early, []).append(e)
    for i in reversed(range(len(level))):
        mine = users.get(i)
        if not mine or g.members[i].shape != "point":
            continue
        latest = min(level[e.late] - e.barrier for e in mine)
        while latest > level[i] and (latest, loops[i]) not in there:
            latest -= 1
        level[i] = max(level[i], latest)
