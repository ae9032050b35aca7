"""Kernel -> C++ function. The text depends only on the structure: equal kernels, equal texts."""

from __future__ import annotations

from collections.abc import Iterable

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_index import lane_step
from torchweld.codegen.cpp_types import NARROW, stored
from torchweld.codegen.folds import MODES, Fold, fold_of
from torchweld.codegen.levels import Val
from torchweld.codegen.places import Array, Memory, array_for
from torchweld.codegen.shape import Shape, shape_of, size
from torchweld.codegen.values import Values
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Expr, Sym
from torchweld.ir.loop import Axis, Buffer, Load, Nest, Op, Scalar, reads
from torchweld.ir.plan import Kernel

STACK_BYTES = 64 * 1024
STRIP = 2048  # lanes that a column reduction works on at once
BASE = Sym.make("strip", 0, None)  # the first lane of the strip


class Printer(Values):
    """Prints one kernel; `print_rows`, `print_lanes` and `print_strips` are its three forms."""

    def __init__(self, kernel: Kernel, streamed: frozenset[Buffer]) -> None:
        super().__init__()
        self.kernel = kernel
        self.streamed = streamed
        self.kinds = {x.buffer: x.kind for x in kernel.locals}
        self.written = {n.out for s in kernel.stages for n in s.nests}
        self.loaded = {b for s in kernel.stages for n in s.nests for b in reads(n)}
        self.streams = False
        self.shapes = [shape_of(kernel, s) for s in kernel.stages]
        self.arrays: list[tuple[str, str, int]] = []  # name, element type, elements
        self._name_symbols()
        for i, b in enumerate(kernel.args):
            self.places[b] = Memory(f"t{i}", b)

    def _name_symbols(self) -> None:
        k = self.kernel
        for i, a in enumerate(k.grid):
            self.names[a.sym] = f"g{i}" if len(k.grid) > 1 else "g"
        if k.lanes is not None:
            self.names[k.lanes.sym] = "l"
        for shape in self.shapes:
            for i, a in enumerate(shape.loops):
                self.names[a.sym] = f"c{i}"
        self.names[BASE] = "s"

    # --- the function

    def text(self) -> str:
        """The function, with @ for its name."""
        self.open("", "")
        if self.kernel.lanes is None:
            self.print_rows()
        elif any(s.loops for s in self.shapes):
            self.print_strips(self.kernel.lanes)
        else:
            self.print_lanes(self.kernel.lanes)
        body = self.levels.pop().lines
        head = ["WELD_KERNEL(@) {", "  if (begin >= end) return 0;"]
        for i, b in enumerate(self.kernel.args):
            if f"t{i}" in self.used:
                const = "" if b in self.written else "const "
                head.append(f"  auto t{i} = ({const}{stored(b.dtype)}*)t[{i}];")
        head += [f"  {line}" for line in self._array_lines()]
        if self.checks:
            head.append("  int bad = 0;")
        tail = ["  fence();"] if self.streams else []
        tail += [f"  return {'bad' if self.checks else '0'};", "}"]
        return "\n".join(head + [f"  {line}" for line in body] + tail)

    def _array_lines(self) -> list[str]:
        sizes = [max(n, 1) * _bytes(t) for _, t, n in self.arrays]
        if sum(sizes) <= STACK_BYTES:
            return [f"alignas(64) {t} {name}[{max(n, 1)}];" for name, t, n in self.arrays]
        lines, at = [], 0
        for (name, t, _), b in zip(self.arrays, sizes, strict=True):
            lines.append(f"auto {name} = ({t}*)(mem + {at});")
            at += -(-b // 64) * 64
        return [f"char* mem = scratch({at});", *lines]

    def open_grid(self) -> None:
        grid = self.kernel.grid
        if not grid:
            self.open("", "")
            return
        self.open("for (i64 g = begin; g < end; ++g) {", "}", *(a.sym for a in grid))
        if len(grid) == 1:
            return
        inner = 1
        for i in range(len(grid) - 1, -1, -1):
            text = "g" if inner == 1 else f"g / {inner}"
            if i:
                text = f"{text if inner == 1 else f'({text})'} % {size(grid[i])}"
            self.line(f"i64 g{i} = {text};")
            inner *= size(grid[i])

    def start_stage(self, nests: Iterable[Nest]) -> None:
        """Only what earlier stages finished may be kept outside of the loops of this one."""
        self.unstable = {n.out for n in nests}
        self.unstable |= {b for b in self.written if isinstance(self.places.get(b), Memory)}
        if self.loaded & self.written & set(self.places):
            for level in self.levels[1:]:
                level.memo.clear()

    # --- form 1: no lanes; the last loop of each stage is vectorised

    def print_rows(self) -> None:
        self.open_grid()
        grid = frozenset(a.sym for a in self.kernel.grid)
        for stage in self.kernel.stages:
            for n in stage.nests:
                if self.kinds.get(n.out) == "row" and n.out not in self.places:
                    a = array_for(f"r{len(self.arrays)}", n.out, n.index, grid, None, None, 1)
                    self._add_array(n.out, a)
        for stage, shape in zip(self.kernel.stages, self.shapes, strict=True):
            self.start_stage(stage.nests)
            self._row_stage(stage.nests, shape)
        self.close()

    def _add_array(self, b: Buffer, a: Array) -> None:
        self.places[b] = a
        self.arrays.append((a.name, stored(a.dtype), a.elements))

    def _row_stage(self, nests: tuple[Nest, ...], shape: Shape) -> None:
        folds = {i: fold_of(n, self.fresh("a")) for i, n in enumerate(nests) if n.reduce}
        void = any(size(a) == 0 for a in shape.loops)
        for depth in range(len(shape.loops) + 1):
            for i, f in folds.items():
                if shape.depth[i] == depth:
                    self._declare(f, shape)
            if depth == len(shape.loops) or void:
                break
            self._open_loop(shape, depth)
        if void:
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

    def _open_loop(self, shape: Shape, depth: int) -> None:
        a = shape.loops[depth]
        c, n = self.names[a.sym], size(a)
        if a.sym is not shape.lane:
            self.open(f"for (i64 {c} = 0; {c} < {n}; ++{c}) {{", "}", a.sym)
            return
        w = f"lanes<{shape.width}>"
        reduced = any(d <= depth for d in shape.depth)
        if reduced:
            head = f"chains<{w}, {shape.chains}, {n}>([&](i64 {c}, auto k, auto u) WELD_BODY {{"
        else:
            head = f"row<{w}, {n}>([&](i64 {c}, auto k) WELD_BODY {{"
        self.open(head, "});", a.sym)
        self.lane = a.sym

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
        v = self._folded(n, f)
        if f.scan:
            self.line(f"{f.name} = {f.op}::of({f.name}, {v.text});")
            self._store_as(n, Val(f.name, False, self.innermost), f.dtype)
        elif f.positions:
            self.line(f"{f.name}.add({self._positioned(n, v, shape)});")
        elif shape.lane is None:
            self.line(f"{f.name} = {f.op}::of({f.name}, {v.text});")
        else:
            self.line(f"{f.name}.add({self.as_vector(v)}, k, u);")

    def _folded(self, n: Nest, f: Fold) -> Val:
        self.prepare(n.body)
        return self.convert(self.value(n.body), n.body.dtype.compute, f.dtype)

    def _positioned(self, n: Nest, v: Val, shape: Shape) -> str:
        assert n.reduce is not None
        at = _position(n.reduce.axes)
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
            self._store_as(nests[i], v, DType.I64 if f.positions else f.dtype)

    def _store_as(self, n: Nest, v: Val, dtype: DType) -> None:
        if n.out.dtype in NARROW and n.out in self.places:
            self.store(n, self.convert(v, dtype, DType.F32))  # the store rounds
        else:
            self.store(n, self.convert(v, dtype, n.out.dtype))

    # --- form 2: lanes, nothing but points

    def print_lanes(self, lanes: Axis) -> None:
        self.open_grid()
        width = max(s.width for s in self.shapes)
        self._open_lanes(lanes, width)
        for stage in self.kernel.stages:
            self.start_stage(stage.nests)
            for n in stage.nests:
                self.emit(n)
        self._close_lanes()
        self.close()

    def _open_lanes(self, lanes: Axis, width: int, strip: bool = False) -> None:
        if strip:
            head = f"span<lanes<{width}>>(s, e, "
        elif self.kernel.grid:
            head = f"row<lanes<{width}>, {size(lanes)}>("
        else:
            head = f"span<lanes<{width}>>(begin, end, "
        self.open(head + "[&](i64 l, auto k) WELD_BODY {", "});", lanes.sym)
        self.lane = lanes.sym

    def _close_lanes(self) -> None:
        self.close()
        self.lane = None

    # --- form 3: lanes with loops inside: strips of lanes, so that rows are read in long pieces

    def print_strips(self, lanes: Axis) -> None:
        self.open_grid()
        self.private_level = 2
        low, high = ("0", str(size(lanes))) if self.kernel.grid else ("begin", "end")
        strip = self._place_strips(lanes)
        self.open(f"for (i64 s = {low}, e; s < {high}; s = e) {{", "}", BASE)
        self.line(f"e = s / {strip} * {strip} + {strip};")
        self.line(f"if (e > {high}) e = {high};")
        for stage, shape in zip(self.kernel.stages, self.shapes, strict=True):
            self.start_stage(stage.nests)
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
        folds = {i: fold_of(n, self._collector(n, strip)) for i, n in enumerate(nests) if n.reduce}
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
        f = fold_of(n, "")
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

    # --- one nest at one point

    def emit(self, n: Nest) -> None:
        """Computes and stores a pointwise nest."""
        body, memory = n.body, n.out in self.places
        self.prepare(body)
        if memory and n.out.dtype in NARROW and _is_cast(body, n.out.dtype):
            assert isinstance(body, Op)
            body = body.args[0]  # the store rounds
        v = self.value(body)
        if memory and n.out.dtype in NARROW and body.dtype.compute is not DType.F32:
            v = self.convert(v, body.dtype, DType.F32)
        elif not memory or n.out.dtype not in NARROW:
            v = self.convert(v, body.dtype, n.out.dtype)
        self.store(n, v)

    def store(self, n: Nest, v: Val) -> None:
        p = self.places.get(n.out)
        if p is None:
            if n.out not in self.kinds:
                raise InternalError(f"{n.out.name} is neither an argument nor local")
            self.bound[n.out] = v._replace(level=self.innermost) if v.vec else v
            return
        if p.empty:
            return
        e = p.offset(n.index)
        _, varies = self.spread(e, None)
        self.used.add(p.name)
        if self.lane is None:
            self._store_one(p, n.mode, e, v)
        else:
            self._store_lanes(p, n, e, self.as_vector(v), varies)
        if n.out in self.loaded:
            self.forget()
            self._forward(n, v)

    def _forward(self, n: Nest, v: Val) -> None:
        """What was just stored need not be loaded at the same place (unless it was rounded)."""
        if n.mode == "set" and n.out.dtype not in NARROW:
            at = Load.make(n.out, n.index)
            self.remember(at, v._replace(level=self.innermost))

    def _store_one(self, p: Memory | Array, mode: str, e: Expr, v: Val) -> None:
        at = self.address(p, e, None)
        text = v.text if mode == "set" else f"{MODES[mode]}::of(get({at}), {v.text})"
        self.line(f"put({at}, {text});")

    def _store_lanes(self, p: Memory | Array, n: Nest, e: Expr, v: str, varies: bool) -> None:
        assert self.lane is not None
        if varies or lane_step(e, self.lane) != 1:
            offsets = self.lane_offsets(e, None, varies, "k")
            self.line(f"scatter<{MODES[n.mode]}>({p.name}, {offsets}, {v}, k);")
            return
        at = self.address(p, e, None)
        if n.mode != "set":
            self.line(f"store({at}, {MODES[n.mode]}::of(load({at}, k), {v}), k);")
        elif n.out in self.streamed and n.out not in self.loaded:
            self.streams = True
            self.line(f"stream({at}, {v}, k);")
        else:
            self.line(f"store({at}, {v}, k);")


def _bytes(element: str) -> int:
    return {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2}.get(element, 1)


def _is_cast(x: Scalar, dtype: DType) -> bool:
    return isinstance(x, Op) and x.name == "cast" and x.dtype is dtype


def _position(axes: tuple[Axis, ...]) -> Expr:
    """The row-major position over `axes`."""
    total: Expr = ZERO
    for a in axes:
        total = total * a.size + a.sym
    return total


def print_kernel(kernel: Kernel, streamed: frozenset[Buffer]) -> str:
    """The C++ function of a kernel, with @ where its name goes.

    streamed: buffers too large for the caches, written past them.
    """
    return Printer(kernel, streamed).text()
