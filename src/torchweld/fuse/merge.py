"""Merge groups of nests into kernels: producers with readers, and siblings that read the same.

Two groups merge when (1) no path through a third leads from one to the other, (2) their loops can
be named alike so that they share the parallel axes `keep`, and (3) every element that one writes
and the other touches belongs to the same row, that is, the same point of `keep`: then one thread
does both, and the order of stages within the row is all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchweld.base.errors import Refusal
from torchweld.fuse.align import aligned
from torchweld.fuse.axes import accesses, vector_score
from torchweld.fuse.cost import size_of
from torchweld.fuse.facts import Substitution, address, apart, digits, linear
from torchweld.fuse.group import Group, Member, index_members, loads_of
from torchweld.fuse.target import Machine, Target
from torchweld.fuse.tidy import checks_on_host, writes_input
from torchweld.ir.expr import Expr, Sym, hinted, index_symbol
from torchweld.ir.loop import Axis, Buffer, Extern, Nest, Reduce

MAX_MEMBERS = 64
MAX_BUFFERS = 48
# the same of groups without loops, which are a few statements each
MAX_SCALARS = 512
_SPLITS = 2  # how often loops are split for one merge
Index = tuple[Expr, ...]
Names = dict[Sym, Sym]


@dataclass(slots=True)
class Merger:
    """The graph of groups. `after[g]`: groups that depend on g."""

    groups: dict[int, Group | Extern]
    owner: list[int]
    before: dict[int, set[int]]
    after: dict[int, set[int]]
    rank: dict[int, int]  # a topological order
    order: list[int | None]  # the group at each rank
    refusals: list[Refusal]
    machine: Machine
    # producers that something in between keeps apart from a group, however it grows
    blocked: dict[int, set[int]] = field(default_factory=dict)


def merge_groups(
    items: list[Group | Extern], preds: list[set[int]], notes: list[Refusal], machine: Machine
) -> list[Group | Extern]:
    """The items, groups merged where possible, in an order that respects the dependencies."""
    m = Merger(
        dict(enumerate(items)), list(range(len(items))),
        {i: set(p) for i, p in enumerate(preds)}, {i: set() for i in range(len(items))},
        {i: i for i in range(len(items))}, list(range(len(items))), notes, machine,
    )  # fmt: skip
    for i, before in m.before.items():
        for p in before:
            m.after[p].add(i)
    readers: dict[Buffer, list[int]] = {}
    single: list[int] = []
    for i, x in enumerate(items):
        if isinstance(x, Group):
            _merge_with_producers(m, i)
            _merge_with_siblings(m, i, readers)
            for b in x.reads:
                readers.setdefault(b, []).append(i)
            if _is_single(m, i):
                _merge_with_single(m, i, single)
                single.append(i)
    return _ordered(m)


def _is_single(m: Merger, i: int) -> bool:
    """Whether the group of node `i` computes numbers, on the CPU: a launch would cost more."""
    group = m.groups[m.owner[i]]
    assert isinstance(group, Group)
    return not group.sizes and group.device == "cpu"


def _merge_with_single(m: Merger, i: int, single: list[int]) -> None:
    """Merge with an earlier group that computes numbers too, whatever they are made of."""
    tried: set[int] = set()
    for j in reversed(single[-4:]):
        if m.owner[j] not in tried | {m.owner[i]} and _is_single(m, j):
            tried.add(m.owner[j])
            _try(m, m.owner[j], m.owner[i], siblings=True)


def _merge_with_producers(m: Merger, i: int) -> None:
    """Merge the group of node `i` with the groups whose results it reads, largest first."""
    tried: set[int] = set()
    while _merged_with_one(m, m.owner[i], tried):
        pass


def _merged_with_one(m: Merger, g: int, tried: set[int]) -> bool:
    """Whether group `g` is now part of a producer's; those that were tried are added to `tried`."""
    group = m.groups[g]
    assert isinstance(group, Group)
    blocked = tried | m.blocked.get(g, set())
    found = [p for p in m.before[g] if p not in blocked and isinstance(m.groups[p], Group)]
    for p in sorted(found, key=lambda p: (_shared_bytes(m, p, group), p), reverse=True):
        tried.add(p)
        _try(m, p, g, siblings=False)
        if g not in m.groups:
            return True
    return False


def _merge_with_siblings(m: Merger, i: int, readers: dict[Buffer, list[int]]) -> None:
    """Merge with earlier groups that read a large buffer of node `i` too."""
    group = m.groups[m.owner[i]]
    assert isinstance(group, Group)
    tried: set[int] = set()
    for b in sorted(group.reads, key=size_of, reverse=True)[:2]:
        for j in reversed(readers.get(b, [])[-4:]):
            if m.owner[j] not in tried | {m.owner[i]}:
                tried.add(m.owner[j])
                _try(m, m.owner[j], m.owner[i], siblings=True)


def _shared_bytes(m: Merger, p: int, c: Group) -> int:
    producer = m.groups[p]
    assert isinstance(producer, Group)
    return max((size_of(b) for b in producer.writes if b in c.reads), default=0)


def _try(m: Merger, p: int, c: int, siblings: bool) -> None:
    """Merge group c into group p if all three conditions hold, else note why not."""
    a, b = m.groups[p], m.groups[c]
    assert isinstance(a, Group) and isinstance(b, Group)
    target = m.machine(a.device)
    low, high = (p, c) if m.rank[p] < m.rank[c] else (c, p)
    if siblings and _between(m, low, high) is None:
        return  # most siblings are a step and what follows from it
    fit = _fit(a, b, siblings, target)
    if fit.why and not siblings and not _limits(a, b):
        found = _aligned_fit(a, b, target)
        if found is not None:
            fit, a, b = found
            m.groups[p], m.groups[c] = a, b
    why = fit.why
    behind = None if why else _between(m, low, high)
    if behind is None:
        if not siblings:
            if not why:
                m.blocked.setdefault(c, set()).add(p)
                why = "what lies between them must run in between"
            m.refusals.append(Refusal("W206", f"{_name(a)} and {_name(b)}: {why}"))
        return
    rank = _rank_again(m, low, high, behind)
    _join(m, p, c, fit.names, fit.keep)
    m.rank[p] = rank
    m.order[rank] = p


@dataclass(frozen=True, slots=True)
class _Fit:
    """How two groups share their loops, or why they cannot."""

    why: str = ""
    names: Names = field(default_factory=dict)
    keep: tuple[Sym, ...] | None = None


def _fit(a: Group, b: Group, siblings: bool, target: Target) -> _Fit:
    why = _limits(a, b) or (_worthless(a, b, target) if siblings else "")
    if why:
        return _Fit(why)
    names = _match(a, b)
    keep, why = _common_rows(a, b, names, target)
    return _Fit(why or _not_private(a, b, names, keep), names, keep)


def _aligned_fit(a: Group, b: Group, target: Target) -> tuple[_Fit, Group, Group] | None:
    """How the groups share their loops after some were split; None if they cannot.

    Where one loop has been split, another may turn out to be the sum of two.
    """
    for _ in range(_SPLITS):
        pair = aligned(a, b, _flow(a, b))
        if pair is None:
            return None
        a, b = pair
        fit = _fit(a, b, False, target)
        if not fit.why:
            return fit, a, b
    return None


def _name(g: Group) -> str:
    outs = list(dict.fromkeys(x.nest.out.name for x in g.members))
    return "+".join(outs[:3]) + (f"+{len(outs) - 3} more" if len(outs) > 3 else "")


def _limits(a: Group, b: Group) -> str:
    if a.alone or b.alone:
        return "a scatter runs in the order of its loop"
    if a.device != b.device:
        return f"they run on {a.device} and {b.device}"
    members, buffers = (MAX_MEMBERS, MAX_BUFFERS) if a.sizes or b.sizes else (MAX_SCALARS,) * 2
    if len(a.members) + len(b.members) > members:
        return f"together they have more than {members} nests"
    if len(a.reads.keys() | a.writes.keys() | b.reads.keys() | b.writes.keys()) > buffers:
        return f"together they touch more than {buffers} buffers"
    if _is_late(a, b) or _is_late(b, a):
        return "an index is checked before inputs are written"
    return ""


def _is_late(a: Group, b: Group) -> bool:
    """Whether `a` writes to an input, and `b` may raise."""
    return any(writes_input(m.nest) for m in a.members) and any(
        checks_on_host(m.nest) for m in b.members)  # fmt: skip


def _worthless(a: Group, b: Group, target: Target) -> str:
    """Siblings must share a good part of their traffic, unless they are but numbers."""
    if not a.sizes and not b.sizes and a.device == "cpu":
        return ""
    shared = sum(size_of(x) for x in a.reads.keys() & b.reads.keys())
    little = max(a.bytes, b.bytes) <= target.side_bytes
    if little or shared * 4 >= min(a.bytes, b.bytes):
        return ""
    return "they share little of what they read"


# ---------------------------------------------------------------- naming loops alike


def _match(a: Group, b: Group) -> Names:
    """The loops of `b` that are loops of `a`: those that index the same dimension."""
    names: Names = {}
    taken: set[Sym] = set()
    for mine, yours in _meeting_points(a, b):
        for e, f in zip(mine, yours, strict=True):
            _pair(a, b, e, f, names, taken)
    if a.keep is None and b.keep is None and len(names) < len(b.sizes):
        # the same space, read at other places: pair what is left in order
        left = [s for s in a.sizes if s not in taken]
        rest = [s for s in b.sizes if s not in names]
        if [a.sizes[s] for s in left] == [b.sizes[s] for s in rest]:
            names.update(zip(rest, left, strict=True))
            return names
    # what is left may share a loop when the sizes agree: a loop has no meaning beyond its size
    left_a = [s for s in a.sizes if s not in taken and s not in a.kept()]
    for s in b.sizes:
        if s not in names and b.keep is not None and s not in b.keep:
            same = [t for t in left_a if a.sizes[t] is b.sizes[s]]
            if len(same) == 1:
                names[s] = same[0]
                left_a.remove(same[0])
    return names


def _pair(a: Group, b: Group, e: Expr, f: Expr, names: Names, taken: set[Sym]) -> None:
    """Name the loops of two indices of one dimension alike, digit by digit."""
    mine, yours = digits(e), digits(f)
    if mine is None or yours is None or mine[0] != yours[0] or len(mine[1]) != len(yours[1]):
        return
    pairs = list(zip(mine[1], yours[1], strict=True))
    for (p, s), (q, t) in pairs:
        if p != q or s not in a.sizes or t not in b.sizes or a.sizes[s] is not b.sizes[t]:
            return
        if t in names or s in taken:
            return
    for (_, s), (_, t) in pairs:
        names[t] = s
        taken.add(s)


def _meeting_points(a: Group, b: Group) -> Iterator[tuple[Index, Index]]:
    """Pairs of indices into one buffer: what a writes and b reads first, shared reads last."""
    yield from _conflicts(a, b)
    for x in [x for x in a.reads if x in b.reads]:
        yield from _pairs(_read_at(a, x)[:3], _read_at(b, x)[:3])


def _conflicts(a: Group, b: Group) -> Iterator[tuple[Index, Index]]:
    """Pairs of indices at which one writes what the other touches."""
    for x in a.writes:
        if x in b.reads:
            yield from _pairs(_written_at(a, x), _read_at(b, x))
    for x in b.writes:
        if x in a.reads:
            yield from _pairs(_read_at(a, x), _written_at(b, x))
        if x in a.writes:
            yield from _pairs(_written_at(a, x), _written_at(b, x))


def _flow(a: Group, b: Group) -> Iterator[tuple[Index, Index]]:
    """Pairs of indices at which one group writes what the other reads, a's first."""
    for x in [x for x in a.writes if x in b.reads]:
        yield from _pairs(_written_at(a, x), _read_at(b, x))
    for x in [x for x in a.reads if x in b.writes]:
        yield from _pairs(_read_at(a, x), _written_at(b, x))


def _pairs(xs: Iterable[Index], ys: list[Index]) -> Iterator[tuple[Index, Index]]:
    for x in xs:
        for y in ys:
            yield x, y


def _written_at(g: Group, b: Buffer) -> list[Index]:
    return [m.nest.index for m in g.writes[b]]


def _read_at(g: Group, b: Buffer) -> list[Index]:
    found = [ld.index for m in g.reads[b] for ld in m.loads if ld.buffer is b]
    found += [m.nest.index for m in g.reads[b] if m.nest.out is b and m.nest.mode != "set"]
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------- rows


def _common_rows(
    a: Group, b: Group, names: Names, target: Target
) -> tuple[tuple[Sym, ...] | None, str]:
    """The parallel axes of the merged group, in a's names; or the reason why there are none."""
    mapped = set(names.values())
    if a.keep is None and b.keep is None:
        if len(names) == len(b.sizes) == len(a.sizes):
            return None, _transposed(a, b, names, target)
        keep = tuple(s for s in a.sizes if s in mapped)
        if not keep or a.extent_of(keep) < target.partial_rows:
            return None, "their loops differ, and too few are in common"
    elif a.keep is None:
        assert b.keep is not None
        if not all(s in names for s in b.keep):
            return None, f"the rows of {_name(b)} are no loops of {_name(a)}"
        keep = tuple(names[s] for s in b.keep)
    elif b.keep is None:
        keep = a.keep
        if not set(keep) <= mapped:
            return None, f"the rows of {_name(a)} are no loops of {_name(b)}"
    else:
        keep = a.keep
        if {names.get(s) for s in b.keep} != set(keep) or len(b.keep) != len(keep):
            return None, "their rows differ"
    why = _few_rows(a, b, keep, names, target) or _crossing(a, b, names, keep)
    if not target.vector and min(len(a.sizes), len(b.sizes)) == len(keep):
        return keep, why  # one of them has no loops: blocks of points serve both
    return keep, why or _transposed(a, b, names, target)


def _few_rows(
    a: Group, b: Group, keep: tuple[Sym, ...], names: Names, target: Target
) -> str:
    """Why so few rows would leave threads without work. Rows that lie side by side are one."""
    rows = a.extent_of(keep)
    mine, yours = _inner(a, target), _inner(b, target)
    if (mine and mine in keep) or (yours and names.get(yours) in keep):
        rows //= _side_by_side(a, b, target)
    total = max(a.extent_of(tuple(a.sizes)), b.extent_of(tuple(b.sizes)))
    if rows >= target.min_rows or total <= target.few_points:
        return ""
    wide = [g for g in (a, b) if g.extent_of(g.kept()) > a.extent_of(keep)]
    idle = 1 - rows / target.min_rows
    if wide and a.bytes + b.bytes > target.row_work + rows * target.work_per_row / idle:
        return f"only {rows} rows would be in common"
    return ""


def _side_by_side(a: Group, b: Group, target: Target) -> int:
    """How many neighbouring rows a block reads, where memory is contiguous across rows."""
    buffers = [x for g in (a, b) for x in (*g.reads, *g.writes)]
    widest = max(buffers, key=size_of)
    return max(1, target.sector // widest.dtype.bytes)


def _crossing(a: Group, b: Group, names: Names, keep: tuple[Sym, ...]) -> str:
    """Turning axes of pointwise nests into loops pays only if these are the inner ones."""
    if a.keep is not None or b.keep is not None:
        return ""
    own = {f for f, e in names.items() if e in keep}
    for g, kept in ((a, set(keep)), (b, own)):
        for m in g.members:
            outer = inner = None
            form = linear(address(m.nest.out.strides, m.nest.index))
            for s, step in form.strides.items():
                n = hinted(step)
                if n is None:
                    continue
                if s in kept:
                    outer = n if outer is None else min(outer, n)
                else:
                    inner = n if inner is None else max(inner, n)
            if outer is not None and inner is not None and inner > outer:
                return "their common loops are not the outer ones"
    return ""


def _transposed(a: Group, b: Group, names: Names, target: Target) -> str:
    """Why one vectorised loop cannot serve both: their contiguous axes differ."""
    if min(a.bytes, b.bytes) * 4 < max(a.bytes, b.bytes):
        return ""  # the smaller one does not matter
    mine, yours = _inner(a, target), _inner(b, target)
    there = None if yours is None else names.get(yours)
    if there is None or there is mine:
        return ""
    back = [f for f, e in names.items() if e is mine]
    if a.scores[there] < 0 or any(b.scores[f] < 0 for f in back):
        return "one walks memory across the other"
    return ""


def _inner(g: Group, target: Target) -> Sym | None:
    """The axis along which the most bytes are contiguous."""
    if g.scores.keys() != g.sizes.keys():
        found, moved = accesses(g.members, set()), not target.vector  # no loop is vectorised
        g.scores = {s: vector_score(s, n, found, moved) for s, n in g.sizes.items()}
    return max(g.scores, key=lambda s: g.scores[s]) if g.scores else None


def _not_private(a: Group, b: Group, names: Names, keep: tuple[Sym, ...] | None) -> str:
    """Why an element that one writes is touched by another row of the other."""
    rows = tuple(a.sizes) if keep is None else keep
    for mine, yours in _conflicts(a, b):
        if any(apart(e, f) for e, f in zip(mine, yours, strict=True)):
            continue
        same: set[Sym] = set()
        for e, f in zip(mine, yours, strict=True):
            same |= _agreed(e, f, names)
        for s in rows:
            if s not in same:
                return f"a row reads what another row of {s.name} writes"
    return ""


def _agreed(e: Expr, f: Expr, names: Names) -> set[Sym]:
    """The loops that must be equal where two indices of one dimension are equal."""
    mine, yours = digits(e), digits(f)
    if mine is None or yours is None or mine[0] != yours[0]:
        return set()
    if mine[1] != tuple((q, names.get(t)) for q, t in yours[1]):
        return set()
    return {s for _, s in mine[1]}


# ---------------------------------------------------------------- the graph of groups


def _between(m: Merger, low: int, high: int) -> set[int] | None:
    """The groups that depend on `low` and rank below `high`; None if one of them leads to `high`.

    Ranks are a topological order, so nothing above `high` can lead to it.
    """
    limit = m.rank[high]
    stack = [x for x in m.after[low] if m.rank[x] < limit]
    seen = set(stack)
    while stack:
        x = stack.pop()
        for y in m.after[x]:
            if y == high:
                return None
            if y not in seen and m.rank[y] < limit:
                seen.add(y)
                stack.append(y)
    return seen


def _rank_again(m: Merger, low: int, high: int, behind: set[int]) -> int:
    """Free the ranks from `low` to `high` for the merged group: its dependents move behind it.

    Answers the merged group's rank. Source: the affected region of Pearce and Kelly 2007, "A
    dynamic topological sort algorithm for directed acyclic graphs".
    """
    start, end = m.rank[low], m.rank[high]
    window = [x for x in m.order[start : end + 1] if x is not None and x not in (low, high)]
    kept = [x for x in window if x not in behind]
    moved = [x for x in window if x in behind]
    merged = start + len(kept)
    row: list[int | None] = [*kept, None, *moved]
    row += [None] * (end + 1 - start - len(row))
    m.order[start : end + 1] = row
    for i, x in enumerate(row):
        if x is not None:
            m.rank[x] = start + i
    return merged


def _join(m: Merger, p: int, c: int, names: Names, keep: tuple[Sym, ...] | None) -> None:
    """Move the members of group c, renamed, into group p."""
    a, b = m.groups[p], m.groups[c]
    assert isinstance(a, Group) and isinstance(b, Group)
    taken = {s.name for s in a.sizes} | {s.name for s in names}
    for s in b.sizes:
        if s not in names:
            names[s] = s if s.name not in taken else _fresh(s, b.sizes[s], taken)
            taken.add(names[s].name)
    for s, t in names.items():
        a.sizes.setdefault(t, b.sizes[s])
    a.members = sorted(a.members + _renamed(b, names), key=lambda x: x.at)
    a.keep = keep
    index_members(a)
    for n in b.members:
        m.owner[n.at] = p
    for i in m.before[c]:
        m.after[i].discard(c)
        m.after[i].add(p)
    for i in m.after[c]:
        m.before[i].discard(c)
        m.before[i].add(p)
    m.before[p] = (m.before[p] | m.before[c]) - {p, c}
    m.after[p] = (m.after[p] | m.after[c]) - {p, c}
    m.blocked.setdefault(p, set()).update(m.blocked.pop(c, ()))
    del m.groups[c], m.before[c], m.after[c], m.rank[c]


def _fresh(s: Sym, size: Expr, taken: set[str]) -> Sym:
    count = len(taken)
    while f"i{count}" in taken:
        count += 1
    return index_symbol(f"i{count}", size)


def _renamed(g: Group, names: Names) -> list[Member]:
    if all(k is v for k, v in names.items()):
        return g.members
    values: dict[Expr, Expr] = dict(names.items())
    sub = Substitution(values)
    return [_rename(m, sub, names, g) for m in g.members]


def _rename(m: Member, sub: Substitution, names: Names, g: Group) -> Member:
    n = m.nest

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(names[a.sym], a.size) for a in old)

    reduce = None if n.reduce is None else Reduce(n.reduce.kind, axes(n.reduce.axes))
    nest = Nest(n.out, axes(n.axes), sub.index(n.index), sub.scalar(n.body), reduce, n.mode,
                n.origins)  # fmt: skip
    return Member(nest, m.at, loads_of(nest), m.shape)


def _ordered(m: Merger) -> list[Group | Extern]:
    """The groups in topological order."""
    return [m.groups[x] for x in m.order if x is not None]
