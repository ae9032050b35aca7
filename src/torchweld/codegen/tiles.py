"""Kernel -> TiledKernel: every nest in two coordinates, the point p and the step r of its loops.

    p    position in the flattened grid (and lanes), 0 <= p < points of the kernel
    r    position in the flattened loops of a stage, 0 <= r < extent of the stage

Row-major flattening makes div and mod of the axes; the index algebra takes them apart again where
memory is contiguous. Stages of equal extent share one r, so equal scalars are equal objects and are
computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchweld.base.errors import Unsupported
from torchweld.codegen.cpp_index import depends, flat
from torchweld.codegen.settle import settle
from torchweld.codegen.triton_index import injective
from torchweld.ir.expr import ONE, ZERO, Expr, Ind, Int, Sym, atoms, index_symbol, rewrite
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Load,
    Measured,
    Nest,
    Scalar,
    loads,
    measured,
    rebuild,
    scalars_in,
)
from torchweld.ir.plan import Bundle, Kernel, Stage, Tile

Place = tuple[Buffer, tuple[Expr, ...]]

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
    extent: Expr
    lanes: int
    nests: tuple[TiledNest, ...]

    @property
    def looped(self) -> bool:
        return self.extent.hi is None or self.extent.hi > self.lanes

    @property
    def masked(self) -> bool:
        return self.extent % self.lanes is not ZERO


@dataclass(frozen=True, slots=True)
class TiledKernel:
    """total: points of the kernel; points: of a block, a power of two; point: the symbol p."""

    kernel: Kernel
    tile: Tile
    point: Sym | None
    total: Expr
    points: int
    stages: tuple[TiledStage, ...]

    @property
    def masked(self) -> bool:
        return self.total % self.points is not ZERO


def tiled(kernel: Kernel) -> TiledKernel:
    """`kernel` in tile coordinates. Errors: Unsupported W202 for what a tile cannot express."""
    tile = kernel.tile
    assert tile is not None
    kernel = settle(kernel)
    outer = parallel_axes(kernel)
    total = extent_of(outer)
    point = None if _single(total) else index_symbol(POINT, total)
    at = spread(outer, point)
    stages = tuple(_stage(kernel, s, outer, at) for s in kernel.stages)
    points = points_of(tile, total)
    return TiledKernel(kernel, tile, point, total, points, stages)


def parallel_axes(k: Kernel) -> tuple[Axis, ...]:
    """The axes whose points the blocks of a kernel share out, the fastest last."""
    return k.grid + ((k.lanes,) if k.lanes else ())


def extent_of(axes: Iterable[Axis]) -> Expr:
    """How many points the axes have."""
    total = ONE
    for a in axes:
        total = total * a.size
    return total


def _single(n: Expr) -> bool:
    """Whether there is one point at most."""
    return n is ONE or n is ZERO


def points_of(tile: Tile, total: Expr) -> int:
    """The points of a block: what the tile says, whatever the total, so that texts are alike."""
    return 1 if _single(total) else tile.points


def blocks_of(k: Kernel) -> Expr:
    """How many blocks a launch of the kernel has."""
    assert k.tile is not None
    total = extent_of(parallel_axes(k))
    return _blocks(total, points_of(k.tile, total))


def bundle_blocks(bundle: Bundle) -> int:
    """How many blocks the launch of a bundle has."""
    return sum(blocks_of(k).value for k in bundle.kernels)


def _blocks(total: Expr, points: int) -> Expr:
    return (total + (points - 1)) // points


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def spread(axes: Sequence[Axis], whole: Expr | None) -> dict[Expr, Expr]:
    """The axes' symbols as quotients and remainders of the flattened position.

    The slowest is a quotient alone: no position is behind its end.
    """
    found: dict[Expr, Expr] = {}
    inner = ONE
    slowest = next((a for a in axes if not _single(a.size)), None)
    for a in reversed(axes):
        if whole is None or _single(a.size):
            found[a.sym] = ZERO
        else:
            found[a.sym] = whole // inner if a is slowest else (whole // inner) % a.size
        inner = inner if a.size is ZERO else inner * a.size
    return found


def _stage(kernel: Kernel, stage: Stage, outer: Sequence[Axis], at: dict[Expr, Expr]) -> TiledStage:
    assert kernel.tile is not None
    extent = extent_of(stage.loops)
    step = None if _single(extent) else index_symbol(STEP, extent)
    here = at | spread(stage.loops, step)
    locals_ = frozenset(x.buffer for x in kernel.locals)
    nests = tuple(_nest(n, stage, outer, here, step, locals_) for n in stage.nests)
    most = kernel.tile.loop if extent.hi is None else _power(extent.hi)
    lanes = min(kernel.tile.loop, most)
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
    missing = {a.sym for a in stage.loops if a.size is not ONE} - {a.sym for a in n.reduce.axes}
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


# --- stages over long rows that run in one pass
#
# m = max of x;  s = sum of exp(x - m)            a softmax
# t = sum of x;  q = sum of (x - t / n) ** 2      a variance
#
# The second stage needs of the first only a value per row, for which that of the row so far can
# stand in: what was summed up over it is corrected as it moves. Stages without loops that stand in
# between run behind both.


@dataclass(frozen=True, slots=True)
class OnePass:
    """Stages that run in one pass.

    pairs: folds of `first`, with what `second` sums up over them. finite: maxima that count as 0
    there if they are infinite. rest: what else is to be computed of `second`.
    """

    first: TiledStage
    between: tuple[TiledStage, ...]
    second: TiledStage
    pairs: Mapping[TiledNest, TiledNest]
    finite: frozenset[TiledNest]
    rest: tuple[TiledNest, ...]


def one_pass(stages: Sequence[TiledStage], private: frozenset[Buffer]) -> OnePass | None:
    """What the first of `stages` can share with the next one that has loops; None: nothing.

    What both leave behind is local or a fold, and `second` needs `first` only in such pairs.
    """
    first = stages[0]
    at = next((k for k, s in enumerate(stages) if k and s.step is not None), 0)
    second, between = stages[at], tuple(stages[1:at])
    if not (at and first.looped and second.looped and first.step is second.step):
        return None
    if any(n.fold is not None and (n.fold.scan or n.mode != "set" or n.atomic)
           for n in (*first.nests, *second.nests)):  # fmt: skip
        return None
    if any(n.fold is None and (n.out not in private or n.mode != "set") for n in second.nests):
        return None
    if not _may_wait(between, second, private):
        return None
    return _paired(first, between, second, private)


def _may_wait(between: Sequence[TiledStage], second: TiledStage,
              private: frozenset[Buffer]) -> bool:  # fmt: skip
    """Whether the stages in between may run behind `second`."""
    nests = [n for s in between for n in s.nests]
    if any(n.fold is not None or n.mode != "set" or n.atomic for n in nests):
        return False
    return not ({n.out for n in nests} - private) & {b for n in second.nests for b in _read(n.body)}


def _read(body: Scalar) -> set[Buffer]:
    return {ld.buffer for ld in loads(body)}


def _paired(first: TiledStage, between: tuple[TiledStage, ...], second: TiledStage,
            private: frozenset[Buffer]) -> OnePass | None:  # fmt: skip
    values: dict[Buffer, Scalar] = {}  # of locals, in terms of memory and of folds
    stored: dict[Place, Scalar] = {}  # what the pass writes to memory
    tops: dict[Buffer, tuple[TiledNest, Scalar]] = {}
    made: set[Buffer] = set()  # not known in the pass
    for n in (*first.nests, *(n for s in between for n in s.nests)):
        body = _resolved(n.body, values, {})
        made.add(n.out)
        if n.fold is not None:
            tops[n.out] = n, body
        elif n.out in private:
            values[n.out] = body
        elif n.mode == "set" and not n.atomic:
            stored[n.out, n.index] = body
    pairs: dict[TiledNest, TiledNest] = {}
    finite: set[TiledNest] = set()
    rest: list[TiledNest] = []
    for n in second.nests:
        body = _resolved(n.body, values, stored)
        m = measured(body, second.extent.value if second.extent.is_const else None)
        top = None if m is None or _overwritten(first, m, private) else _top(n, m, tops)
        if m is not None and top is not None and top not in pairs:
            pairs[top] = n
            finite |= {top} if m.finite else set()
            continue
        needs = bool(_read(body) & made)
        if n.fold is None:
            values[n.out] = body
        elif needs:
            return None
        rest += [] if needs else [n]
    if not pairs:
        return None
    return OnePass(first, between, second, pairs, frozenset(finite), tuple(rest))


def _resolved(body: Scalar, values: Mapping[Buffer, Scalar],
              stored: Mapping[Place, Scalar]) -> Scalar:  # fmt: skip
    """`body` with locals of a point, and what is stored at its index, as what they are."""

    def known(s: Scalar) -> Scalar | None:
        if not isinstance(s, Load):
            return None
        return values.get(s.buffer) or stored.get((s.buffer, s.index))

    return rebuild(body, known)


def _overwritten(first: TiledStage, m: Measured, private: frozenset[Buffer]) -> bool:
    """Whether the two folds would read different values from one place."""
    behind = False
    for n in first.nests:
        if behind and n.out not in private and n.out in _read(m.value):
            return True
        behind = behind or n.out is m.other.buffer
    return False


def _top(n: TiledNest, m: Measured,
         tops: Mapping[Buffer, tuple[TiledNest, Scalar]]) -> TiledNest | None:  # fmt: skip
    """The fold that the sum `n` is measured from."""
    if n.fold is None or n.fold.kind != "sum" or not m.value.dtype.is_float:
        return None
    top, of = tops.get(m.other.buffer, (None, None))
    right = top is not None and top.fold is not None and top.fold.kind == m.kind
    return top if right and of is m.value else None
