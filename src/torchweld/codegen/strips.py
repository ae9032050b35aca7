"""Kernels with lanes and loops inside: in strips of lanes, so that rows are read in long pieces."""

from __future__ import annotations

from torchweld.codegen.printer import Printer


class StripPrinter(Printer):
    """Strips of lanes; in each the stages one after the other, the lanes innermost."""

    def print_strips(self, lanes: Axis) -> None:
        self.open_grid()
        self.private_level = 2
        low, high = ("0", str(size(lanes))) if self.kernel.grid else ("begin", "end")
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
        strip = min(STRIP, -(-size(lanes) // 16) * 16)
        nests = [n for s in self.kernel.stages for n in s.nests if self._outlives(n)]
        while True:
            found = {n.out: array_for("", n.out, n.index, grid, lanes.sym, BASE, strip)
                     for n in nests}  # fmt: skip
            if strip <= 16 or sum(a.bytes for a in found.values()) <= STACK_BYTES // 2:
                break
            strip = strip // 32 * 16
        for b in found:
            n = next(n for n in nests if n.out is b)
            name = f"r{len(self.arrays)}"
            a = array_for(name, b, n.index, grid, lanes.sym, BASE, strip)
            self._add_array(b, a)
        return strip

    def _outlives(self, n: Nest) -> bool:
        return self.kinds.get(n.out) in ("row", "scalar")

    def _strip_stage(self, lanes: Axis, nests: tuple[Nest, ...], shape: Shape,
                     strip: int) -> None:  # fmt: skip
        folds = {
            i: fold_of(n, self._collector(n, strip), True) for i, n in enumerate(nests) if n.reduce
        }
        void = any(size(a) == 0 for a in shape.loops)
        for depth in range(len(shape.loops) + 1):
            for i, f in folds.items():
                if shape.depth[i] == depth:
                    self._fill(f, strip)
            if depth == len(shape.loops) or void:
                break
            self._open_loop(shape, depth)
        if not void:
            self._open_lanes(lanes, shape.width, strip=True)
            for i, n in enumerate(nests):
                if i in folds:
                    self._collect_lanes(n, folds[i])
                else:
                    self.emit(n)
            self._close_lanes()
        for depth in range(len(shape.loops), -1, -1):
            if depth < len(shape.loops) and not void:
                self.close()
            done = {i: f for i, f in folds.items() if shape.depth[i] == depth}
            self._finish_lanes(lanes, nests, done)

    def _collector(self, n: Nest, strip: int) -> str:
        """The array that a reduction collects in: the local that it fills, when that fits."""
        p = self.places.get(n.out)
        f = fold_of(n, "", True)
        same = f.dtype is n.out.dtype and not f.scan and not f.positions
        if isinstance(p, Array) and self.kinds[n.out] == "scalar" and same and p.elements == strip:
            return p.name
        return self.fresh("a")

    def _fill(self, f: Fold, strip: int) -> None:
        if not any(a[0] == f.name for a in self.arrays):
            self.arrays.append((f.name, stored(f.dtype), strip))
        if f.positions:
            if not any(a[0] == f"{f.name}p" for a in self.arrays):
                self.arrays.append((f"{f.name}p", "i32", strip))
            self.line(f"fill({f.name}p, i32(-1), e - s);")
            self.line(f"fill({f.name}, {f.computed}(0), e - s);")
        else:
            self.line(f"fill({f.name}, {f.start}, e - s);")

    def _collect_lanes(self, n: Nest, f: Fold) -> None:
        v = self.as_vector(self._folded(n, f))
        at = f"{f.name} + (l - s)"
        if f.positions:
            assert n.reduce is not None
            where = f"{f.name}p + (l - s)"
            position = self.offset_text(_position(n.reduce.axes), None)
            self.line(f"arg_lanes<{f.op}>({at}, {where}, {v}, i32({position}), k);")
            return
        total = self.name(f"{f.op}::of(load({at}, k), {v})", True, self.innermost)
        self.line(f"store({at}, {total.text}, k);")
        if f.scan:
            self._store_as(n, total, f.dtype)

    def _finish_lanes(self, lanes: Axis, nests: tuple[Nest, ...], folds: dict[int, Fold]) -> None:
        left = [i for i, f in folds.items() if not f.scan and self._elsewhere(nests[i], f)]
        if not left:
            return
        wide = any(8 in (folds[i].dtype.bytes, nests[i].out.dtype.bytes) for i in left)
        self._open_lanes(lanes, 8 if wide else 4, strip=True)
        for i in left:
            f = folds[i]
            if f.positions:
                v = self.name(f"vto<i64>(max(load({f.name}p + (l - s), k), splat(i32(0), k)))",
                              True, self.innermost)  # fmt: skip
                self._store_as(nests[i], v, DType.I64)
            else:
                v = self.name(f"load({f.name} + (l - s), k)", True, self.innermost)
                self._store_as(nests[i], v, f.dtype)
        self._close_lanes()

    def _elsewhere(self, n: Nest, f: Fold) -> bool:
        p = self.places.get(n.out)
        return not (isinstance(p, Array) and p.name == f.name)

