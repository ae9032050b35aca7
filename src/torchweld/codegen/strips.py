"""Kernels with lanes and loops inside: in strips of lanes, so that rows are read in long pieces."""

from __future__ import annotations

from torchweld.codegen.cpp_types import stored
from torchweld.codegen.folds import Fold, fold_of
from torchweld.codegen.guarded import Guard
from torchweld.codegen.levels import Val
from torchweld.codegen.places import Array, array_for
from torchweld.codegen.printer import BASE, STACK_BYTES, Printer, position
from torchweld.codegen.shape import Shape, varies, visits, void
from torchweld.codegen.sizes import likely
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Int, Sym, as_expr, atoms
from torchweld.ir.loop import Axis, Index, Load, Nest, Op, Scalar, children, walk

STRIP = 2048  # lanes that a column reduction works on at once
WORTH_KEEPING = 4  # iterations of a stage's loops from which an array pays


class StripPrinter(Printer):
    """Strips of lanes; in each the stages one after the other, the lanes innermost."""

    kept: dict[Scalar, str]  # what a stage keeps in arrays over the strip

    def body(self) -> None:
        self.kept = {}
        lanes = self.lanes_axis
        self.open_grid()
        self.private_level = 2
        low, high = ("0", self.size_text(lanes.size)) if self.kernel.grid else ("begin", "end")
        strip = self._place_strips(lanes)
        self.open(f"for (i64 s = {low}, e; s < {high}; s = e) {{", "}", BASE)
        self.line(f"e = s / {strip} * {strip} + {strip};")
        self.line(f"if (e > {high}) e = {high};")
        for stage, shape in zip(self.kernel.stages, self.shapes, strict=True):
            self.start_stage(stage.nests, shape)
            self._strip_stage(lanes, stage.nests, shape, strip)
        self.close()
        self.close()

    def _place_strips(self, lanes: Axis) -> int:
        """Gives every local that outlives its stage an array; answers the lanes per strip."""
        grid = frozenset(a.sym for a in self.kernel.grid)
        strip = min(STRIP, max(-(-likely(lanes.size) // 16), 1) * 16)
        nests = [n for s in self.kernel.stages for n in s.nests if self._outlives(n)]
        at = {b: self.written_at(b) for b in dict.fromkeys(n.out for n in nests)}
        while True:
            found = {b: array_for("", b, at[b], grid, lanes.sym, BASE, strip) for b in at}
            if strip <= 16 or sum(a.bytes for a in found.values()) <= STACK_BYTES // 2:
                break
            strip = strip // 32 * 16
        for b in found:
            name = f"r{len(self.arrays)}"
            self.add_array(b, array_for(name, b, at[b], grid, lanes.sym, BASE, strip))
        return strip

    def _outlives(self, n: Nest) -> bool:
        return self.kinds.get(n.out) in ("row", "scalar")

    def _strip_stage(self, lanes: Axis, nests: tuple[Nest, ...], shape: Shape,
                     strip: int) -> None:  # fmt: skip
        folds = {
            i: fold_of(n, self._collector(n, strip), True) for i, n in enumerate(nests) if n.reduce
        }
        empty = void(shape.loops)
        self._keep(nests, shape, strip)
        for depth in range(len(shape.loops) + 1):
            for i, f in folds.items():
                if shape.depth[i] == depth:
                    self._fill(f, strip)
            if depth == len(shape.loops) or empty:
                break
            self.open_loop(shape, depth)
        if not empty:
            self.open_lanes(lanes, shape.width, strip=True)
            for i, n in enumerate(nests):
                if i in folds:
                    self._collect_lanes(n, folds[i])
                else:
                    self.emit(n)
            self.close_lanes()
        for depth in range(len(shape.loops), -1, -1):
            if depth < len(shape.loops) and not empty:
                self.close()
            done = {i: f for i, f in folds.items() if shape.depth[i] == depth}
            self._finish_lanes(lanes, nests, done)

    def _keep(self, nests: tuple[Nest, ...], shape: Shape, strip: int) -> None:
        """Computes once per strip what the loops would compute again for each of their points."""
        self.kept = {}
        found = self._fixed(nests, shape) if visits(shape.loops) >= WORTH_KEEPING else []
        if not found:
            return
        self.open_lanes(self.lanes_axis, shape.width, strip=True)
        kept = {}
        for x in found:
            kept[x] = self.fresh("h")
            held = x.dtype if x.dtype.is_float8 else x.dtype.compute
            self.arrays.append((kept[x], stored(held), as_expr(strip)))
            v = self.as_vector(self.value(x))
            self.line(f"store({kept[x]} + (l - s), {v}, k);")
        self.close_lanes()
        self.kept = kept

    def _fixed(self, nests: tuple[Nest, ...], shape: Shape) -> list[Scalar]:
        """The largest operators that vary by lane, but not with the loops of the stage."""
        loops = {a.sym for a in shape.loops}
        fixed: dict[Scalar, bool] = {}
        moving: dict[Scalar, bool] = {}
        found: dict[Scalar, None] = {}
        for n in nests:
            for x in walk(n.body):
                fixed[x] = self._fixed_here(x, loops, fixed)
                moving[x] = varies(x, self.lanes_axis.sym, moving)
                if not fixed[x]:
                    found |= dict.fromkeys(c for c in children(x) if fixed[c])
            if fixed[n.body]:
                found[n.body] = None
        return [x for x in found if isinstance(x, Op) and moving[x] and not self.unsafe(x)]

    def _fixed_here(self, x: Scalar, loops: set[Sym], fixed: dict[Scalar, bool]) -> bool:
        if isinstance(x, Load) and (x.buffer in self.unstable or x.buffer in self.bound):
            return False
        exprs = x.index if isinstance(x, Load) else (x.expr,) if isinstance(x, Index) else ()
        if any(a in loops for e in exprs if not isinstance(e, Int) for a in atoms(e)):
            return False
        return all(fixed[c] for c in children(x))

    def compute(self, x: Scalar, guard: Guard | None) -> Val:
        name = self.kept.get(x)
        if name is not None and self.lane is not None:
            return self.name(f"load({name} + (l - s), k)", True, self.innermost)
        return super().compute(x, guard)

    def _collector(self, n: Nest, strip: int) -> str:
        """The array that a reduction collects in: the local that it fills, when that fits."""
        p = self.places.get(n.out)
        f = fold_of(n, "", True)
        same = f.dtype is n.out.dtype and not f.scan and not f.positions
        if not isinstance(p, Array) or self.kinds[n.out] != "scalar":
            return self.fresh("a")
        if same and p.elements is as_expr(strip):
            return p.name
        return self.fresh("a")

    def _fill(self, f: Fold, strip: int) -> None:
        if not any(a[0] == f.name for a in self.arrays):
            self.arrays.append((f.name, stored(f.dtype), as_expr(strip)))
        if f.positions:
            if not any(a[0] == f"{f.name}p" for a in self.arrays):
                self.arrays.append((f"{f.name}p", "i32", as_expr(strip)))
            self.line(f"fill({f.name}p, i32(-1), e - s);")
            self.line(f"fill({f.name}, {f.computed}(0), e - s);")
        else:
            self.line(f"fill({f.name}, {f.start}, e - s);")

    def _collect_lanes(self, n: Nest, f: Fold) -> None:
        v = self.as_vector(self.folded(n, f))
        at = f"{f.name} + (l - s)"
        if f.positions:
            assert n.reduce is not None
            where = f"{f.name}p + (l - s)"
            here = self.offset_text(position(n.reduce.axes), None)
            self.line(f"arg_lanes<{f.op}>({at}, {where}, {v}, i32({here}), k);")
            return
        total = self.name(f"{f.op}::of(load({at}, k), {v})", True, self.innermost)
        self.line(f"store({at}, {total.text}, k);")
        if f.scan:
            self.store_as(n, total, f.dtype)

    def _finish_lanes(self, lanes: Axis, nests: tuple[Nest, ...], folds: dict[int, Fold]) -> None:
        left = [i for i, f in folds.items() if not f.scan and self._elsewhere(nests[i], f)]
        if not left:
            return
        wide = any(8 in (folds[i].dtype.bytes, nests[i].out.dtype.bytes) for i in left)
        self.open_lanes(lanes, 8 if wide else 4, strip=True)
        for i in left:
            f = folds[i]
            if f.positions:
                v = self.name(f"vto<i64>(max(load({f.name}p + (l - s), k), splat(i32(0), k)))",
                              True, self.innermost)  # fmt: skip
                self.store_as(nests[i], v, DType.I64)
            else:
                v = self.name(f"load({f.name} + (l - s), k)", True, self.innermost)
                self.store_as(nests[i], v, f.dtype)
        self.close_lanes()

    def _elsewhere(self, n: Nest, f: Fold) -> bool:
        p = self.places.get(n.out)
        return not (isinstance(p, Array) and p.name == f.name)
