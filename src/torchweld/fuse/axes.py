"""Which loops a kernel has: order them, merge neighbours, choose the vectorised one.

Two loops a (outer) and b merge into one of size A*B when every access steps A's stride in one go:
stride(a) == B * stride(b). The merged loop m gives a = m // B, b = m % B, and every address that
was linear in both is linear in m again, because the index algebra joins quotient and remainder.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torchweld.fuse.facts import (
    Linear,
    Substitution,
    address,
    body_facts,
    extent,
    index_scalars,
    linear,
    points,
    symbols,
)
from torchweld.fuse.group import Group, Member
from torchweld.fuse.stages import Level
from torchweld.ir.expr import ONE, ZERO, Expr, Sym, hinted, index_symbol
from torchweld.ir.loop import Buffer, Nest

WIDTH = 8  # lanes of a vector
FINISH = 8.0  # operations that combine the lanes of one reduction


@dataclass(frozen=True, slots=True)
class Access:
    """One address of a member: how it moves with the loops, and how many bytes it touches."""

    form: Linear
    bytes: int
    store: bool
    share: float  # of the points of its member: 1.0 if every loop moves it
    weight: float  # at how many points it is another address
    member: Member | None = None


@dataclass(slots=True)
class Space:
    """The loops of a kernel after ordering and merging.

    `values`: what the old symbols are in terms of the new ones. `rank`: the old loops, outermost
    first, before any were merged.
    """

    keep: list[Sym]
    loops: list[list[Sym]]  # per stage
    vector: Sym | None
    sizes: dict[Sym, Expr]
    values: dict[Expr, Expr] = field(default_factory=dict)
    rank: dict[Sym, int] = field(default_factory=dict)


def accesses(members: Sequence[Member], inside: set[Buffer]) -> list[Access]:
    """The addresses of all members; buffers `inside` the kernel have no address."""
    out: list[Access] = []
    for m in members:
        n, count = m.nest, _points(m.nest)
        if n.out not in inside:
            form = linear(address(n.out.strides, n.index))
            share = share_of(n, form)
            out.append(Access(form, n.out.dtype.bytes, True, share, share * count, m))
        for ld in m.loads:
            if ld.buffer not in inside:
                form = linear(address(ld.buffer.strides, ld.index))
                share = share_of(n, form)
                bits = ld.buffer.dtype.bytes
                out.append(Access(form, bits, False, share, share * count, m))
        # an index that is used as a number must stay linear too
        for x in (n.body, *index_scalars(n.index)):
            out += [Access(linear(e), 0, False, 0.0, 0.0, m) for e in body_facts(x).exprs]
    return out


def share_of(n: Nest, form: Linear) -> float:
    """The share of the points of `n` at which the address is another one."""
    share = 1.0
    for a in n.all_axes:
        if a.sym not in form.strides and a.sym not in form.bent:
            share /= max(extent(a.size), 1)
    return share


def vector_score(sym: Sym, size: Expr, found: Sequence[Access], moved: bool = False) -> float:
    """How much traffic is contiguous along `sym`, less what is strided.

    moved: count all that is moved, not the share of each member's points.
    """
    good = bad = 0.0
    for a in found:
        step = a.form.stride(sym)
        traffic = (a.weight if moved else a.share) * a.bytes * (1.5 if a.store else 1.0)
        if step is ONE:
            good += traffic
        elif step is not ZERO:
            bad += traffic
    return (good - bad) * min(extent(size), 16) / 16


def vector_cost(
    sym: Sym, members: Sequence[Member], space: Space, found: Sequence[Access]
) -> float:
    """Estimated work of the members when `sym` is the vectorised loop of their stage.

    Units: one scalar operation. A strided access is as slow as scalar code, a contiguous one is
    shared by the lanes, and a reduction along `sym` has to be finished across them.
    """
    size = max(extent(space.sizes[sym]), 1)
    lanes = size / -(-size // WIDTH)  # used on average
    old = {e for e, new in space.values.items() if sym in symbols(new)} | {sym}
    own = {id(m) for m in members}
    cost = 0.0
    for a in found:
        if a.bytes and id(a.member) in own:
            step = a.form.stride(sym)
            cost += a.weight * (1 / lanes if step is ONE else 1.5 if a.store else 1.0)
    for m in members:
        n = m.nest
        inside = any(a.sym in old for a in n.all_axes)
        cost += _points(n) * (body_facts(n.body).flops + 1) / (lanes if inside else 1)
        if n.reduce is not None:
            along = any(a.sym in old for a in n.reduce.axes)
            results = points(tuple(a.size for a in n.axes))
            cost += FINISH * results if along else _points(n) / 4
    return cost


def _points(n: Nest) -> int:
    return max(points(tuple(a.size for a in n.all_axes)), 1)


def order_key(sym: Sym, found: Sequence[Access]) -> int:
    """A typical stride of `sym`: that of the widest store or load which depends on it."""
    best = 0
    weight = 0.0
    for a in found:
        step = a.form.stride(sym)
        likely = None if step is None else hinted(step)
        if likely and a.bytes:
            mine = a.share * (a.bytes * 2 + a.store)
            if mine > weight:
                weight, best = mine, abs(likely)
        elif step is not None and step is not ZERO and a.bytes and weight == 0:
            best = 1 << 40
    return best


def arrange(g: Group, levels: Sequence[Level], found: list[Access], vector: bool) -> Space:
    """Order and merge the loops of a kernel. vector: choose the loop that is vectorised."""
    sizes = dict(g.sizes)
    stride = {s: order_key(s, found) for s in sizes}
    keep = list(g.kept())
    position = {s: i for i, s in enumerate(keep)}
    keep.sort(key=lambda s: (-stride[s], position[s]))
    fixed = [any(_pinned(m) for m in lv.members) for lv in levels]
    loops = [
        list(lv.loops) if pinned else sorted(lv.loops, key=lambda s: -stride[s])
        for lv, pinned in zip(levels, fixed, strict=True)
    ]
    space = Space(keep, loops, None, sizes)
    space.rank = {s: i for i, s in enumerate(s for row in loops for s in row)}
    _merge_all(space, found)
    if vector:
        _choose_vector(space, levels, fixed, found)
    if len(space.keep) > 2 or any(len(row) > 2 for row in space.loops):
        _merge_all(space, found)
    return space


def _pinned(m: Member) -> bool:
    """Whether the loops must keep their order: positions, scans, scatters."""
    r = m.nest.reduce
    return m.shape in ("scan", "scatter") or (r is not None and r.kind.startswith("arg"))


def _choose_vector(
    space: Space, levels: Sequence[Level], fixed: Sequence[bool], found: list[Access]
) -> None:
    """Vectorise a parallel axis in all stages, or in each stage one of its own loops."""

    def cost(s: Sym, lv: Level) -> float:
        return vector_cost(s, lv.members, space, found)

    whole = {s: sum(cost(s, lv) for lv in levels) for s in space.keep}
    outer = min(space.keep, key=lambda s: whole[s], default=None)
    best: list[Sym | None] = []
    inner = 0.0
    for row, pinned, lv in zip(space.loops, fixed, levels, strict=True):
        choice = row[-1:] if pinned else row
        mine = min(choice, key=lambda s: cost(s, lv), default=None)
        best.append(mine)
        inner += cost(mine, lv) if mine is not None else sum(_points(m.nest) for m in lv.members)
    if outer is not None and (whole[outer] < inner or not any(best)):
        space.vector = outer
        space.keep.remove(outer)
        space.keep.append(outer)
        return
    for row, s in zip(space.loops, best, strict=True):
        if s is not None:
            space.vector = s
            row.remove(s)
            row.append(s)


def _merge_all(space: Space, found: list[Access]) -> None:
    """Merge neighbours until none is left that may merge."""
    again = True
    while again:
        again = False
        for row in [space.keep, *space.loops]:
            for a, b in itertools.pairwise(row):
                if _mergeable(space, a, b, found):
                    _merge(space, a, b, found)
                    again = True
                    break
            if again:
                break


def _mergeable(space: Space, a: Sym, b: Sym, found: list[Access]) -> bool:
    for row in space.loops:
        if (a in row) != (b in row):
            return False
        if a in row and row.index(b) != row.index(a) + 1:
            return False
    size = space.sizes[b]
    if size.lo is None or size.lo < 0 or (size.lo == 0 and not size.is_const):
        return False
    for x in found:
        outer, inner = x.form.stride(a), x.form.stride(b)
        if outer is None or inner is None or outer is not size * inner:
            return False
    return True


def _merge(space: Space, a: Sym, b: Sym, found: list[Access]) -> None:
    n = space.sizes[b]
    m = index_symbol(_merged_name(a, b), space.sizes[a] * n)
    for row in [space.keep, *space.loops]:
        if a in row:
            at = row.index(a)
            row[at : at + 2] = [m]
    space.sizes[m] = space.sizes.pop(a) * space.sizes.pop(b)
    quotient, remainder = m // n, m % n
    for old, e in list(space.values.items()):
        space.values[old] = _replace(e, {a: quotient, b: remainder})
    space.values.setdefault(a, quotient)
    space.values.setdefault(b, remainder)
    if space.vector is a or space.vector is b:
        space.vector = m
    for i, x in enumerate(found):
        inner = x.form.stride(b)
        strides = {s: e for s, e in x.form.strides.items() if s is not a and s is not b}
        if inner is not None and inner is not ZERO:
            strides[m] = inner
        found[i] = replace(x, form=Linear(strides, x.form.bent))


def _merged_name(a: Sym, b: Sym) -> str:
    return f"{a.name}{b.name}"


def _replace(e: Expr, values: dict[Expr, Expr]) -> Expr:
    from_values = Substitution(values)
    return from_values.expr(e)
