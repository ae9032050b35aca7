"""Divide the loops of a kernel into grid, lanes and loops of the stages.

A kernel that reads along one axis and writes along another (a transpose) is cut in tiles, so that
each cache line that is read in part is still there when the rest of it is wanted.
"""

from __future__ import annotations

from torchweld.fuse.axes import Access, Space
from torchweld.fuse.facts import Substitution, extent, points
from torchweld.ir.expr import ONE, ZERO, Expr, Int, Sym, as_expr, index_symbol

GRID_POINTS = 64  # enough grid points to share among threads
POINT_BYTES = 64 << 10  # a grid point that moves more than this is cut further
FEW_POINTS = 16  # an outer extent that cannot feed the threads
WIDE = 4096  # an inner extent that can
TILE_POINTS = 64 << 10  # smaller transposes fit the cache as they are
TILE_WIDTHS = (16, 8, 4)  # elements of one row of a tile: a cache line is stored whole
TILE_HEIGHTS = (32, 16, 8, 4)  # cache lines that a tile shares


def divide(space: Space, rows: bool, found: list[Access]) -> tuple[tuple[Sym, ...], Sym | None]:
    """The grid and the lanes; what is left of `space.keep` becomes loops of every stage.

    rows: the parallel axes are given, and the stages have loops of their own.
    """
    v = space.vector
    if rows and any(space.loops):
        return tuple(s for s in space.keep if s is not v), v if v in space.keep else None
    if not space.keep:
        return (), None
    *outer, last = space.keep
    if not outer:
        return (), last
    across = _across(space, last, found)
    if across is not None:
        tiles = _tiles(space, last, across)
        if tiles is not None:
            return (*(s for s in outer if s is not across), *tiles), None
    width = extent(space.sizes[last])
    total = points(tuple(space.sizes[s] for s in outer))
    if total < FEW_POINTS and width >= WIDE:
        _loop_over(space, outer)
        return (), last
    moved = sum(a.bytes for a in found) * width * total
    grid: list[Sym] = []
    n = 1
    while outer and (n < GRID_POINTS or moved // n > POINT_BYTES):
        grid.append(outer.pop(0))
        n *= extent(space.sizes[grid[-1]])
    _loop_over(space, [*outer, last])
    return tuple(grid), None


def _loop_over(space: Space, syms: list[Sym]) -> None:
    space.loops = [[*syms, *row] for row in space.loops]


def _across(space: Space, v: Sym, found: list[Access]) -> Sym | None:
    """The axis along which a large load is contiguous while it strides along `v`."""
    total = points(tuple(space.sizes[s] for s in space.keep))
    if total < TILE_POINTS or any(space.loops):
        return None
    for a in found:
        step = a.form.stride(v)
        if a.store or not a.bytes or a.weight * 2 < total or not isinstance(step, Int):
            continue
        if step is ZERO or step.n * a.bytes < 64:
            continue
        for u in space.keep:
            if u is not v and a.form.stride(u) is ONE:
                return u
    return None


def _tiles(space: Space, v: Sym, u: Sym) -> tuple[Sym, Sym] | None:
    """Cut v and u; answers the loops over tiles. None if the sizes have no fitting divisor."""
    if not (space.sizes[v].is_const and space.sizes[u].is_const):
        return None
    nv, nu = space.sizes[v].value, space.sizes[u].value
    width = next((w for w in TILE_WIDTHS if nv % w == 0), None)
    height = next((h for h in TILE_HEIGHTS if nu % h == 0), None)
    if width is None or height is None:
        return None
    many = next(m for m in (8, 7, 6, 5, 4, 3, 2, 1) if nv // width % m == 0)
    outer_u = index_symbol(u.name + "o", as_expr(nu // height))
    inner_u = index_symbol(u.name + "t", as_expr(height))
    outer_v = index_symbol(v.name + "o", as_expr(nv // width // many))
    some_v = index_symbol(v.name + "m", as_expr(many))
    inner_v = index_symbol(v.name + "t", as_expr(width))
    values: dict[Expr, Expr] = {
        u: outer_u * height + inner_u,
        v: (outer_v * many + some_v) * width + inner_v,
    }
    sub = Substitution(values)
    space.values = {**{old: sub.expr(e) for old, e in space.values.items()}, **values}
    for s, n in ((outer_u, nu // height), (inner_u, height), (outer_v, nv // width // many),
                 (some_v, many), (inner_v, width)):  # fmt: skip
        space.sizes[s] = as_expr(n)
    space.vector = inner_v
    _loop_over(space, [some_v, inner_u, inner_v])
    return outer_u, outer_v
