"""Reductions and scans: across the steps of a tile, and from tile to tile of a long row."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.codegen.tiles import TiledNest
from torchweld.codegen.triton_index import wide
from torchweld.codegen.triton_types import COMPUTED, neutral
from torchweld.codegen.triton_values import POINTS, STEPS, TileValues, Val
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Const

# what is narrower than a register collects in one
COLLECT = {DType.BOOL: DType.I32, DType.I8: DType.I32, DType.U8: DType.I32, DType.I16: DType.I32}
NOWHERE = {DType.I32: "2147483647", DType.I64: "9223372036854775807"}


@dataclass(frozen=True, slots=True)
class Running:
    """The names that hold a fold from tile to tile. at: the position, for argmax and argmin."""

    nest: TiledNest
    value: str
    at: str


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

    def folded(self, n: TiledNest) -> Val:
        """The values of a tile, neutral where it lies outside of the row."""
        if not isinstance(n.body, Const):
            self.prepare(n.body)
        v = self.tensor(n.body, self.value(n.body))
        v = self.convert(v, n.body.dtype.compute, collected(n))
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
