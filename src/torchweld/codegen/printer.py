"""What every kernel is printed with: the function around it, its loops, one nest at one point."""

from __future__ import annotations

from collections.abc import Iterable

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_index import lane_step, paren
from torchweld.codegen.cpp_types import HELD_AS_F32, NARROW, stored
from torchweld.codegen.folds import MODES, Fold
from torchweld.codegen.levels import Val
from torchweld.codegen.places import Array, Memory
from torchweld.codegen.shape import Shape, shape_of
from torchweld.codegen.values import Values
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr, Sym
from torchweld.ir.loop import Axis, Buffer, Load, Nest, Op, Scalar, reads
from torchweld.ir.plan import Kernel

STACK_BYTES = 64 * 1024
# from so many functions like sin and exp on a kernel calls them: 1,000 of them that are copied into
# it take g++ 26 s (AMD EPYC, 2026-12-01); the calls cost 2 to 3 % at run time
MANY_CALLS = 16
BASE = Sym.make("strip", 0, None)  # the first lane of the strip


class Printer(Values):
    """Prints one kernel. Its forms are subclasses: they say what is in the function."""

    def __init__(
        self, kernel: Kernel, streamed: frozenset[Buffer], symbols: tuple[Sym, ...]
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.symbols = symbols
        self.streamed = streamed
        self.kinds = {x.buffer: x.kind for x in kernel.locals}
        self.written = {n.out for s in kernel.stages for n in s.nests}
        self.loaded = {b for s in kernel.stages for n in s.nests for b in reads(n)}
        self.streams = False
        self.shapes = [shape_of(kernel, s) for s in kernel.stages]
        self.arrays: list[tuple[str, str, Expr]] = []  # name, element type, elements
        self._name_symbols()
        for i, b in enumerate(kernel.args):
            self.places[b] = Memory(f"t{i}", b)

    def _name_symbols(self) -> None:
        k = self.kernel
        for i, a in enumerate(k.grid):
            self.names[a.sym] = f"g{i}" if len(k.grid) > 1 else "g"
        if k.lanes is not None:
            self.names[k.lanes.sym] = "l"
        self.names[BASE] = "s"
        for i, s in enumerate(self.symbols):
            self.names[s] = f"z{i}"

    # --- the function

    def text(self) -> str:
        """The function, with @ for its name."""
        self.open("", "", *self.symbols)
        self.body()
        body = self.levels.pop().lines
        head = ["WELD_KERNEL(@) {", "  if (begin >= end) return 0;"]
        for i, b in enumerate(self.kernel.args):
            if f"t{i}" in self.used:
                const = "" if b in self.written else "const "
                head.append(f"  auto t{i} = ({const}{stored(b.dtype)}*)t[{i}];")
        first = len(self.kernel.args)
        head += [f"  const i64 z{i} = *(const i64*)t[{first + i}];"
                 for i in range(len(self.symbols))]  # fmt: skip
        head += [f"  {line}" for line in self._array_lines()]
        if self.checks:
            head.append("  int bad = 0;")
        tail = ["  fence();"] if self.streams else []
        tail += [f"  return {'bad' if self.checks else '0'};", "}"]
        if self.long_calls >= MANY_CALLS:
            head, tail = ["namespace far {", *head], [*tail, "}  // namespace far"]
        return "\n".join(head + [f"  {line}" for line in body] + tail)

    def body(self) -> None:
        """Prints what is between the declarations and the return."""
        raise InternalError("a form of kernels without a body")

    @property
    def lanes_axis(self) -> Axis:
        assert self.kernel.lanes is not None
        return self.kernel.lanes

    def _array_lines(self) -> list[str]:
        rows = [(name, t, ONE if n is ZERO else n) for name, t, n in self.arrays]
        if self._stack_bytes() <= STACK_BYTES:
            return [f"alignas(64) {t} {name}[{n.value}];" for name, t, n in rows]
        lines, at = [], ZERO
        for name, t, n in rows:
            lines.append(f"auto {name} = ({t}*)(mem + {paren(self.size_text(at))});")
            at = at + (n * _bytes(t) + 63) // 64 * 64
        return [f"char* mem = scratch({self.size_text(at)});", *lines]

    def _stack_bytes(self) -> int:
        """What all arrays take; more than there is if that is symbolic."""
        if not all(n.is_const for _, _, n in self.arrays):
            return STACK_BYTES + 1
        return sum(max(n.value, 1) * _bytes(t) for _, t, n in self.arrays)

    def open_grid(self) -> None:
        grid = self.kernel.grid
        if not grid:
            self.open("", "")
            return
        self.open("for (i64 g = begin; g < end; ++g) {", "}", *(a.sym for a in grid))
        if len(grid) == 1:
            return
        inner = ONE
        for i in range(len(grid) - 1, -1, -1):
            text = "g" if inner is ONE else f"g / {paren(self.size_text(inner))}"
            if i:
                whole = text if inner is ONE else f"({text})"
                text = f"{whole} % {paren(self.size_text(grid[i].size))}"
            self.line(f"i64 g{i} = {text};")
            inner = inner * grid[i].size

    def start_stage(self, nests: Iterable[Nest], shape: Shape) -> None:
        """Only what earlier stages finished may be kept outside of the loops of this one."""
        for i, a in enumerate(shape.loops):  # a symbol may stand at another depth in each stage
            self.names[a.sym] = f"c{i}"
        self.unstable = {n.out for n in nests}
        self.unstable |= {b for b in self.written if isinstance(self.places.get(b), Memory)}
        if self.loaded & self.written & set(self.places):
            for level in self.levels[1:]:
                level.memo.clear()

    def written_at(self, b: Buffer) -> list[tuple[Expr, ...]]:
        """Where the nests of the kernel write `b`."""
        return [n.index for s in self.kernel.stages for n in s.nests if n.out is b]

    def add_array(self, b: Buffer, a: Array) -> None:
        self.places[b] = a
        self.arrays.append((a.name, stored(a.dtype), a.elements))

    def open_loop(self, shape: Shape, depth: int) -> None:
        a = shape.loops[depth]
        c, n = self.names[a.sym], self.size_text(a.size)
        if a.sym is not shape.lane:
            self.open(f"for (i64 {c} = 0; {c} < {n}; ++{c}) {{", "}", a.sym)
            return
        w = f"lanes<{shape.width}>"
        reduced = any(d <= depth for d in shape.depth)
        loop = f"chains{{}}<{w}, {shape.chains}" if reduced else f"row{{}}<{w}"
        body = f"[&](i64 {c}, auto k{', auto u' if reduced else ''}) WELD_BODY {{"
        self.open(_over(loop, a.size, n) + body, "});", a.sym)
        self.lane = a.sym

    def open_lanes(self, lanes: Axis, width: int, strip: bool = False) -> None:
        if strip:
            head = f"span<lanes<{width}>>(s, e, "
        elif self.kernel.grid:
            head = _over(f"row{{}}<lanes<{width}>", lanes.size, self.size_text(lanes.size))
        else:
            head = f"span<lanes<{width}>>(begin, end, "
        self.open(head + "[&](i64 l, auto k) WELD_BODY {", "});", lanes.sym)
        self.lane = lanes.sym

    def close_lanes(self) -> None:
        self.close()
        self.lane = None

    # --- one nest at one point

    def emit(self, n: Nest) -> None:
        """Computes and stores a pointwise nest."""
        body, memory = n.body, n.out in self.places
        self.prepare(body)
        if memory and n.out.dtype in NARROW and _is_cast(body, n.out.dtype):
            assert isinstance(body, Op)
            body = body.args[0]  # the store rounds
        v = self.value(body)
        if memory and n.out.dtype in NARROW and body.dtype not in HELD_AS_F32:
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

    def folded(self, n: Nest, f: Fold) -> Val:
        self.prepare(n.body)
        return self.convert(self.value(n.body), n.body.dtype.compute, f.dtype)

    def store_as(self, n: Nest, v: Val, dtype: DType) -> None:
        if n.out.dtype in NARROW and n.out in self.places:
            self.store(n, self.convert(v, dtype, DType.F32))  # the store rounds
        else:
            self.store(n, self.convert(v, dtype, n.out.dtype))


def _over(loop: str, n: Expr, text: str) -> str:
    """The call of a loop of the header: a constant size is an argument of the template."""
    return f"{loop.format('')}, {text}>(" if n.is_const else f"{loop.format('_of')}>({text}, "


def _bytes(element: str) -> int:
    return {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2}.get(element, 1)


def _is_cast(x: Scalar, dtype: DType) -> bool:
    return isinstance(x, Op) and x.name == "cast" and x.dtype is dtype


def position(axes: tuple[Axis, ...]) -> Expr:
    """The row-major position over `axes`."""
    total: Expr = ZERO
    for a in axes:
        total = total * a.size + a.sym
    return total
