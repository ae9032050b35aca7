"""Kernels without lanes: the last loop of each stage is vectorised."""

from __future__ import annotations

from torchweld.codegen.cpp_index import lane_step
from torchweld.codegen.folds import Fold, fold_of
from torchweld.codegen.levels import Val
from torchweld.codegen.places import array_for
from torchweld.codegen.printer import Printer, position
from torchweld.codegen.shape import Shape, void
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Nest


class RowPrinter(Printer):
    """One grid point after the other, each a sequence of loops over its row."""

    def body(self) -> None:
        self.open_grid()
        grid = frozenset(a.sym for a in self.kernel.grid)
        for b in dict.fromkeys(n.out for s in self.kernel.stages for n in s.nests):
            if self.kinds.get(b) == "row":
                at = self.written_at(b)
                self.add_array(b, array_for(f"r{len(self.arrays)}", b, at, grid, None, None, 1))
        for stage, shape in zip(self.kernel.stages, self.shapes, strict=True):
            self.start_stage(stage.nests, shape)
            self._row_stage(stage.nests, shape)
        self.close()

    def _row_stage(self, nests: tuple[Nest, ...], shape: Shape) -> None:
        folds = {i: fold_of(n, self.fresh("a")) for i, n in enumerate(nests) if n.reduce}
        empty = void(shape.loops)
        for depth in range(len(shape.loops) + 1):
            for i, f in folds.items():
                if shape.depth[i] == depth:
                    self._declare(f, shape)
            if depth == len(shape.loops) or empty:
                break
            self.open_loop(shape, depth)
        if empty:
            self._finish(nests, folds, shape)
            return
        for i, n in enumerate(nests):
            if i in folds:
                self._collect(n, folds[i], shape)
            else:
                self.emit(n)
        for depth in range(len(shape.loops) - 1, -1, -1):
            self.close()
            self.lane = None
            done = {i: f for i, f in folds.items() if shape.depth[i] == depth}
            self._finish(nests, done, shape)

    def _declare(self, f: Fold, shape: Shape) -> None:
        w = f"lanes<{shape.width}>"
        if shape.lane is None or f.scan:
            self.line(f"arg_one<{f.op}, {f.computed}> {f.name};" if f.positions
                      else f"{f.computed} {f.name} = {f.start};")  # fmt: skip
        elif f.positions:
            self.line(f"arg_acc<{f.op}, {f.lane_type}, {w}> {f.name};")
        else:
            self.line(f"acc<{f.op}, {f.lane_type}, {w}, {shape.chains}> {f.name};")

    def _collect(self, n: Nest, f: Fold, shape: Shape) -> None:
        v = self.folded(n, f)
        if f.scan:
            self.line(f"{f.name} = {f.op}::of({f.name}, {v.text});")
            self.store_as(n, Val(f.name, False, self.innermost), f.dtype)
        elif f.positions:
            self.line(f"{f.name}.add({self._positioned(n, v, shape)});")
        elif shape.lane is None:
            self.line(f"{f.name} = {f.op}::of({f.name}, {v.text});")
        else:
            self.line(f"{f.name}.add({self.as_vector(v)}, k, u);")

    def _positioned(self, n: Nest, v: Val, shape: Shape) -> str:
        assert n.reduce is not None
        at = position(n.reduce.axes)
        if shape.lane is None:
            return f"{v.text}, {self.offset_text(at, None)}"
        step = lane_step(at, shape.lane)
        return f"{self.as_vector(v)}, iota(i32({self.offset_text(at, None)}), i32({step}), k), k"

    def _finish(self, nests: tuple[Nest, ...], folds: dict[int, Fold], shape: Shape) -> None:
        """After the loops that it runs over, a reduction is one value."""
        for i, f in folds.items():
            if f.scan:
                continue
            done = f.positions or shape.lane is not None
            scalar = f"{f.name}.done()" if done else f.name
            if f.dtype is DType.BOOL and scalar != f.name:
                scalar += " != 0"
            v = self.name(scalar, False, self.innermost)
            self.store_as(nests[i], v, DType.I64 if f.positions else f.dtype)
