"""Group -> Kernel: its stages, its loop structure, and its nests in kernel coordinates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchweld.fuse.axes import Space, accesses, arrange
from torchweld.fuse.cost import grain_of
from torchweld.fuse.facts import Substitution, symbols
from torchweld.fuse.group import Group, Member, loads_of
from torchweld.fuse.homes import Home, homes_of, local_buffer, local_for
from torchweld.fuse.stages import Level
from torchweld.fuse.target import Form, Target
from torchweld.ir.expr import Expr, Sym, index_symbol
from torchweld.ir.loop import Axis, Buffer, Load, Nest, Reduce, Scalar, axis
from torchweld.ir.plan import Kernel, Local, Stage

Index = tuple[Expr, ...]


@dataclass(slots=True)
class _Draft:
    """A kernel under construction."""

    group: Group
    form: Form
    levels: list[Level]
    homes: dict[Buffer, Home]
    space: Space
    lanes: Sym | None = None
    grid: tuple[Sym, ...] = ()
    locals: list[Local] = field(default_factory=list)


def build(g: Group, name: str, outside: frozenset[Buffer], target: Target) -> Kernel:
    """The kernel of a group. `outside`: its buffers that something else reads."""
    form = target.form(g, outside)
    g, levels = form.group, form.levels
    homes = homes_of(form, outside, target.piece_rows)
    inside = {b for b, h in homes.items() if not h.memory}
    found = accesses([m for lv in levels for m in lv.members], inside)
    space = arrange(g, levels, found, target.vector)
    draft = _Draft(g, form, levels, homes, space)
    _order_rows(draft)
    loops = list(space.loops)
    draft.grid, draft.lanes = target.divide(space, g.keep is not None, found)
    if space.loops != loops:
        _far_to_memory(draft)
    if draft.lanes is not None:
        _rows_to_memory(draft)
    if form.in_place:
        _same_order(draft)
    stages = _stages(draft)
    kernel = Kernel(
        name, tuple(_axis(draft, s) for s in draft.grid),
        None if draft.lanes is None else _axis(draft, draft.lanes),
        stages, tuple(draft.locals), _args(stages, draft.locals),
        origins=tuple(dict.fromkeys(o for m in g.members for o in m.nest.origins)),
    )  # fmt: skip
    tile = target.tile(kernel, form)
    return replace(kernel, tile=tile, grain=1 if tile else grain_of(kernel))


def _axis(d: _Draft, s: Sym) -> Axis:
    return Axis(s, d.space.sizes[s])


def _order_rows(d: _Draft) -> None:
    """Give each row its dimensions in the order of the loops, so that it is walked in sequence."""
    stage = {id(m): i for i, lv in enumerate(d.levels) for m in lv.members}
    for b, h in d.homes.items():
        if h.far is None or h.far.kind != "row" or h.many:
            continue
        writer = d.group.writes[b][0]
        index = writer.nest.index
        place: dict[Expr, int] = {s: j for j, s in enumerate(d.space.loops[stage[id(writer)]])}

        def key(dim: int, index: Index = index, place: dict[Expr, int] = place) -> tuple[int, int]:
            e = index[dim]
            if not isinstance(e, Sym) or e not in d.space.rank:
                return (-1, 0)
            final = symbols(d.space.values.get(e, e))
            return (max((place.get(s, 0) for s in final), default=0), d.space.rank[e])

        h.dims = tuple(sorted(h.dims, key=key))
        h.far = local_for(b, "row", h.dims)


def _rows_to_memory(d: _Draft) -> None:
    """Lanes run strips of columns, where an array per lane costs more than memory does."""
    for h in d.homes.values():
        if h.far is not None and h.far.kind == "row":
            h.far = None
            h.memory = True


def _far_to_memory(d: _Draft) -> None:
    """Parallel axes have become loops of every stage: what a later stage reads is more than what
    one grid point was to keep."""
    for h in d.homes.values():
        if h.far is not None and not h.many:
            h.far = None
            h.memory = True


def _same_order(d: _Draft) -> None:
    """Rows in registers belong to a position of the loops: these must run in the same order."""
    stage = {id(m): i for i, lv in enumerate(d.levels) for m in lv.members}
    for b, h in d.homes.items():
        if h.far is None or h.far.kind != "row":
            continue
        members = [*d.group.writes[b], *d.group.reads[b]]
        if len({tuple(d.space.loops[stage[id(m)]]) for m in members}) > 1:
            h.far = None
            h.memory = True


# ---------------------------------------------------------------- nests in kernel coordinates


class _Local(Substitution):
    """Old symbols to kernel symbols, and loads of values that live in the kernel to locals."""

    __slots__ = ("far", "near")

    def __init__(self, values: dict[Expr, Expr]) -> None:
        super().__init__(values)
        self.near: dict[Buffer, Buffer] = {}
        self.far: dict[Buffer, Home] = {}

    def load(self, x: Load, index: tuple[Expr, ...]) -> Scalar:
        if x.buffer in self.near:
            return Load.make(self.near[x.buffer], ())
        home = self.far.get(x.buffer)
        if home is not None and home.far is not None:
            return Load.make(home.far.buffer, tuple(index[i] for i in home.dims))
        return Load.make(x.buffer, index)


def _stages(d: _Draft) -> tuple[Stage, ...]:
    outer = _outer_names(d)
    written_in: dict[Buffer, int] = {}
    for i, lv in enumerate(d.levels):
        for m in lv.members:
            written_in.setdefault(m.nest.out, i)
    stages: list[Stage] = []
    after: list[Nest] = []  # copies of what is known when all loops of a stage are done
    for i, lv in enumerate(d.levels):
        values, own = _stage_values(d, outer, i)
        loops = tuple(own)
        sub = _Local(values)
        for b, home in d.homes.items():
            if written_in[b] == i and home.near is not None:
                sub.near[b] = home.near
            elif written_in[b] < i or home.many:
                sub.far[b] = home
        nests: list[Nest] = []
        copies: dict[tuple[Axis, ...], list[Nest]] = {}
        for m in lv.members:
            _place(d, m, sub, loops, nests, copies)
        stages.append(Stage(loops, tuple(nests)))
        after += copies.pop((), [])
        stages += [Stage(around, tuple(late)) for around, late in copies.items()]
        if not d.form.in_place and after:
            stages.append(Stage((), tuple(after)))
            after = []
    return tuple(stages) + ((Stage((), tuple(after)),) if after else ())


def _place(d: _Draft, m: Member, sub: _Local, loops: tuple[Axis, ...], nests: list[Nest],
           copies: dict[tuple[Axis, ...], list[Nest]]) -> None:  # fmt: skip
    """Append the nest of a member in kernel coordinates, and the copies that its homes ask for.

    copies: by loops, what can only be copied when all loops of the stage are done.
    """
    n = m.nest
    outer = tuple(_axis(d, s) for s in d.grid) + (() if d.lanes is None else (_axis(d, d.lanes),))
    index = sub.index(n.index)
    body = sub.scalar(n.body)
    if n.reduce is not None:
        base = replace(n, axes=outer, index=index, body=body, reduce=Reduce(n.reduce.kind, loops))
    else:
        base = replace(n, axes=outer + loops, index=index, body=body)
    home = d.homes.get(n.out)
    if home is None:
        nests.append(base)
        return
    targets: list[tuple[Buffer, tuple[Expr, ...]]] = []
    if home.near is not None:
        targets.append((home.near, ()))
        _declare(d, Local(home.near, "register"))
    if home.far is not None:
        _declare(d, home.far)
        targets.append((home.far.buffer, tuple(index[i] for i in home.dims)))
    if home.memory:
        targets.append((n.out, index))
    if len(targets) > 1 and home.near is None and m.shape == "point":
        reg = local_buffer(n.out, "reg", ())
        _declare(d, Local(reg, "register"))
        targets.insert(0, (reg, ()))
    first, *others = targets
    nests.append(replace(base, out=first[0], index=first[1]))
    for b, at in others:
        around = loops if m.shape == "scan" else ()
        here = m.shape == "point" or home.near is not None
        axes = outer + (loops if here else around)
        copy = Nest(b, axes, at, Load.make(first[0], first[1]), origins=n.origins)
        (nests if here else copies.setdefault(around, [])).append(copy)


def _declare(d: _Draft, local: Local) -> None:
    if local not in d.locals:
        d.locals.append(local)


def _outer_names(d: _Draft) -> dict[Sym, Sym]:
    """Short names by role, so that equal kernels have equal texts: g0, g1, ... and l."""
    names = {s: index_symbol(f"g{i}", d.space.sizes[s]) for i, s in enumerate(d.grid)}
    if d.lanes is not None:
        names[d.lanes] = index_symbol("l", d.space.sizes[d.lanes])
    d.space.sizes.update({new: d.space.sizes[old] for old, new in names.items()})
    d.grid = tuple(names[s] for s in d.grid)
    d.lanes = None if d.lanes is None else names[d.lanes]
    return names


def _stage_values(d: _Draft, outer: dict[Sym, Sym], i: int) -> tuple[dict[Expr, Expr], list[Axis]]:
    """What the old symbols are inside of stage `i`, and its loops, named by depth: s0, s1, ..."""
    row = d.space.loops[i]
    loops = [axis(f"s{depth}", d.space.sizes[s]) for depth, s in enumerate(row)]
    names: dict[Expr, Expr] = dict(outer.items())
    names.update({s: a.sym for s, a in zip(row, loops, strict=True)})
    sub = Substitution(names)
    return {**names, **{old: sub.expr(e) for old, e in d.space.values.items()}}, loops


def _args(stages: tuple[Stage, ...], local: list[Local]) -> tuple[Buffer, ...]:
    """The buffers in memory, in order of first use."""
    inside = {x.buffer for x in local}
    seen: dict[Buffer, None] = {}
    for st in stages:
        for n in st.nests:
            for ld in loads_of(n):
                seen.setdefault(ld.buffer)
            seen.setdefault(n.out)
    return tuple(b for b in seen if b not in inside)


