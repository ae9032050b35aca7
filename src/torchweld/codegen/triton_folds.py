"""Reductions and scans: across the steps of a tile, and from tile to tile of a long row."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.codegen.tiles import TiledNest
from torchweld.codegen.triton_align import row_start
from torchweld.codegen.triton_index import wide
from torchweld.codegen.triton_types import COMPUTED, neutral
from torchweld.codegen.triton_values import POINTS, STEPS, TileValues, Val
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Const, loads

# what is narrower than a register collects in one
COLLECT = {DType.BOOL: DType.I32, DType.I8: DType.I32, DType.U8: DType.I32, DType.I16: DType.I32}
NOWHERE = {DType.I32: "2147483647", DType.I64: "9223372036854775807"}


@dataclass(frozen=True, slots=True)
class Running:
    """The names that hold a fold from tile to tile. at: the position, for argmax and argmin."""

    nest: TiledNest
    value: str
    at: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A fold and what another stage sums up over it, in one pass.

    state: the names of what both are made of. group: how many neighbours share a state; across:
    they are as far from each other as can be, not side by side. finite: an infinite maximum counts
    as 0 in the sum.
    """

    nest: TiledNest
    state: tuple[str, ...]
    group: int
    across: bool
    finite: bool

    @property
    def names(self) -> str:
        return ", ".join(self.state)


def collected(n: TiledNest) -> DType:
    """The dtype in which the values of a nest are combined."""
    return COLLECT.get(n.body.dtype.compute, n.body.dtype.compute)


class TileFolds(TileValues):
    """Folds of one kernel."""

    def kind(self, n: TiledNest) -> str:
        assert n.fold is not None
        return n.fold.kind.removeprefix("arg")

    def start(self, n: TiledNest) -> str:
        return neutral(self.kind(n), collected(n))

    def position_type(self, n: TiledNest) -> DType:
        assert n.fold is not None
        return DType.I64 if wide(n.fold.position) else DType.I32

    def values(self, n: TiledNest) -> Val:
        """The values of a tile, in the dtype in which they are combined."""
        if not isinstance(n.body, Const):
            self.prepare(n.body)
        v = self.tensor(n.body, self.value(n.body))
        return self.convert(v, n.body.dtype.compute, collected(n))

    def folded(self, n: TiledNest) -> Val:
        """The same, neutral where the tile lies outside of the row."""
        v = self.values(n)
        if not self.steps:
            return v
        if self.step_mask is not None:
            text = f"tl.where({self.step_mask.text}, {v.text}, {self.start(n)})"
            return self.name(text, v.dims | self.step_mask.dims, True)
        return Val(self.spread(v, STEPS), v.dims | STEPS, v.inner)

    def positions(self, n: TiledNest, dims: int) -> Val:
        """Where each value of a tile stands in its row."""
        assert n.fold is not None
        dtype = self.position_type(n)
        at = self.index(n.fold.position, None, dtype)
        if self.step_mask is not None:
            text = f"tl.where({self.step_mask.text}, {at.text}, {NOWHERE[dtype]})"
            at = self.name(text, at.dims | self.step_mask.dims, True)
        return Val(self.spread(at, dims), at.dims | dims, at.inner)

    def across(self, n: TiledNest, v: Val, at: str) -> Val:
        """One value per point from those of a tile."""
        assert n.fold is not None
        dims = v.dims & POINTS
        if not self.steps:
            return self.name(at, dims, False) if at else v
        text = f"weld.row_{n.fold.kind}({v.text}{f', {at}' if at else ''})"
        return self.name(text, dims, False)

    def combine(self, n: TiledNest, a: str, b: str) -> str:
        """Two values of a fold as one."""
        kind = self.kind(n)
        if kind in ("sum", "prod"):
            return f"{a} {'+' if kind == 'sum' else '*'} {b}"
        table = "weld" if collected(n).is_float else "tl"
        return f"{table}.{kind}imum({a}, {b})"

    # --- from tile to tile

    def begin(self, n: TiledNest, group: int = 1) -> Running:
        """Names for the running state, before the loop: one for each `group` steps of a tile."""
        assert n.fold is not None
        shape = self.shape(self.full & POINTS if n.fold.scan else self.full, group)
        run = Running(n, self.fresh("a"), "")
        self.line(f"{run.value} = tl.full({shape}, {self.start(n)}, {COMPUTED[collected(n)]})")
        if n.fold.kind.startswith("arg"):
            dtype = self.position_type(n)
            run = Running(n, run.value, self.fresh("i"))
            self.line(f"{run.at} = tl.full({shape}, {NOWHERE[dtype]}, {COMPUTED[dtype]})")
        return run

    def advance(self, run: Running) -> None:
        """One tile, inside of the loop."""
        n = run.nest
        v = self.folded(n)
        if run.at:
            at = self.positions(n, v.dims).text
            names = f"{run.value}, {run.at}"
            self.line(f"{names} = weld.pick_{self.kind(n)}({names}, {v.text}, {at})")
        else:
            self.line(f"{run.value} = {self.combine(n, run.value, v.text)}")

    def finish(self, run: Running) -> Val:
        """The answer, after the loop."""
        return self.across(run.nest, Val(run.value, self.full), run.at)

    def whole(self, n: TiledNest) -> Val:
        """The answer of a stage that is one tile."""
        assert n.fold is not None
        v = self.folded(n)
        at = self.positions(n, v.dims).text if n.fold.kind.startswith("arg") else ""
        return self.across(n, v, at)

    # --- two folds in one pass

    def begin_pair(self, n: TiledNest, finite: bool) -> Pair:
        """The state of `n` and of what is summed up over it, before the loop."""
        assert self.stage is not None
        group, across = self._group(n)
        shape, dtype = self.shape(self.full, group), COMPUTED[collected(n)]
        masked = self.stage.masked or self.shift is not None
        starts = [(self.start(n), shape), ("0.0", shape)]
        if self.kind(n) == "sum":  # also a mean, and how many values came so far
            starts += [("0.0", shape), ("0.0", shape if masked else "[]")]
        state = []
        for start, size in starts:
            state.append(self.fresh("a"))
            self.line(f"{state[-1]} = tl.full({size}, {start}, {dtype})")
        return Pair(n, tuple(state), group, across, finite)

    def _group(self, n: TiledNest) -> tuple[int, bool]:
        """How many values of a tile one thread holds, and whether they lie apart in the row."""
        assert self.stage is not None
        step, lanes = self.stage.step, self.stage.lanes
        found = [x for x in loads(n.body) if x.buffer in self.pointers]
        vector = 16 // max((x.dtype.bytes for x in found), default=4)
        threads = 32 * self.tiled.tile.warps
        if step is None or lanes == 1:
            return 1, False
        if any(row_start(x, step) is not None for x in found) or self.tiled.points < vector:
            return max(1, min(vector, lanes // max(threads // self.tiled.points, 1))), False
        return max(1, min(lanes, self.tiled.points * lanes // threads // vector)), True

    def advance_pair(self, pair: Pair) -> None:
        """One tile, inside of the loop."""
        n = pair.nest
        moments = self.kind(n) == "sum"
        name = "moments" if moments else "online"
        v = self.values(n) if moments else self.folded(n)
        given = [pair.names, self.spread(v, self.full)]
        if not self.steps:
            name += "_one"
        else:
            if moments and self.step_mask is not None:
                name += "_masked"
                given.append(self.step_mask.text)
            given += [str(pair.group), *(["True"] if pair.across else [])]
        self.line(f"{pair.names} = weld.{name}({', '.join(given)})")

    def finish_pair(self, pair: Pair) -> tuple[Val, Val]:
        """The fold and what was summed up over it, after the loop."""
        assert self.stage is not None
        dims = self.full & POINTS
        if self.kind(pair.nest) == "sum":
            s, k, q, n = pair.state
            if not self.steps:
                return self.name(f"{s} + {k} * {n}", dims, False), Val(q, dims)
            top, total = Val(self.fresh(), dims), Val(self.fresh(), dims)
            given = f"{pair.names}, {self.extent_text(self.stage.extent)}"
            self.line(f"{top.text}, {total.text} = weld.moments_end({given})")
            return top, total
        m, s = pair.state
        top = self.across(pair.nest, Val(m, self.full), "")
        finite = ", True" if pair.finite else ""
        text = f"weld.online_end({s}, {top.text}{finite})"
        if self.steps:
            text = f"weld.online_sum({m}, {s}, {top.text}{finite})"
        return top, self.name(text, dims, False)

    # --- scans

    def scanned(self, n: TiledNest, carry: Running | None) -> Val:
        """The running values of a tile; `carry` is what came before it, and moves on."""
        v = self.folded(n)
        dims = v.dims | (self.full if carry else 0)
        text = f"weld.scan_{self.kind(n)}({v.text})" if self.steps else v.text
        if carry is None:
            return self.name(text, dims, True)
        out = self.name(self.combine(n, carry.value, text), dims, True)
        last = out.text
        if self.steps:
            last = self.combine(n, carry.value, f"weld.row_{self.kind(n)}({v.text})")
        self.line(f"{carry.value} = {last}")
        return out
