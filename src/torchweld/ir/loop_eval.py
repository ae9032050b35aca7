"""Slow reference interpreter of LoopGraph: what every pass must preserve.

    evaluate(g, inputs)    inputs: one flat list of numbers per input *storage*, in order;
                           answers one flat row-major list per output (None for None)

Every operation is rounded exactly to its dtype. `where` evaluates only the branch that it takes, a
failing check raises its exception, and what a correct graph never does (reading memory that
nothing wrote, an index outside of a shape) raises InternalError. A graph that writes an input
changes the caller's list, as the compiled call would change the caller's tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind
from torchweld.ir.expr import evaluate as expr_value
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Const,
    Extern,
    ExternArg,
    Index,
    Load,
    LoopGraph,
    Nest,
    Op,
    Reduce,
    Scalar,
    View,
)
from torchweld.ir.op_value import op_value
from torchweld.ir.rounding import Number, convert

Reader: TypeAlias = Callable[[Buffer, tuple[int, ...]], Number]
Sizes: TypeAlias = Mapping[Expr, int]


@dataclass(slots=True)
class Tensor:
    """A tensor argument of an extern: flat row-major `values`; an extern may change them."""

    dtype: DType
    shape: tuple[int, ...]
    values: list[Number]


Externs: TypeAlias = Mapping[str, Callable[..., object]]


class Point(dict[Expr, int]):
    """The loop indices at one point; also evaluates the scalars of that point, each once."""

    def __init__(self, values: Mapping[Expr, int], read: Reader) -> None:
        super().__init__(values)
        self._read = read
        self._known: dict[Scalar, Number] = {}

    def __missing__(self, atom: Expr) -> int:
        if not isinstance(atom, Ind):
            raise InternalError(f"index {atom.text()} is not in scope")
        assert isinstance(atom.scalar, Scalar)
        i = self.scalar(atom.scalar)
        if not atom.smin <= i <= atom.smax:
            raise InternalError(f"{atom.text()} is {i}, outside of {atom.smin}..{atom.smax}")
        return int(i)

    def index(self, index: tuple[Expr, ...]) -> tuple[int, ...]:
        return tuple(expr_value(e, self) for e in index)

    def scalar(self, x: Scalar) -> Number:
        """The value of `x` at this point."""
        if x in self._known:
            return self._known[x]
        out: Number
        match x:
            case Op(name="where"):
                out = self.scalar(x.args[1 if self.scalar(x.args[0]) else 2])
            case Op():
                out = op_value(x.name, [self.scalar(a) for a in x.args], x.dtype)
            case Load():
                out = self._read(x.buffer, self.index(x.index))
            case Const():
                out = convert(x.value, x.dtype)
            case Index():
                out = expr_value(x.expr, self)
            case _:
                raise InternalError(f"unknown scalar {type(x).__name__}")
        self._known[x] = out
        return out


def points(axes: Sequence[Axis], sizes: Sizes) -> Iterator[dict[Expr, int]]:
    """All points of the axes, row-major, each together with the sizes."""
    names: list[Expr] = [a.sym for a in axes]
    for values in itertools.product(*(range(expr_value(a.size, sizes)) for a in axes)):
        yield {**sizes, **dict(zip(names, values, strict=True))}


# kind or mode -> the scalar operator that combines, and the neutral element by dtype
_COMBINE = {
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and",
    "add": "add", "mul": "mul",
}  # fmt: skip


def neutral(kind: str, dtype: DType) -> Number:
    """What an empty reduction gives."""
    if kind in ("sum", "prod"):
        return convert(int(kind == "prod"), dtype)
    if kind in ("any", "all"):
        return kind == "all"
    if dtype is DType.BOOL:
        return kind == "min"
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    least = 0 if dtype is DType.U8 else -(1 << (8 * dtype.bytes - 1))
    return least if kind == "max" else least + (1 << (8 * dtype.bytes)) - 1


def combine(kind: str, a: Number, b: Number, dtype: DType) -> Number:
    """One step of a reduction or of a store mode."""
    return op_value(_COMBINE[kind], (a, b), dtype)


class Accumulator:
    """The running state of one reduction: `step` takes a value, `result` is the answer so far."""

    def __init__(self, reduce: Reduce, dtype: DType) -> None:
        kind = reduce.kind.removeprefix("scan_")
        self._arg = kind.startswith("arg")
        self._kind = kind.removeprefix("arg")
        self._dtype = dtype
        self._best: Number = neutral(self._kind, dtype)
        self._at: int | None = None

    def step(self, x: Number, position: int) -> None:
        if not self._arg:
            self._best = combine(self._kind, self._best, x, self._dtype)
        elif self._at is None or self._wins(x, position):
            self._best, self._at = x, position

    def _wins(self, x: Number, position: int) -> bool:
        assert self._at is not None
        now_nan, new_nan = self._best != self._best, x != x
        if now_nan or new_nan:
            return new_nan and (not now_nan or position < self._at)
        better = x > self._best if self._kind == "max" else x < self._best
        return better or (x == self._best and position < self._at)

    @property
    def result(self) -> Number:
        return (self._at or 0) if self._arg else self._best


class Storage:
    """The elements of one buffer's memory; None where nothing was written."""

    def __init__(self, buffer: Buffer, sizes: Sizes, given: Sequence[Number] | None = None) -> None:
        self.buffer = buffer
        self.shape = tuple(expr_value(n, sizes) for n in buffer.shape)
        self.strides = tuple(expr_value(n, sizes) for n in buffer.strides)
        self.offset = expr_value(buffer.offset, sizes)
        self.data: list[Number | None]
        if given is None:
            self.data = [None] * self.extent
        elif buffer.dtype.computed:
            self.data = [convert(v, buffer.dtype) for v in given]
        else:
            self.data = list(given)

    @property
    def extent(self) -> int:
        """How many elements the storage needs at least."""
        if 0 in self.shape:
            return 0
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s > 0)
        return self.offset + reach + 1

    def position(self, index: tuple[int, ...]) -> int:
        inside = len(index) == len(self.shape)
        if not inside or any(not 0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            shown = f"{self.buffer.name}{list(index)}"
            raise InternalError(f"{shown} is outside of the shape {list(self.shape)}")
        return self.offset + sum(i * s for i, s in zip(index, self.strides, strict=True))

    def get(self, position: int) -> Number:
        if not 0 <= position < len(self.data):
            size = len(self.data)
            raise InternalError(f"{self.buffer.name} has {size} elements, not one at {position}")
        value = self.data[position]
        if value is None:
            raise InternalError(f"{self.buffer.name} is read at {position} before it is written")
        return value

    def put(self, position: int, value: Number) -> None:
        if not 0 <= position < len(self.data):
            size = len(self.data)
            raise InternalError(f"{self.buffer.name} has {size} elements, not one at {position}")
        self.data[position] = value


class Memory:
    """The buffers of one evaluation."""

    def __init__(self, g: LoopGraph, inputs: Sequence[Sequence[Number]], sizes: Sizes) -> None:
        if len(inputs) != len(g.inputs):
            raise InternalError(f"{len(inputs)} inputs for {len(g.inputs)} input buffers")
        self.sizes = sizes
        self.written: set[Buffer] = set()
        self.buffers = {
            b: Storage(b, sizes, given) for b, given in zip(g.inputs, inputs, strict=True)
        }

    def storage(self, b: Buffer) -> Storage:
        if b not in self.buffers:
            self.buffers[b] = Storage(b, self.sizes)
        return self.buffers[b]

    def read(self, b: Buffer, index: tuple[int, ...]) -> Number:
        s = self.storage(b)
        return s.get(s.position(index))

    def write(self, b: Buffer, index: tuple[int, ...], value: Number) -> None:
        self.written.add(b)
        s = self.storage(b)
        s.put(s.position(index), value)

    def view(self, v: View) -> Tensor:
        """The elements that a view shows, row-major."""
        shape, places = self._places(v)
        s = self.storage(v.buffer)
        return Tensor(v.buffer.dtype, shape, [s.get(p) for p in places])

    def fill(self, v: View, values: Sequence[Number]) -> None:
        """Write the elements that a view shows."""
        _, places = self._places(v)
        s = self.storage(v.buffer)
        self.written.add(v.buffer)
        for p, value in zip(places, values, strict=True):
            s.put(p, value)

    def _places(self, v: View) -> tuple[tuple[int, ...], list[int]]:
        shape = tuple(expr_value(n, self.sizes) for n in v.shape)
        strides = tuple(expr_value(n, self.sizes) for n in v.strides)
        start = expr_value(v.offset, self.sizes)
        rows = itertools.product(*map(range, shape))
        places = [start + sum(i * s for i, s in zip(r, strides, strict=True)) for r in rows]
        return shape, places

    def give_back(self, g: LoopGraph, inputs: Sequence[Sequence[Number]]) -> None:
        """Copy what was written to inputs into the caller's lists."""
        for b, given in zip(g.inputs, inputs, strict=True):
            if b in self.written:
                assert isinstance(given, MutableSequence)
                given[:] = self.buffers[b].data


def run_nest(n: Nest, memory: Memory) -> None:
    """Execute one nest, its points in row-major order."""
    for at in points(n.axes, memory.sizes):
        if n.reduce is None:
            point = Point(at, memory.read)
            store(n, point, point.scalar(n.body), memory)
            continue
        state = Accumulator(n.reduce, n.body.dtype)
        for position, inner in enumerate(points(n.reduce.axes, memory.sizes)):
            point = Point({**at, **inner}, memory.read)
            state.step(point.scalar(n.body), position)
            if n.reduce.is_scan:
                store(n, point, state.result, memory)
        if not n.reduce.is_scan:
            store(n, Point(at, memory.read), state.result, memory)


def store(n: Nest, point: Point, value: Number, memory: Memory) -> None:
    """Write one element, combined with what is there if the nest's mode says so."""
    index = point.index(n.index)
    if n.mode != "set":
        value = combine(n.mode, memory.read(n.out, index), value, n.out.dtype)
    memory.write(n.out, index, value)


def run_extern(n: Extern, memory: Memory, externs: Externs) -> None:
    """Call the table's function for an extern.

    It gets Tensor, Torch, numbers, strings, None and lists, and answers one flat list per result
    (the bare list for one result, None for none). Changes to `values` of a tensor that the node
    writes are stored.
    """
    if n.op not in externs:
        raise InternalError(f"no meaning was given for the extern {n.op}")
    passed: list[tuple[View, Tensor]] = []

    def value(a: ExternArg) -> object:
        if isinstance(a, View):
            tensor = memory.view(a)
            passed.append((a, tensor))
            return tensor
        if isinstance(a, tuple):
            return [value(x) for x in a]
        return expr_value(a, memory.sizes) if isinstance(a, Expr) else a

    args = [value(a) for a in n.args]
    out = externs[n.op](*args, **{k: value(a) for k, a in n.kwargs})
    results = () if not n.outs else (out,) if len(n.outs) == 1 else out
    assert isinstance(results, tuple | list)
    for b, values in zip(n.outs, results, strict=True):
        whole = View(b, b.shape, b.strides, b.offset)
        memory.fill(whole, [convert(v, b.dtype) if b.dtype.computed else v for v in values])
    for v, tensor in passed:
        if v.buffer in n.writes:
            memory.fill(v, [convert(x, tensor.dtype) for x in tensor.values])


def evaluate(
    g: LoopGraph,
    inputs: Sequence[Sequence[Number]],
    externs: Externs | None = None,
    sizes: Sizes | None = None,
) -> list[list[Number] | None]:
    """The outputs of `g`, each flat in row-major order. `sizes`: values of the symbolic sizes."""
    memory = Memory(g, inputs, sizes or {})
    for n in g.nodes:
        if isinstance(n, Nest):
            run_nest(n, memory)
        else:
            run_extern(n, memory, externs or {})
    memory.give_back(g, inputs)
    return [None if v is None else memory.view(v).values for v in g.outputs]


def nested(values: Sequence[Number], shape: Sequence[int]) -> object:
    """A flat row-major list as nested lists, the way `Tensor.tolist` shows it."""
    if not shape:
        return values[0]
    step = math.prod(shape[1:])
    return [nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
