"""Where the values of a kernel live: registers, scalars, rows of the thread, or memory.

A value that only this kernel needs never reaches memory: at its own point it is a register, a
finished reduction is a scalar, a row that a later stage reads is a row of the thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.fuse.facts import points
from torchweld.fuse.group import Group, Member
from torchweld.fuse.stages import loops_of
from torchweld.fuse.target import Form
from torchweld.fuse.tidy import covers
from torchweld.ir.expr import ZERO, Expr, Sym
from torchweld.ir.loop import Buffer, contiguous
from torchweld.ir.plan import Local


@dataclass(slots=True)
class Home:
    """Where a value of the kernel lives besides memory."""

    near: Buffer | None = None  # register: read at its own point
    far: Local | None = None  # scalar or row: read by later stages
    dims: tuple[int, ...] = ()  # the buffer's dimensions in the order in which the row has them
    many: bool = False  # written piece by piece
    memory: bool = True  # needed by other kernels or the caller


def homes_of(form: Form, outside: frozenset[Buffer], piece_rows: bool) -> dict[Buffer, Home]:
    """A home for every value of the group that a member of it reads."""
    g = form.group
    stage = {id(m): i for i, lv in enumerate(form.levels) for m in lv.members}
    homes: dict[Buffer, Home] = {}
    budget = form.row_bytes
    keep = set(g.kept())
    for b, writers in g.writes.items():
        readers = g.reads.get(b, ())
        if not readers:
            continue
        w = writers[0]
        if len(writers) > 1:
            if piece_rows:
                budget = _pieces(g, b, outside, homes, budget, keep)
            continue
        if w in readers:
            continue
        if b.role != "temp" and w.at > min(r.at for r in readers):
            continue  # some read the old value
        far = [r for r in readers if stage[id(r)] != stage[id(w)] or not _same_point(r, w)]
        home = Home(memory=b.role != "temp" or b in outside)
        if far:
            whole = covers(w.nest) or all(_same_point(r, w) for r in far)
            if whole and _by_dimension(g, w, keep):
                budget = _far_home(form, w, far, home, budget, keep)
            if home.far is None:
                home.memory = True
        if len(far) < len(readers):
            home.near = local_buffer(b, "reg", ())
        homes[b] = home
    return homes


def _pieces(g: Group, b: Buffer, outside: frozenset[Buffer], homes: dict[Buffer, Home],
            budget: int, keep: set[Sym]) -> int:  # fmt: skip
    """A row for a value that several members write piece by piece (concatenation)."""
    if b.role != "temp" or b in outside:
        return budget
    places = [m.nest.index for m in g.writes[b]]
    places += [ld.index for m in g.reads[b] for ld in m.loads if ld.buffer is b]
    first = places[0]
    fixed = [d for d, e in enumerate(first) if e in keep]
    if len(fixed) < len(keep) or any(p[d] is not first[d] for p in places for d in fixed):
        return budget
    if any(m.nest.mode != "set" for m in g.writes[b]):
        return budget
    shape = tuple(n for d, n in enumerate(b.shape) if d not in fixed)
    size = points(shape) * b.dtype.bytes
    if size > budget or not shape or not all(n.is_const for n in shape):
        return budget
    dims = (*fixed, *(d for d in range(len(first)) if d not in fixed))
    homes[b] = Home(None, local_for(b, "row", dims), dims, memory=False, many=True)
    return budget - size


def _by_dimension(g: Group, w: Member, keep: set[Sym]) -> bool:
    """Whether every dimension of the result is one loop, and each row has its own elements."""
    index = w.nest.index
    own = [e for e in index if isinstance(e, Sym) and e in g.sizes]
    plain = all(e is ZERO or e in g.sizes for e in index)
    return plain and w.shape != "scatter" and len(set(own)) == len(own) and keep <= set(own)


def _same_point(r: Member, w: Member) -> bool:
    return all(ld.index == w.nest.index for ld in r.loads if ld.buffer is w.nest.out)


def _far_home(form: Form, w: Member, far: list[Member], home: Home, budget: int,
              keep: set[Sym]) -> int:  # fmt: skip
    """Choose a scalar or a row for what later stages read; answers the row bytes left."""
    b = w.nest.out
    dims = tuple(d for d, e in enumerate(w.nest.index) if e is not ZERO and e not in keep)
    for r in far:
        for ld in r.loads:
            if ld.buffer is b and any(
                e is not f
                for d, (e, f) in enumerate(zip(ld.index, w.nest.index, strict=True))
                if d not in dims
            ):
                return budget
    home.dims = tuple(range(len(b.shape)))
    if not dims:
        home.far = local_for(b, "scalar", home.dims)
        return budget
    shape = tuple(b.shape[d] for d in dims)
    size = points(shape) * b.dtype.bytes
    if size > budget or (form.in_place and not all(n.is_const for n in shape)):
        return budget
    if form.in_place and not all(_in_place(form.group, r, w) for r in far):
        return budget
    home.far = local_for(b, "row", home.dims)
    return budget - size


def _in_place(g: Group, r: Member, w: Member) -> bool:
    """Whether `r` reads at the very loop points where `w` writes."""
    return _same_point(r, w) and set(loops_of(g, r)) == set(loops_of(g, w))


def local_for(b: Buffer, kind: str, dims: tuple[int, ...]) -> Local:
    """A local for `b`. It keeps all dimensions: what only the grid moves takes no space."""
    return Local(local_buffer(b, kind, tuple(b.shape[d] for d in dims)), kind)


def local_buffer(b: Buffer, tag: str, shape: tuple[Expr, ...]) -> Buffer:
    return Buffer.make(
        f"{b.name}_{tag}", b.dtype, shape, contiguous(shape), ZERO, "temp", b.device
    )
