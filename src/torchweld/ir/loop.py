"""LoopGraph: a program of loop nests over buffers, as immutable data.

    LoopGraph   inputs, nodes in execution order, outputs
    Nest        for axes: out[index] = body          (pointwise, gather, scatter)
                for axes: out[index] = REDUCE over reduce.axes of body
    Extern      a call into ATen on views of buffers
    Scalar      Const, Load, Index, Op: the value computed at one point of a nest

A buffer may be written by several nodes (concatenation, scatter, mutation of an input); nodes run
in order, so a read sees the writes before it. docs/ir.md gives the text form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torchweld.base.intern import Interned
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, Sym, as_expr, atoms, index_symbol, rewrite


class Buffer(Interned):
    """A piece of memory that holds a strided tensor.

    Shapes: `shape` and `strides` in elements, `offset` in elements from the start of the storage.
    `role`: "input", "const" (what a prologue computed; behind the inputs) or "temp".
    """

    __slots__ = ("device", "dtype", "name", "offset", "role", "shape", "strides")
    _fields: ClassVar[tuple[str, ...]] = (
        "name", "dtype", "shape", "strides", "offset", "role", "device",
    )  # fmt: skip
    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    role: str
    device: str

    def __repr__(self) -> str:
        return self.name


class Scalar(Interned):
    """The value at one point: a tree, shared by interning."""

    __slots__ = ("dtype",)
    dtype: DType

    def text(self) -> str:
        """Compact one-line form, for errors and keys; the full form is in loop_text."""
        return _scalar_text(self)

    __repr__ = text


class Const(Scalar):
    """A constant of `dtype`. Built by `const`, which keeps -0.0, NaN and inf apart."""

    __slots__ = ("bits",)
    _fields: ClassVar[tuple[str, ...]] = ("bits", "dtype")
    bits: int  # the integer itself, or the IEEE binary64 pattern of a float

    @property
    def value(self) -> float | int | bool:
        if self.dtype is DType.BOOL:
            return bool(self.bits)
        if self.dtype.is_float:
            return float(struct.unpack("<d", struct.pack("<Q", self.bits))[0])
        return self.bits


class Load(Scalar):
    """buffer[index]: one Expr per dimension of the buffer's shape."""

    __slots__ = ("buffer", "index")
    _fields: ClassVar[tuple[str, ...]] = ("buffer", "index")
    buffer: Buffer
    index: tuple[Expr, ...]

    def _derive(self) -> None:
        object.__setattr__(self, "dtype", self.buffer.dtype)


class Index(Scalar):
    """The integer value of an index expression, as i64."""

    __slots__ = ("expr",)
    _fields: ClassVar[tuple[str, ...]] = ("expr",)
    expr: Expr

    def _derive(self) -> None:
        object.__setattr__(self, "dtype", DType.I64)


class Op(Scalar):
    """A row of loop_ops.OPS applied to arguments. `where` evaluates only the branch it takes."""

    __slots__ = ("args", "name")
    _fields: ClassVar[tuple[str, ...]] = ("name", "args", "dtype")
    name: str
    args: tuple[Scalar, ...]


def const(value: float | int | bool, dtype: DType) -> Const:
    """The constant `value` of `dtype`; a float is rounded to the dtype where it is used."""
    if dtype is DType.BOOL:
        return Const.make(int(bool(value)), dtype)
    if dtype.is_float:
        return Const.make(struct.unpack("<Q", struct.pack("<d", float(value)))[0], dtype)
    return Const.make(int(value), dtype)


def cast(x: Scalar, dtype: DType) -> Scalar:
    """`x` converted to `dtype`; nothing if it has it already."""
    return x if x.dtype is dtype else Op.make("cast", (x,), dtype)


def _scalar_text(x: Scalar) -> str:
    match x:
        case Const():
            return f"{x.value!r}:{x.dtype.value}"
        case Load():
            return f"{x.buffer.name}[{', '.join(e.text() for e in x.index)}]"
        case Index():
            return f"index({x.expr.text()})"
        case Op():
            name = f"cast.{x.dtype.value}" if x.name == "cast" else x.name
            return f"{name}({', '.join(_scalar_text(a) for a in x.args)})"
    raise TypeError(type(x).__name__)


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop: `sym` runs over 0 <= sym < size."""

    sym: Sym
    size: Expr

    @property
    def name(self) -> str:
        return self.sym.name

    def text(self) -> str:
        return f"{self.sym.name}:{self.size.text()}"


def axis(name: str, size: Expr | int) -> Axis:
    size = as_expr(size)
    return Axis(index_symbol(name, size), size)


@dataclass(frozen=True, slots=True)
class Reduce:
    """How the values along `axes` are combined.

    kind: sum, prod, max, min (NaN wins), any, all: accumulate in the body's dtype;
          argmax, argmin: i64 position, row-major over `axes`, first among equals, NaN wins;
          scan_sum, scan_prod, scan_max, scan_min: inclusive scan along the one reduce axis, which
          also appears in the store index.
    """

    kind: str
    axes: tuple[Axis, ...]

    @property
    def is_scan(self) -> bool:
        return self.kind.startswith("scan_")


@dataclass(frozen=True, slots=True)
class Nest:
    """One loop nest: `out[index] = body` at every point of `axes`, after reducing if asked.

    mode: "set", or "add" / "mul" / "max" / "min" to combine with what `out` holds (scatter). When
    `index` is not injective the points run in row-major order of the axes.
    origins: FX node names, and through them user lines.
    """

    out: Buffer
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]
    body: Scalar
    reduce: Reduce | None = None
    mode: str = "set"
    origins: tuple[str, ...] = ()

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        return self.axes + (self.reduce.axes if self.reduce else ())


@dataclass(frozen=True, slots=True)
class View:
    """A strided window onto a buffer: what ATen sees, and what a caller gets.

    again: tells apart tensor objects that show the same; 0 for the first one.
    """

    buffer: Buffer
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    again: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is the buffer itself."""
        b = self.buffer
        shown = self.shape, self.strides, self.offset, self.again
        return shown == (b.shape, b.strides, b.offset, 0)


@dataclass(frozen=True, slots=True)
class Torch:
    """A torch constant in an Extern's arguments: kind is dtype, device, layout or memory_format."""

    kind: str
    name: str


ExternArg = (
    View | Torch | Expr | int | float | bool | complex | str | None | tuple["ExternArg", ...]
)


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of the ATen operator `op` ("aten.mm.default").

    outs: one fresh buffer per returned tensor (never an alias of an argument); empty when the
    operator only mutates its arguments. `writes`: buffers among the arguments that it changes.
    """

    outs: tuple[Buffer, ...]
    op: str
    args: tuple[ExternArg, ...]
    kwargs: tuple[tuple[str, ExternArg], ...] = ()
    writes: tuple[Buffer, ...] = ()
    origins: tuple[str, ...] = ()


Node = Nest | Extern


@dataclass(frozen=True, slots=True)
class Reading:
    """Where a call finds the value of a symbolic size.

    kind: "size" or "stride" of dimension `dim` of input number `input`, or "number", its one
    element.
    """

    kind: str
    input: int
    dim: int = 0


@dataclass(frozen=True, slots=True)
class LoopGraph:
    """A whole program. `outputs` are returned in order; None stands for an output that is None.

    sizes: the symbols that stand for sizes; readings: where each is found, in the same order.
    """

    inputs: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[View | None, ...]
    sizes: tuple[Sym, ...] = ()
    readings: tuple[Reading, ...] = ()


def children(x: Scalar) -> tuple[Scalar, ...]:
    """The scalars that `x` reads, those inside its index expressions included."""
    match x:
        case Op():
            return x.args
        case Load():
            return tuple(s for e in x.index for s in scalars_in(e))
        case Index():
            return tuple(scalars_in(x.expr))
        case _:
            return ()


def scalars_in(e: Expr) -> Iterator[Scalar]:
    """The run-time scalars that an index expression depends on."""
    if isinstance(e, Int | Sym):
        return
    for a in sorted(atoms(e), key=lambda a: a.text()):
        if isinstance(a, Ind):
            assert isinstance(a.scalar, Scalar)
            yield a.scalar


def walk(x: Scalar) -> Iterator[Scalar]:
    """Every distinct node under `x`, children first."""
    seen: set[Scalar] = set()
    stack: list[tuple[Scalar, bool]] = [(x, False)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((c, False) for c in children(node) if c not in seen)


@lru_cache(1 << 14)
def loads(x: Scalar) -> tuple[Load, ...]:
    """The loads under `x`. Every stage asks for those of the same bodies."""
    return tuple([n for n in walk(x) if isinstance(n, Load)])


def rebuild(x: Scalar, leaf: Callable[[Scalar], Scalar | None],
            on_index: Callable[[Expr], Expr] | None = None) -> Scalar:  # fmt: skip
    """`x` with every node for which `leaf` answers replaced, and every index mapped by `on_index`.

    `leaf` sees a node before its children; an answer is final. Indices inside Ind are rebuilt too.
    """
    done: dict[Scalar, Scalar] = {}

    def expr(e: Expr) -> Expr:
        if any(isinstance(a, Ind) for a in atoms(e)):
            e = rewrite(e, ind)
        return on_index(e) if on_index else e

    def ind(e: Expr) -> Expr | None:
        if isinstance(e, Ind):
            assert isinstance(e.scalar, Scalar)
            return Ind.make(go(e.scalar), e.smin, e.smax)
        return None

    def go(n: Scalar) -> Scalar:
        if n in done:
            return done[n]
        hit = leaf(n)
        if hit is None:
            match n:
                case Op():
                    hit = Op.make(n.name, tuple(go(a) for a in n.args), n.dtype)
                case Load():
                    hit = Load.make(n.buffer, tuple(expr(e) for e in n.index))
                case Index():
                    hit = Index.make(expr(n.expr))
                case _:
                    hit = n
        done[n] = hit
        return hit

    return go(x)


def reads(n: Node) -> set[Buffer]:
    """The buffers that a node reads (a Nest that accumulates also reads its out)."""
    if isinstance(n, Nest):
        found = {ld.buffer for ld in loads(n.body)}
        for e in n.index:
            for s in scalars_in(e):
                found |= {ld.buffer for ld in loads(s)}
        return found | ({n.out} if n.mode != "set" else set())
    return {v.buffer for v in views_of(n.args) + views_of(tuple(v for _, v in n.kwargs))}


def writes(n: Node) -> set[Buffer]:
    """The buffers that a node writes."""
    return {n.out} if isinstance(n, Nest) else set(n.outs) | set(n.writes)


def written_inputs(g: LoopGraph) -> tuple[int, ...]:
    """The positions of the inputs that a graph writes to."""
    written = {b for n in g.nodes for b in writes(n)}
    return tuple(i for i, b in enumerate(g.inputs) if b in written)


def views_of(args: tuple[ExternArg, ...]) -> list[View]:
    """The tensor arguments of an Extern, nested lists included, in order."""
    out: list[View] = []
    for a in args:
        if isinstance(a, View):
            out.append(a)
        elif isinstance(a, tuple):
            out += views_of(a)
    return out


def contiguous(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides for `shape` (size-0 and size-1 dimensions count as 1)."""
    out: list[Expr] = []
    step: Expr = as_expr(1)
    for n in reversed(shape):
        out.append(step)
        step = step * (n if not (isinstance(n, Int) and n.n < 1) else 1)
    return tuple(reversed(out))


@dataclass(frozen=True, slots=True)
class Measured:
    """A body that is measured from another fold over the same row: of softmax or variance.

    exp(x - m), m = max of x (also with 0 for an infinite m: logsumexp)
    (x - t / n) ** 2, t = sum of n values x

    kind: of the other fold, "max" or "sum". value: x. other: m or t. base: what is subtracted from
    x, made of `other`. finite: an infinite m counts as 0.
    """

    kind: str
    value: Scalar
    other: Load
    base: Scalar
    finite: bool = False


def measured(body: Scalar, count: int | None) -> Measured | None:
    """How `body` is measured from another fold over `count` values; None if it is not.

    count: None where it is symbolic; then no mean is recognised.
    """
    match body:
        case Op(name="exp", args=(Op(name="sub", args=(x, Load() as m)),)):
            return Measured("max", x, m, m)
        case Op(name="exp", args=(Op(name="sub", args=(x, Op(name="where") as base)),)):
            top = _finite(base)
            return None if top is None else Measured("max", x, top, base, True)
        case Op(name="mul", args=(Op(name="sub", args=(x, mean)) as d, e)) if d is e:
            total = None if count is None else _total(mean, count)
            return None if total is None else Measured("sum", x, total, mean)
    return None


def _finite(base: Op) -> Load | None:
    """m, if `base` is m or 0 where m is infinite."""
    match base.args:
        case (Op(name="isinf", args=(Load() as m,)), Const(value=0), e) if e is m:
            return m
    return None


def _total(mean: Scalar, count: int) -> Load | None:
    """t, if `mean` is t divided by `count`."""
    match mean:
        case Op(name="div", args=(Load() as t, Const(value=n))) if n == count:
            return t
        case Op(name="mul", args=(Load() as t, Const(value=n))) if n == 1 / count:
            return t
    return None
