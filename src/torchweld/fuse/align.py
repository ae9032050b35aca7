"""Split loops so that two groups that see one buffer in different shapes can share their loops.

One writes t[i] and the other reads t[8*h + l] (or writes t[h, l] and reads t[i // 8, i % 8]): after
i -> 8*h + l both have the loops h and l. Neighbouring loops are merged again when the kernel is
built, so nothing is lost if the split was not needed for a whole kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchweld.fuse.facts import Substitution, linear
from torchweld.fuse.group import Group, Member, index_members, loads_of
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Sym, as_expr, index_symbol
from torchweld.ir.loop import Axis

Index = tuple[Expr, ...]


def aligned(
    a: Group, b: Group, meeting: Iterable[tuple[Index, Index]]
) -> tuple[Group, Group] | None:
    """The two groups with loops split alike; None if there is nothing to split.

    meeting: what a writes and what b reads, index by index.
    """
    cuts_a: dict[Sym, int] = {}
    cuts_b: dict[Sym, int] = {}
    for mine, yours in meeting:
        for e, f in zip(mine, yours, strict=True):
            _cut(e, a, f, b, cuts_b)
            _cut(f, b, e, a, cuts_a)
            _whole(e, a, f, b, cuts_a)
            _whole(f, b, e, a, cuts_b)
    if not cuts_a and not cuts_b:
        return None
    return _split_all(a, cuts_a), _split_all(b, cuts_b)


def _cut(e: Expr, a: Group, f: Expr, b: Group, cuts: dict[Sym, int]) -> None:
    """e is a loop of a, f the quotient or remainder of a loop of b."""
    if not isinstance(f, FloorDiv | Mod) or not isinstance(e, Sym) or e not in a.sizes:
        return
    if not isinstance(f.num, Sym) or f.num not in b.sizes or not isinstance(f.den, Int):
        return
    outer, inner = a.sizes[e], f.den
    if isinstance(f, Mod):
        if outer is not inner:
            return
    elif outer * inner is not b.sizes[f.num]:
        return
    if b.sizes[f.num].is_const and b.sizes[f.num].value % inner.n == 0:
        cuts.setdefault(f.num, inner.n)


def _whole(e: Expr, a: Group, f: Expr, b: Group, cuts: dict[Sym, int]) -> None:
    """e is a loop of a, f is q*h + l over two loops of b that cover it."""
    if not isinstance(e, Sym) or e not in a.sizes or not a.sizes[e].is_const:
        return
    form = linear(f)
    if form.bent or len(form.strides) != 2:
        return
    (inner, one), (outer, q) = sorted(form.strides.items(), key=lambda x: str(x[1]) != "1")
    if inner not in b.sizes or outer not in b.sizes or not isinstance(q, Int):
        return
    covers = b.sizes[inner] is q and b.sizes[outer] * q is a.sizes[e]
    if covers and isinstance(one, Int) and one.n == 1 and f is q * outer + inner:
        cuts.setdefault(e, q.n)


def _split_all(g: Group, cuts: dict[Sym, int]) -> Group:
    for s, q in cuts.items():
        if s in g.sizes and not _scanned(g, s):
            g = _split(g, s, q)
    return g


def _scanned(g: Group, s: Sym) -> bool:
    return any(m.shape == "scan" and any(a.sym is s for a in _reduced(m)) for m in g.members)


def _reduced(m: Member) -> tuple[Axis, ...]:
    return () if m.nest.reduce is None else m.nest.reduce.axes


def _split(g: Group, s: Sym, q: int) -> Group:
    """The group with the loop `s` as two: s = q*high + low."""
    taken = {x.name for x in g.sizes}
    count = as_expr(g.sizes[s].value // q)
    high = index_symbol(_fresh(s.name + "h", taken), count)
    low = index_symbol(_fresh(s.name + "l", taken), as_expr(q))
    values: dict[Expr, Expr] = {s: q * high + low}
    sub = Substitution(values)
    two = (Axis(high, count), Axis(low, as_expr(q)))

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(x for a in old for x in (two if a.sym is s else (a,)))

    members = []
    for m in g.members:
        n = m.nest
        reduce = None if n.reduce is None else replace(n.reduce, axes=axes(n.reduce.axes))
        nest = replace(n, axes=axes(n.axes), index=sub.index(n.index), body=sub.scalar(n.body),
                       reduce=reduce)  # fmt: skip
        members.append(Member(nest, m.at, loads_of(nest), m.shape))
    sizes: dict[Sym, Expr] = {}
    for x, size in g.sizes.items():
        sizes.update({high: count, low: as_expr(q)} if x is s else {x: size})
    keep = g.keep
    if keep is not None:
        keep = tuple(y for x in keep for y in ((high, low) if x is s else (x,)))
    out = Group(members, sizes, keep, alone=g.alone)
    index_members(out)
    return out


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
