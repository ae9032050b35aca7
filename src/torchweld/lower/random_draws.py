"""Random operators of CUDA tensors as loop nests that give eager's own numbers.

All numbers of a call come from one place: an Extern in front takes as many words of the device's
generator as eager would, and every operator has its part of them. So either every random operator
of a graph becomes a nest, or none does.

Element e of an operator over n elements, on a device whose kernels have T threads (T <= n rounded
up to 256) that take u numbers at a time, has number (e // T) % u of block e // (T * u) of the
subsequence e % T. Dropout works on vectors of v elements instead: number e % v, counted from block
e // (T * v) * ceil(v / 4) of the subsequence (e // v) % T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from torchweld.base.errors import LoweringError
from torchweld.base.events import emit
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr
from torchweld.ir.loop import (
    Buffer,
    Extern,
    Load,
    LoopGraph,
    Nest,
    Node,
    Op,
    View,
    axis,
    reads,
    views_of,
    writes,
)
from torchweld.ir.loop_eval import Point
from torchweld.ir.philox import DRAW, WORDS
from torchweld.lower.builder import axes_of
from torchweld.lower.dtypes import representable
from torchweld.lower.random_device import SEED, Mapping, mapping, threads_of
from torchweld.lower.tensor import Idx, numel, row_major, void
from torchweld.lower.value import Val, constant, equal, log, position, sqrt, unary, where

FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
# A nest computes a block for each of its numbers, eager's kernel once for four. On an H200 2**24
# numbers take 56 us instead of 31, and normal ones 81 instead of 42; few cost less than a launch.
MOST_FILLED = 1 << 22
VECTOR_BYTES = 16  # dropout reads vectors of at most so many
_OWN = frozenset({"aten", "prims"})  # what others' operators draw nobody knows
_2_PI = 6.2831854820251465  # in f32


@dataclass(frozen=True, slots=True)
class State:
    """What numbers are made from. first: the operator's first block, behind that of the call."""

    seed: Buffer
    block: Buffer
    first: int

    def word(self, block: Expr, subsequence: Expr, which: Expr | int) -> Val:
        """32 random bits, as i64."""
        at, ahead = Val(Load.make(self.block, ())), block + self.first
        at = at if ahead is ZERO else at + position(ahead)
        args = (Load.make(self.seed, ()), at.s, position(subsequence).s, position(which).s)
        return Val(Op.make("philox", args, DType.I64))


@dataclass(frozen=True, slots=True)
class Draw:
    """One operator: how many words it takes, and the nests that it becomes."""

    words: int
    nests: Callable[[State], list[Nest]]


# ---------------------------------------------------------------- numbers
def uniform(s: State, m: Mapping, e: Expr) -> Val:
    """Element `e` of a draw of numbers in (0, 1]: f32, or f64 where the mapping takes two."""
    block, subsequence, number = _place(m, e)
    if m.unroll == WORDS:
        return _unit(s.word(block, subsequence, number))
    return _wide_unit(*(s.word(block, subsequence, number * 2 + k) for k in (0, 1)))


def normal(s: State, m: Mapping, e: Expr) -> Val:
    """Element `e` of a draw of normal numbers, by Box and Muller: sines first, then cosines."""
    block, subsequence, number = _place(m, e)
    words = [s.word(block, subsequence, number // 2 * 2 + k) for k in (0, 1)]
    if m.unroll == WORDS:
        radius = sqrt(log(_unit(words[0])) * -2.0)
        turn = constant(_2_PI * 2.0**-32, DType.F32), constant(_2_PI * 2.0**-33, DType.F32)
        angle = _fma(words[1].to(DType.F32), *turn)
        sine, cosine = unary("fast_sin", angle), unary("fast_cos", angle)
    else:
        words = [s.word(block, subsequence, k) for k in range(WORDS)]
        radius = sqrt(log(_wide_unit(*words[:2])) * -2.0)
        half = _joined(*words[2:]).to(DType.F64) * 2.0**-52 + 2.0**-53
        sine, cosine = unary("sinpi", half), unary("cospi", half)
    return _first_of_two(number, sine, cosine) * radius


def _first_of_two(number: Expr, first: Val, second: Val) -> Val:
    half = number % 2
    if half.is_const:
        return second if half.value else first
    return where(equal(position(half), 0), first, second)


def _place(m: Mapping, e: Expr) -> tuple[Expr, Expr, Expr]:
    """The block, subsequence and number of an element."""
    turn = e // m.threads
    return turn // m.unroll, e % m.threads, turn % m.unroll


def _unit(word: Val) -> Val:
    return word.to(DType.F32) * 2.0**-32 + 2.0**-33


def _wide_unit(low: Val, high: Val) -> Val:
    return _joined(low, high).to(DType.F64) * 2.0**-53 + 2.0**-54


def _joined(low: Val, high: Val) -> Val:
    """53 random bits of two words."""
    shifted = Op.make("shl", (high.s, constant(21, DType.I64).s), DType.I64)
    return Val(Op.make("bit_xor", (low.s, shifted), DType.I64))


def _fma(a: Val, b: Val, c: Val) -> Val:
    return Val(Op.make("fma", (a.s, b.s, c.s), a.dtype))


# ---------------------------------------------------------------- operators
def _filled(n: Extern, most: int, value: Callable[[State, Mapping, Expr], Val]) -> Draw:
    """A draw for every element of the one result."""
    (out,) = n.outs
    if not _contiguous(out.shape, out.strides):
        raise LoweringError("W202", "random numbers in another order than that of memory")
    count = _count(out.shape)
    if count == 0:
        return Draw(0, lambda s: [_nest(n, out, lambda e: constant(0, out.dtype))])
    if count > MOST_FILLED:
        raise LoweringError("W202", f"{count} random numbers of one operator: ATen is faster")
    m = mapping(count, most, 2 if out.dtype is DType.F64 else WORDS)
    return Draw(m.words, lambda s: [_nest(n, out, lambda e: value(s, m, e))])


def _nest(n: Extern, out: Buffer, value: Callable[[Expr], Val]) -> Nest:
    axes, idx = axes_of(out.shape)
    return Nest(out, axes, idx, value(_flat(out.shape, idx)).to(out.dtype).s, None, "set",
                n.origins)  # fmt: skip


def _flat(shape: Idx, idx: Idx) -> Expr:
    total: Expr = ZERO
    for i, step in zip(idx, row_major(shape), strict=True):
        total = total + i * step
    return total


def _uniform(n: Extern, most: int, low: float, high: float) -> Draw:
    dtype = n.outs[0].dtype
    _is_float(dtype)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise LoweringError("W202", f"uniform numbers from {low} to {high}")
    near, far = (representable(x, dtype) for x in (low, high))
    reach = representable(far - near, dtype)

    def value(s: State, m: Mapping, e: Expr) -> Val:
        u = uniform(s, m, e)
        scaled = _fma(u, constant(reach, u.dtype), constant(near, u.dtype)).to(dtype)
        return where(equal(scaled, far), near, scaled)

    return _filled(n, most, value)


def _normal(n: Extern, most: int, mean: float, std: float) -> Draw:
    _is_float(n.outs[0].dtype)
    if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
        raise LoweringError("W202", f"normal numbers of mean {mean} and deviation {std}")

    def value(s: State, m: Mapping, e: Expr) -> Val:
        x = normal(s, m, e)
        return _fma(x, constant(std, x.dtype), constant(mean, x.dtype))

    return _filled(n, most, value)


def _bernoulli(n: Extern, most: int, p: float) -> Draw:
    if not n.outs[0].dtype.computed or not 0 <= p <= 1:
        raise LoweringError("W202", f"bernoulli of {n.outs[0].dtype.value} with p = {p}")
    return _filled(n, most, lambda s, m, e: uniform(s, m, e) < p)


def _dropout(n: Extern, most: int, p: float, inputs_stay: bool) -> Draw:
    """Zeros with probability `p`, the rest scaled by 1 / (1 - p); and where it is not zeros."""
    x, (out, kept) = n.args[0], n.outs
    _is_float(out.dtype)
    if not isinstance(x, View) or not all(
        _contiguous(v.shape, v.strides) for v in (x, out, kept)
    ):
        raise LoweringError("W202", "dropout on memory that is not contiguous")
    count = _count(x.shape)
    if not 0 < count * x.buffer.dtype.bytes < 1 << 31:
        raise LoweringError("W202", f"dropout of {count} elements")
    v = _vector(x, count, inputs_stay)
    m = mapping(count, most, WORDS)
    keep, scale = _shares(p, out.dtype.compute)

    def kept_at(s: State, e: Expr) -> Val:
        u = uniform(s, m, e) if v == 1 else _unit(_in_vectors(s, m, v, e))
        return u.to(out.dtype.compute) < keep

    def scaled(s: State, e: Expr) -> Val:
        read = Val(Load.make(x.buffer, _index_at(x, e))).to(out.dtype.compute)
        return read * kept_at(s, e).to(read.dtype) * scale

    return Draw(m.words, lambda s: [_nest(n, out, lambda e: scaled(s, e)),
                                    _nest(n, kept, lambda e: kept_at(s, e))])  # fmt: skip


def _in_vectors(s: State, m: Mapping, v: int, e: Expr) -> Val:
    blocks = -(-v // WORDS)
    block = e // (m.threads * v) * blocks + e % v // WORDS
    return s.word(block, e // v % m.threads, e % v % WORDS)


def _vector(x: View, count: int, inputs_stay: bool) -> int:
    """How many elements eager's dropout takes at a time, which its address decides.

    What an operator made starts at a multiple of 16. Unless inputs_stay, it may in eager be an
    input that was written in place. Errors: LoweringError W202 for an address that is not known.
    """
    item = x.buffer.dtype.bytes
    v = VECTOR_BYTES // item
    while count % v:
        v //= 2
    known = x.buffer.role == "temp" and inputs_stay and x.offset.is_const
    if v > 1 and not (known and x.offset.value * item % VECTOR_BYTES == 0):
        raise LoweringError("W202", "dropout of a tensor whose address is not known")
    return v


def _shares(p: float, dtype: DType) -> tuple[float, float]:
    """The share that is kept, and one over it, as eager's kernel has them."""
    keep = float(representable(1.0 - p, dtype))
    return keep, float(representable(1.0 / keep, dtype))


def _index_at(x: View, e: Expr) -> Idx:
    """The index in a row-major buffer of element `e` of a contiguous view."""
    b = x.buffer
    if not _contiguous(b.shape, b.strides):
        raise LoweringError("W202", "dropout of a part of memory that is not contiguous")
    flat = e + (x.offset - b.offset)
    index: list[Expr] = []
    for n, step in zip(b.shape, row_major(b.shape), strict=True):
        index.append(ZERO if n is ONE else flat // step % n)
    return tuple(index)


def _is_float(dtype: DType) -> None:
    if dtype not in FLOATS:
        raise LoweringError("W202", f"random numbers of {dtype.value}")


def _count(shape: Idx) -> int:
    """How many numbers there are. Errors: LoweringError W204 if that is symbolic: which thread of
    eager's kernel has which number depends on it."""
    if not all(n.is_const for n in shape):
        raise LoweringError("W204", f"random numbers of the shape {list(shape)}")
    return numel(shape)


def _contiguous(shape: Idx, strides: Idx) -> bool:
    return void(shape) or all(
        n is ONE or a is b for n, a, b in zip(shape, strides, row_major(shape), strict=True)
    )


# operator -> its numbers: the arguments' places with their defaults
_UNIFORM: dict[str, tuple[tuple[int, float], ...]] = {
    "aten.rand.default": (), "aten.rand_like.default": (),
    "aten.uniform.default": ((1, 0.0), (2, 1.0)),
}  # fmt: skip
_NORMAL: dict[str, tuple[tuple[int, float], ...]] = {
    "aten.randn.default": (), "aten.randn_like.default": (),
    "aten.normal_functional.default": ((1, 0.0), (2, 1.0)),
}  # fmt: skip
_BERNOULLI, _DROPOUT = "aten.bernoulli.p", "aten.native_dropout.default"


def _numbers(n: Extern, places: tuple[tuple[int, float], ...]) -> list[float]:
    return [_number(n.args[at]) if at < len(n.args) else default for at, default in places]


def _number(a: object) -> float:
    if isinstance(a, int | float):
        return float(a)
    raise LoweringError("W202", "a random operator whose numbers are not constant")


def recognised(n: Extern, most: int, inputs_stay: bool) -> Draw:
    """The operator as nests. Errors: LoweringError W202 if eager's numbers are not known."""
    if any(k == "generator" and v is not None for k, v in n.kwargs):
        raise LoweringError("W202", f"{n.op} with a generator of its own")
    if n.op in _UNIFORM:
        low, high = _numbers(n, _UNIFORM[n.op]) or (0.0, 1.0)
        return _uniform(n, most, low, high)
    if n.op in _NORMAL:
        mean, std = _numbers(n, _NORMAL[n.op]) or (0.0, 1.0)
        return _normal(n, most, mean, std)
    if n.op == _BERNOULLI:
        return _bernoulli(n, most, *_numbers(n, ((1, 0.5),)))
    if n.op == _DROPOUT:
        return _dropout(n, most, _number(n.args[1]), inputs_stay)
    raise LoweringError("W202", f"{n.op} has no numbers of its own")


# ---------------------------------------------------------------- the graph
def draw_in_nests(g: LoopGraph) -> LoopGraph:
    """`g` with its random operators on a CUDA device as nests, if all of them can be."""
    drawing = [n for n in g.nodes if isinstance(n, Extern) and _draws(n)]
    if not drawing:
        return g
    try:
        return _drawn(g, drawing)
    except LoweringError as error:
        emit("loop", "extern", f"random operators run in ATen: {error.why}", code=error.code,
             why=error.why)  # fmt: skip
        return g


def _drawn(g: LoopGraph, drawing: Sequence[Extern]) -> LoopGraph:
    devices = {b.device for n in drawing for b in _touched(n) if b.device != "cpu"}
    if len(devices) != 1:
        raise LoweringError("W202", f"random numbers of {sorted(devices)}")
    (device,) = devices
    most = threads_of(device, predicted)
    inputs_stay = not any(writes(n) & set(g.inputs) for n in g.nodes)
    names = {b.name for n in g.nodes for b in reads(n) | writes(n)} | {b.name for b in g.inputs}
    seed, block = (_number_buffer(_fresh(name, names)) for name in ("seed", "block"))
    nodes: list[Node] = []
    words = 0
    chosen = {id(n) for n in drawing}
    for n in g.nodes:
        if id(n) not in chosen or not isinstance(n, Extern):
            nodes.append(n)
            continue
        draw = recognised(n, most, inputs_stay)
        nodes += draw.nests(State(seed, block, words // WORDS))
        words += draw.words
    first = Extern((seed, block), DRAW, (device, words), (), (), drawing[0].origins)
    return replace(g, nodes=(first, *nodes))


def _number_buffer(name: str) -> Buffer:
    return Buffer.make(name, DType.I64, (), (), ZERO, "temp", "cpu")


def _fresh(name: str, taken: set[str]) -> str:
    found, k = name, 0
    while found in taken:
        k += 1
        found = f"{name}_{k}"
    return found


def _touched(n: Extern) -> set[Buffer]:
    return {*n.outs, *(v.buffer for v in views_of((*n.args, *(v for _, v in n.kwargs))))}


def _draws(n: Extern) -> bool:
    """Whether a call may take numbers from a CUDA device's generator."""
    if all(b.device == "cpu" for b in _touched(n)):
        return False
    space, name, overload = n.op.split(".")
    if space not in _OWN:
        return True
    op = getattr(getattr(getattr(torch.ops, space), name), overload)
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    if n.op == _DROPOUT:
        return n.args[1] != 1 and (len(n.args) < 3 or n.args[2] is not False)
    given = dict(n.kwargs)
    for at, a in enumerate(op._schema.arguments):
        if a.name == "dropout_p":
            return (n.args[at] if at < len(n.args) else given.get(a.name, a.default_value)) != 0
    return True


# ---------------------------------------------------------------- for the test of a device
def predicted(dtype: torch.dtype, is_normal: bool, n: int, most: int, offset: int,
              elements: Sequence[int]) -> list[float]:  # fmt: skip
    """What eager should give at some elements of a draw: the nests' own scalars, evaluated."""
    m = mapping(n, most, 2 if dtype is torch.float64 else WORDS)
    state = State(_number_buffer("seed"), _number_buffer("block"), 0)
    memory = {state.seed: SEED - (1 << 64), state.block: offset // WORDS}
    kind = DType.F64 if dtype is torch.float64 else DType.F32
    at = axis("e", n)
    x = normal(state, m, at.sym) if is_normal else uniform(state, m, at.sym)
    if not is_normal:  # [0, 1)
        x = where(equal(x, 1.0), 0.0, x)
    body = x.to(kind).s
    return [float(Point({at.sym: e}, lambda b, i: memory[b]).scalar(body)) for e in elements]
