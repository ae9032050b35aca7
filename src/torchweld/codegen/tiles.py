"""Kernel -> TiledKernel: every nest in two coordinates, the point p and the step r of its loops.

    p    position in the flattened grid (and lanes), 0 <= p < points of the kernel
    r    position in the flattened loops of a stage, 0 <= r < extent of the stage

Row-major flattening makes div and mod of the axes; the index algebra takes them apart again where
memory is contiguous. Stages of equal extent share one r, so equal scalars are equal objects and are
computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.base.errors import Unsupported
from torchweld.codegen.cpp_index import depends, flat
from torchweld.codegen.settle import settle
from torchweld.codegen.shape import product, size
from torchweld.codegen.triton_index import injective
from torchweld.ir.expr import ZERO, Expr, Ind, Int, Sym, atoms, rewrite
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Load,
    Nest,
    Op,
    Scalar,
    loads,
    rebuild,
    scalars_in,
)
from torchweld.ir.plan import Kernel, Stage, Tile

# p and r in the kernel's text
POINT = "p"
STEP = "r"


@dataclass(frozen=True, slots=True)
class Fold:
    """How a nest's values are combined. position: of a value in the row, for argmax and argmin.

    kind: sum, prod, max, min, argmax, argmin; scan: every step is stored.
    """

    kind: str
    position: Expr
    scan: bool


@dataclass(frozen=True, slots=True)
class TiledNest:
    """`out[index] = body` in coordinates p and r. atomic: several points may store to one place.

    offset: where `out[index]` lies from the first element of `out`.
    """

    out: Buffer
    index: tuple[Expr, ...]
    offset: Expr
    body: Scalar
    fold: Fold | None
    mode: str
    atomic: bool


@dataclass(frozen=True, slots=True)
class TiledStage:
    """step: the symbol r, None for a stage without loops. lanes: steps at once, a power of two."""

    step: Sym | None
    extent: int
    lanes: int
    nests: tuple[TiledNest, ...]

    @property
    def looped(self) -> bool:
        return self.extent > self.lanes

    @property
    def masked(self) -> bool:
        return self.extent % self.lanes != 0


@dataclass(frozen=True, slots=True)
class TiledKernel:
    """total: points of the kernel; points: of a block, a power of two; point: the symbol p."""

    kernel: Kernel
    tile: Tile
    point: Sym | None
    total: int
    points: int
    stages: tuple[TiledStage, ...]

    @property
    def masked(self) -> bool:
        return self.total % self.points != 0


def tiled(kernel: Kernel) -> TiledKernel:
    """`kernel` in tile coordinates. Errors: Unsupported W202 for what a tile cannot express."""
    tile = kernel.tile
    assert tile is not None
    kernel = settle(kernel)
    outer = parallel_axes(kernel)
    total = product(outer)
    point = Sym.make(POINT, 0, total - 1) if total > 1 else None
    at = spread(outer, point)
    stages = tuple(_stage(kernel, s, outer, at) for s in kernel.stages)
    points = points_of(tile, total)
    return TiledKernel(kernel, tile, point, total, points, stages)


def parallel_axes(k: Kernel) -> tuple[Axis, ...]:
    """The axes whose points the blocks of a kernel share out, the fastest last."""
    return k.grid + ((k.lanes,) if k.lanes else ())


def points_of(tile: Tile, total: int) -> int:
    """The points of a block: what the tile says, whatever the total, so that texts are alike."""
    return tile.points if total > 1 else 1


def blocks_of(k: Kernel) -> int:
    """How many blocks a launch of the kernel has."""
    assert k.tile is not None
    total = product(parallel_axes(k))
    return -(-total // points_of(k.tile, total))


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def spread(axes: Sequence[Axis], whole: Expr | None) -> dict[Expr, Expr]:
    """The axes' symbols as quotients and remainders of the flattened position."""
    found: dict[Expr, Expr] = {}
    inner = 1
    for a in reversed(axes):
        n = size(a)
        found[a.sym] = ZERO if whole is None or n <= 1 else (whole // inner) % n
        inner *= max(n, 1)
    return found


def _stage(kernel: Kernel, stage: Stage, outer: Sequence[Axis], at: dict[Expr, Expr]) -> TiledStage:
    assert kernel.tile is not None
    extent = product(stage.loops)
    step = Sym.make(STEP, 0, extent - 1) if extent > 1 else None
    here = at | spread(stage.loops, step)
    locals_ = frozenset(x.buffer for x in kernel.locals)
    nests = tuple(_nest(n, stage, outer, here, step, locals_) for n in stage.nests)
    lanes = min(kernel.tile.loop, _power(extent))
    return TiledStage(step, extent, lanes, nests)


def _nest(n: Nest, stage: Stage, outer: Sequence[Axis], here: dict[Expr, Expr],
          step: Sym | None, locals_: frozenset[Buffer]) -> TiledNest:  # fmt: skip
    def moved(e: Expr) -> Expr:
        return rewrite(e, here.get)

    def index(e: Expr) -> Expr:
        return moved(rewrite(e, ind)) if _loaded(e) else moved(e)

    def ind(e: Expr) -> Expr | None:
        if not isinstance(e, Ind):
            return None
        assert isinstance(e.scalar, Scalar)
        return Ind.make(rebuild(e.scalar, lambda s: None, moved), e.smin, e.smax)

    body = rebuild(n.body, lambda s: None, moved)
    places = tuple(index(e) for e in n.index)
    offset = flat(n.out.strides, places)
    fold = _fold(n, stage, moved)
    over = outer if fold and not fold.scan else (*outer, *stage.loops)
    atomic = n.mode != "set" and not injective(flat(n.out.strides, n.index), over)
    stored = fold is None and n.mode == "set" and n.out not in locals_
    if stored and step is not None and not _loaded(offset) and not depends(offset, step):
        _refuse(n, "every step of its loops stores to one place")
    return TiledNest(n.out, places, offset, body, fold, n.mode, atomic)


def _loaded(e: Expr) -> bool:
    return not isinstance(e, Int | Sym) and any(isinstance(a, Ind) for a in atoms(e))


def _fold(n: Nest, stage: Stage, moved: object) -> Fold | None:
    if n.reduce is None:
        return None
    assert callable(moved)
    missing = {a.sym for a in stage.loops if size(a) != 1} - {a.sym for a in n.reduce.axes}
    if missing:
        _refuse(n, "it folds over a part of its stage's loops")
    position: Expr = ZERO
    for a in n.reduce.axes:
        position = position * a.size + a.sym
    kind = n.reduce.kind.removeprefix("scan_")
    kind = {"any": "max", "all": "min"}.get(kind, kind)
    return Fold(kind, moved(position), n.reduce.is_scan)


def _refuse(n: Nest, why: str) -> None:
    raise Unsupported("W202", f"{n.out.name} in a tile: {why}")


# --- online softmax: a looped pair of stages that needs one pass


@dataclass(frozen=True, slots=True)
class OnlinePair:
    """`total` = sum of exp(x - top) with `top` = max of x, where x is `top.body`."""

    top: TiledNest
    total: TiledNest


def online_pairs(first: TiledStage, second: TiledStage,
                 locals_: frozenset[Buffer]) -> dict[TiledNest, TiledNest] | None:  # fmt: skip
    """The maxima of `first` with the sums of `second` over them, if both may run in one pass.

    None unless all results are locals and `second` needs `first` only in such pairs.
    """
    if not (first.looped and second.looped and first.step is second.step):
        return None
    tops = {n.out: n for n in first.nests if n.fold is not None and n.fold.kind == "max"}
    made = {n.out for n in first.nests}
    registers: dict[Buffer, Scalar] = {}
    pairs: dict[TiledNest, TiledNest] = {}
    for n in second.nests:
        body = rebuild(n.body, lambda s: registers.get(s.buffer) if isinstance(s, Load) else None)
        if n.out not in locals_ or n.mode != "set":
            return None
        if n.fold is None:
            registers[n.out] = body
            continue
        top = _exponent_top(body, tops)
        if top is not None and n.fold.kind == "sum" and top not in pairs:
            pairs[top] = n
        elif {ld.buffer for ld in loads(body)} & made:
            return None
    folds = all(n.fold is not None and not n.fold.scan for n in first.nests)
    return pairs if folds and pairs and made <= locals_ else None


def _exponent_top(body: Scalar, tops: dict[Buffer, TiledNest]) -> TiledNest | None:
    """The maximum m of x, for a body exp(x - m)."""
    match body:
        case Op(name="exp", args=(Op(name="sub", args=(x, Load() as m)),)) if m.buffer in tops:
            top = tops[m.buffer]
            return top if top.body is x and x.dtype.is_float else None
    return None


def index_scalars(index: Sequence[Expr]) -> list[Scalar]:
    """The scalars that the places of a store depend on."""
    return [s for e in index for s in scalars_in(e)]


def check_order(stage: TiledStage, private: frozenset[Buffer]) -> None:
    """All lanes of a nest run before the next nest does: refuse where that is not what is meant.

    Errors: Unsupported W202 if a nest reads memory that the stage writes at another step.
    """
    if stage.step is None:
        return
    for n in stage.nests:
        if n.fold is not None and not n.fold.scan:
            continue
        for m in stage.nests:
            for s in (m.body, *index_scalars(m.index)):
                for ld in loads(s):
                    if ld.buffer is n.out and n.out not in private and ld.index != n.index:
                        _refuse_order(n)


def _refuse_order(n: TiledNest) -> None:
    why = f"{n.out.name} in a tile: a step reads what another step of the same stage writes"
    raise Unsupported("W202", why)
