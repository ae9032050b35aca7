"""Random LoopGraphs (hypothesis), for the tests of ir, fuse and codegen.

loop_graphs()        a valid graph: pointwise, broadcast, reductions, scans, gathers, guarded
                     loads, concatenation, scatter, mutated inputs, strided and transposed
inputs_of(g)         flat lists for its inputs (storage order)
EXTERNS              the meanings of the externs that occur
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st

from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Expr, Ind, as_expr
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Extern,
    Index,
    Load,
    LoopGraph,
    Nest,
    Op,
    Reduce,
    Scalar,
    View,
    axis,
    cast,
    const,
    contiguous,
)
from torchweld.ir.loop_eval import Storage

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
ALL_DTYPES = (DType.F32, DType.F32, DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64,
              DType.I32, DType.U8, DType.I8, DType.BOOL, DType.F8E4M3FN, DType.F8E5M2)  # fmt: skip

EXTERNS = {"test.twice.default": lambda x: [v * 2 for v in x.values]}

_FLOAT_OPS = {1: ("neg", "abs", "exp", "tanh", "sigmoid", "sqrt", "floor", "round", "sign"),
              2: ("add", "sub", "mul", "div", "max", "min", "fmod")}  # fmt: skip
_INT_OPS = {1: ("neg", "abs", "sign", "bit_not"),
            2: ("add", "sub", "mul", "max", "min", "bit_and", "bit_or", "bit_xor")}  # fmt: skip
_BOOL_OPS = {1: ("not",), 2: ("and", "or", "xor")}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_REDUCE = {"f": ("sum", "prod", "max", "min", "argmax", "argmin"),
           "i": ("sum", "prod", "max", "min", "argmax", "argmin"),
           "b": ("any", "all", "max", "min", "argmax")}  # fmt: skip
_MODES = {"f": ("set", "add", "mul", "max", "min"), "i": ("set", "add", "max", "min"),
          "b": ("set", "max"), "q": ("set",)}  # fmt: skip


def letter(dtype: DType) -> str:
    if dtype.is_float8:
        return "q"
    return "f" if dtype.is_float else "b" if dtype is BOOL else "i"


@dataclass
class _Builder:
    """A graph in the making. `pool`: buffers that may be read."""

    draw: st.DrawFn
    dtypes: tuple[DType, ...]
    features: frozenset[str]
    pool: list[Buffer] = field(default_factory=list)
    inputs: list[Buffer] = field(default_factory=list)
    nodes: list[Nest | Extern] = field(default_factory=list)
    count: int = 0

    def pick(self, options):
        return self.draw(st.sampled_from(list(options)))

    def chance(self, feature: str, one_in: int = 3) -> bool:
        return feature in self.features and self.draw(st.integers(1, one_in)) == 1

    def shape(self, low: int = 0) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.integers(1, 5), min_size=low, max_size=3)))

    def buffer(self, shape: tuple[int, ...], dtype: DType, role: str = "temp") -> Buffer:
        """A buffer with its dimensions in any memory order, perhaps with a gap and an offset."""
        self.count += 1
        sizes = tuple(map(as_expr, shape))
        strides, offset = contiguous(sizes), 0
        if shape and self.chance("strided"):
            order = self.draw(st.permutations(range(len(shape))))
            gap = self.pick((1, 1, 2)) if role == "input" else 1
            offset = self.pick((0, 3)) if role == "input" else 0
            step, found = gap, {}
            for d in order:
                found[d] = step
                step *= shape[d]
            strides = tuple(as_expr(found[d]) for d in range(len(shape)))
        name = f"{'x' if role == 'input' else 't'}{self.count}"
        return Buffer.make(name, dtype, sizes, strides, as_expr(offset), role, "cpu")

    def axes(self, shape: tuple[int, ...], names: str = "ijk") -> tuple[Axis, ...]:
        return tuple(axis(name, n) for name, n in zip(names, shape, strict=False))

    # index expressions

    def index_inside(self, axes: tuple[Axis, ...], n: int, depth: int = 1) -> Expr:
        """An index that stays in 0..n-1 for every point of the axes."""
        fits = [a for a in axes if a.size.value <= n]
        kind = self.pick(("axis", "axis", "axis", "axis", "flip", "shift", "mod", "div", "const"))
        if kind == "const" or not axes:
            return as_expr(self.draw(st.integers(0, n - 1)))
        if self.chance("gather", 8) and depth:
            return self.loaded_index(axes, n)
        if kind == "mod" or (kind != "div" and not fits):
            a = self.pick(axes)
            return (a.sym * self.pick((1, 2, 3)) + self.draw(st.integers(0, 3))) % n
        if kind == "div":
            a = self.pick(axes)
            return a.sym // -(-a.size.value // n)
        a = self.pick(fits)
        room = n - a.size.value
        if kind == "flip":
            return as_expr(n - 1) - a.sym
        return a.sym + (self.draw(st.integers(0, room)) if kind == "shift" else 0)

    def loaded_index(self, axes: tuple[Axis, ...], n: int) -> Expr:
        """An index computed from data, brought into range by clamping or checked at run time."""
        raw = self.scalar(axes, I64, 1, loads_only=True)
        inside = Op.make("mod", (raw, const(n, I64)), I64)
        if self.pick((True, False)):
            inside = Op.make("check_index", (inside, const(n, I64)), I64)
        return Ind.make(inside, 0, n - 1)

    def load(self, axes: tuple[Axis, ...], b: Buffer, depth: int) -> Scalar:
        return Load.make(b, tuple(self.index_inside(axes, n.value, depth) for n in b.shape))

    def guarded(self, axes: tuple[Axis, ...], b: Buffer) -> Scalar:
        """b[e] where 0 <= e < n, else a constant: padding."""
        n = b.shape[0].value
        e = self.pick(axes).sym * self.pick((1, 2)) - self.draw(st.integers(0, 2))
        at = Index.make(e)
        low = Op.make("ge", (at, const(0, I64)), BOOL)
        high = Op.make("lt", (at, const(n, I64)), BOOL)
        rest = tuple(self.index_inside(axes, m.value, 0) for m in b.shape[1:])
        inside = Op.make("and", (low, high), BOOL)
        pad = self.literal(b.dtype)
        return Op.make("where", (inside, Load.make(b, (e, *rest)), pad), b.dtype)

    # scalars

    def literal(self, dtype: DType) -> Scalar:
        if dtype is BOOL:
            return const(self.pick((True, False)), dtype)
        if dtype.is_float:
            return const(self.pick((0.0, -0.0, 1.0, -2.0, 0.5, 3.0, math.inf, math.nan)), dtype)
        return const(self.pick((0, 1, 2, 3, 7)), dtype)

    def leaf(self, axes: tuple[Axis, ...], dtype: DType, depth: int) -> Scalar:
        known = [b for b in self.pool if b.dtype is dtype]
        if known and self.draw(st.integers(0, 5)):
            b = self.pick(known)
            if axes and b.shape and self.chance("guard", 5):
                return self.guarded(axes, b)
            return self.load(axes, b, depth)
        if self.pool and self.draw(st.booleans()):
            return cast(self.load(axes, self.pick(self.pool), depth), dtype)
        if axes and dtype is I64 and self.draw(st.booleans()):
            return Index.make(self.pick(axes).sym * 2 + 1)
        return self.literal(dtype)

    def scalar(self, axes: tuple[Axis, ...], dtype: DType, depth: int, *,
               loads_only: bool = False) -> Scalar:  # fmt: skip
        if depth <= 0 or loads_only:
            return self.leaf(axes, dtype, 0 if loads_only else depth)
        kind = self.pick(("unary", "binary", "binary", "shared", "where", "cast", "leaf"))
        down = depth - 1
        if letter(dtype) == "q" and kind not in ("where", "cast"):
            kind = "leaf"  # nothing is computed in it
        if kind == "leaf":
            return self.leaf(axes, dtype, down)
        if kind == "cast":
            return cast(self.scalar(axes, self.pick(self.dtypes), down), dtype)
        if kind == "where":
            cond = self.scalar(axes, BOOL, down)
            a, b = self.scalar(axes, dtype, down), self.scalar(axes, dtype, down)
            return Op.make("where", (cond, a, b), dtype)
        if dtype is BOOL and kind != "unary" and self.draw(st.booleans()):
            other = self.pick(self.computed("fib"))
            pair = (self.scalar(axes, other, down), self.scalar(axes, other, down))
            return Op.make(self.pick(_COMPARE), pair, BOOL)
        ops = {"f": _FLOAT_OPS, "i": _INT_OPS, "b": _BOOL_OPS}[letter(dtype)]
        first = self.scalar(axes, dtype, down)
        if kind == "unary":
            return Op.make(self.pick(ops[1]), (first,), dtype)
        second = first if kind == "shared" else self.scalar(axes, dtype, down)
        return Op.make(self.pick(ops[2]), (first, second), dtype)

    def computed(self, letters: str) -> list[DType]:
        return [d for d in self.dtypes if letter(d) in letters]

    # nodes

    def add(self, out: Buffer, axes: tuple[Axis, ...], index: tuple[Expr, ...], body: Scalar,
            reduce: Reduce | None = None, mode: str = "set") -> None:  # fmt: skip
        origins = (f"n{len(self.nodes)}",) if self.draw(st.booleans()) else ()
        self.nodes.append(Nest(out, axes, index, body, reduce, mode, origins))
        if out not in self.pool:
            self.pool.append(out)

    def identity(self, axes: tuple[Axis, ...]) -> tuple[Expr, ...]:
        return tuple(a.sym for a in axes)

    def pointwise(self) -> None:
        shape, dtype = self.shape(), self.pick(self.dtypes)
        axes = self.axes(shape)
        body = self.scalar(axes, dtype, 3)
        self.add(self.buffer(shape, dtype), axes, self.identity(axes), body)

    def reduction(self) -> None:
        shape, dtype = self.shape(1), self.pick(self.computed("fib"))
        axes = self.axes(shape)
        split = self.draw(st.sets(st.sampled_from(range(len(axes))), min_size=1))
        inner = tuple(a for d, a in enumerate(axes) if d in split)
        outer = tuple(a for d, a in enumerate(axes) if d not in split)
        kind = self.pick(_REDUCE[letter(dtype)])
        body = self.scalar(axes, dtype, 2)
        stored = I64 if kind.startswith("arg") else dtype
        out = self.buffer(tuple(a.size.value for a in outer), stored)
        self.add(out, outer, self.identity(outer), body, Reduce(kind, inner))

    def scan(self) -> None:
        shape = self.shape(1)
        dtype = self.pick(self.computed("fi"))
        axes = self.axes(shape)
        along = self.pick(axes)
        body = self.scalar(axes, dtype, 2)
        kind = self.pick(("scan_sum", "scan_prod", "scan_max", "scan_min"))
        outer = tuple(a for a in axes if a is not along)
        self.add(self.buffer(shape, dtype), outer, self.identity(axes), body,
                 Reduce(kind, (along,)))  # fmt: skip

    def concat(self) -> None:
        """Two nests that write the two parts of one buffer."""
        rows, *rest = self.shape(1)
        more, dtype = self.draw(st.integers(1, 3)), self.pick(self.dtypes)
        out = self.buffer((rows + more, *rest), dtype)
        for start, n in ((0, rows), (rows, more)):
            axes = self.axes((n, *rest))
            index = (axes[0].sym + start, *self.identity(axes[1:]))
            body = self.scalar(axes, dtype, 1)
            self.nodes.append(Nest(out, axes, index, body))
        self.pool.append(out)

    def scatter(self) -> None:
        """Fill a buffer, then store into it at indices that come from data."""
        shape, dtype = self.shape(1), self.pick(self.dtypes)
        axes = self.axes(shape)
        out = self.buffer(shape, dtype)
        filled = self.literal(dtype)
        source = self.axes(self.shape(1))
        index = tuple(self.loaded_index(source, n) for n in shape)
        body = self.scalar(source, dtype, 1)
        self.add(out, axes, self.identity(axes), filled)
        mode = self.pick(_MODES[letter(dtype)])
        self.add(out, source, index, body, mode=mode)

    def mutate(self) -> None:
        """Overwrite an input, reading it at the same point at most."""
        whole = [b for b in self.inputs if 0 not in [s.value for s in b.strides]]
        if not whole:
            return
        out = self.pick(whole)
        axes = self.axes(tuple(n.value for n in out.shape))
        others, self.pool = self.pool, [b for b in self.pool if b is not out]
        body = self.scalar(axes, out.dtype, 2)
        self.pool = others
        if letter(out.dtype) in "fi" and self.draw(st.booleans()):
            old = Load.make(out, self.identity(axes))
            body = Op.make(self.pick(("add", "max")), (old, body), out.dtype)
        self.add(out, axes, self.identity(axes), body)

    def extern(self) -> None:
        source = self.pick(self.pool)
        if letter(source.dtype) != "f":
            return
        out = Buffer.make(f"t{self.count}e{len(self.nodes)}", source.dtype, source.shape,
                          contiguous(source.shape), ZERO, "temp", "cpu")  # fmt: skip
        whole = View(source, source.shape, source.strides, source.offset)
        self.nodes.append(Extern((out,), "test.twice.default", (whole,), (), (), ("twice",)))
        self.pool.append(out)


FEATURES = frozenset({"strided", "gather", "guard", "reduction", "scan", "concat", "scatter",
                      "mutate", "extern"})  # fmt: skip


@st.composite
def loop_graphs(draw, max_nodes: int = 5, dtypes: tuple[DType, ...] = ALL_DTYPES,
                features: frozenset[str] = FEATURES) -> LoopGraph:  # fmt: skip
    """A valid graph with 1 to 3 inputs; leave features out to narrow what occurs."""
    b = _Builder(draw, dtypes, features)
    for _ in range(draw(st.integers(1, 3))):
        b.inputs.append(b.buffer(b.shape(), b.pick(dtypes), "input"))
    b.pool += b.inputs
    kinds = ["pointwise", "pointwise", "pointwise"]
    kinds += ["reduction"] * 2 * ("reduction" in features)
    kinds += sorted(features & {"scan", "concat", "scatter", "mutate", "extern"})
    for _ in range(draw(st.integers(1, max_nodes))):
        getattr(b, b.pick(kinds))()
    made = [x for x in b.pool if x.role == "temp"] or b.inputs
    chosen = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    outputs = []
    for x in chosen:
        shape, strides = x.shape, x.strides
        if draw(st.integers(0, 4)) == 0:
            shape, strides = shape[::-1], strides[::-1]
        outputs.append(View(x, shape, strides, x.offset))
    if draw(st.integers(0, 9)) == 0:
        outputs.append(None)
    return LoopGraph(tuple(b.inputs), tuple(b.nodes), tuple(outputs))


_VALUES = {
    "f": st.one_of(
        st.integers(-4, 4).map(float),
        st.sampled_from((0.5, -0.0, 0.25, math.inf, -math.inf, math.nan, 1e30)),
    ),
    "q": st.sampled_from((0.0, -0.0, 1.0, -1.5, 0.0625, 448.0, math.inf, math.nan)),
    "i": st.integers(0, 100),
    "b": st.booleans(),
}


@st.composite
def inputs_of(draw, g: LoopGraph, specials: bool = True) -> list[list[float | int | bool]]:
    """Values for every input storage; without `specials`, small numbers that add exactly."""
    out = []
    for b in g.inputs:
        n = Storage(b, {}).extent
        values = _VALUES[letter(b.dtype)]
        if not specials and b.dtype.is_float:
            values = st.integers(-4, 4).map(float)
        out.append(draw(st.lists(values, min_size=n, max_size=n)))
    return out
