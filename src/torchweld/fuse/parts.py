"""A reduction over parts of its row, and what combines the parts.

    sum, max, ...                    the same of the partial results
    argmax                           the first position among the parts whose maximum is the largest
    sum of exp(x - m)                each part from its own maximum, brought to the largest
    sum of (x - mean) ** 2           each part from its own mean (Chan, Golub and LeVeque 1979)
    scans                            what the parts add up to is scanned, then each part
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchweld.fuse.facts import Substitution, extent, points
from torchweld.fuse.target import Cut
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Expr, as_expr, rewrite
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Index,
    Load,
    Measured,
    Nest,
    Op,
    Reduce,
    Scalar,
    axis,
    const,
    contiguous,
)
from torchweld.ir.loop_eval import neutral

LAST = (1 << 63) - 1  # behind every position
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
Names = set[str]


@dataclass(frozen=True, slots=True)
class Parts:
    """The loops of a reduction, cut.

    outer: over the parts. inner: of one part. values: the old loops in terms of these. place: in
    the loop that was cut, whose size is `size`; None if every loop is whole.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    values: dict[Expr, Expr]
    place: Expr | None
    size: int

    @property
    def even(self) -> bool:
        """Whether all parts have the same length."""
        if self.place is None:
            return True
        return extent(self.outer[-1].size) * extent(self.inner[0].size) == self.size

    def of(self, body: Scalar, start: float | int | bool) -> Scalar:
        """`body` at a step of a part; `start` behind the end of the last one."""
        body = Substitution(self.values).scalar(body)
        if self.even or self.place is None:
            return body
        inside = _less(self.place, self.size)
        return Op.make("where", (inside, body, const(start, body.dtype)), body.dtype)

    def count(self, dtype: DType) -> Scalar:
        """How many values a part has."""
        whole = points(tuple(a.size for a in self.inner))
        if self.even:
            return const(whole, dtype)
        last = self.outer[-1]
        length, rest = extent(self.inner[0].size), extent(last.size) - 1
        least = (self.size - rest * length) * (whole // length)
        args = (_less(last.sym, rest), const(whole, dtype), const(least, dtype))
        return Op.make("where", args, dtype)


def parts_of(cut: Cut) -> Parts:
    """The loops of the parts that `cut` describes."""
    if cut.axis is None:
        return Parts(cut.kept, cut.rest, {}, None, 0)
    size = extent(cut.axis.size)
    part, within = axis("part", -(-size // cut.length)), axis("within", cut.length)
    place = part.sym * cut.length + within.sym
    outer, inner = (*cut.kept, part), (within, *cut.rest)
    return Parts(outer, inner, {cut.axis.sym: place}, place, size)


def fold(n: Nest, p: Parts, names: Names) -> tuple[Nest, Nest]:
    """The nest of the parts and the nest that combines them."""
    first = _partial(n, p, kind_of(n), p.of(n.body, _start(n)), names)
    return first, replace(n, body=result(first), reduce=Reduce(kind_of(n), p.outer))


def positions(n: Nest, p: Parts, names: Names) -> tuple[Nest, ...]:
    """The largest (or smallest) of each part and where it is; then of all, the first."""
    kind = kind_of(n).removeprefix("arg")
    body = p.of(n.body, neutral(kind, n.body.dtype))
    best = _partial(n, p, kind, body, names)
    where = _partial(n, p, kind_of(n), body, names, DType.I64)
    shape = tuple(a.size for a in n.axes)
    top = _temporary(n.out, "_best", n.body.dtype, shape, names)
    index = tuple(a.sym for a in n.axes)
    over = Nest(top, n.axes, index, result(best), Reduce(kind, p.outer), origins=n.origins)
    chosen = Op.make("eq", (result(best), Load.make(top, index)), DType.BOOL)
    if n.body.dtype.is_float:
        nan = Op.make("isnan", (result(best),), DType.BOOL)
        chosen = Op.make("or", (chosen, nan), DType.BOOL)
    at = Op.make("add", (Index.make(_start_of_part(n, p)), result(where)), DType.I64)
    first = Op.make("where", (chosen, at, const(LAST, DType.I64)), DType.I64)
    return best, where, over, replace(n, body=first, reduce=Reduce("min", p.outer))


def _start_of_part(n: Nest, p: Parts) -> Expr:
    """The position of a part's first value."""
    assert n.reduce is not None
    position: Expr = ZERO
    for a in n.reduce.axes:
        position = position * a.size + a.sym
    position = rewrite(position, p.values.get)
    first: dict[Expr, Expr] = {a.sym: ZERO for a in p.inner}
    return rewrite(position, first.get)


def exponentials(n: Nest, m: Measured, part: Nest, p: Parts, names: Names) -> tuple[Nest, Nest]:
    """Sums of exp(x - m) from the maxima of the parts. A part of -inf adds nothing."""
    sub = _Swap(m.other, result(part))
    first = _partial(n, p, "sum", p.of(sub.scalar(n.body), 0), names)
    dtype = n.body.dtype
    least = const(-math.inf, dtype)
    nothing = Op.make("eq", (result(part), least), DType.BOOL)
    something = Op.make("ne", (m.other, least), DType.BOOL)
    moved = Op.make("exp", (Op.make("sub", (sub.scalar(m.base), m.base), dtype),), dtype)
    terms = Op.make("and", (nothing, something), DType.BOOL), const(0, dtype)
    body = Op.make("where", (*terms, Op.make("mul", (result(first), moved), dtype)), dtype)
    return first, replace(n, body=body, reduce=Reduce("sum", p.outer))


def squares(n: Nest, m: Measured, part: Nest, p: Parts, names: Names) -> tuple[Nest, Nest]:
    """Sums of squared distances from the means of the parts, and those of these from the mean."""
    dtype = n.body.dtype
    count = p.count(dtype)
    mean = Op.make("div", (result(part), count), dtype)
    d = Op.make("sub", (p.of(m.value, 0), mean), dtype)
    body = Op.make("mul", (d, d), dtype)
    if not p.even and p.place is not None:
        inside = _less(p.place, p.size)
        body = Op.make("where", (inside, body, const(0, dtype)), dtype)
    first = _partial(n, p, "sum", body, names)
    far = Op.make("sub", (mean, m.base), dtype)
    moved = Op.make("mul", (far, Op.make("mul", (far, count), dtype)), dtype)
    body = Op.make("add", (result(first), moved), dtype)
    return first, replace(n, body=body, reduce=Reduce("sum", p.outer))


def scan(n: Nest, cut: Cut, names: Names) -> tuple[Nest, ...]:
    """What each part adds up to, the scan of these, and the parts; the last one may be shorter.

    What came before a part is put into its first value.
    """
    r = n.reduce
    assert r is not None and cut.axis is not None
    count, rest = divmod(extent(cut.axis.size), cut.length)
    whole = replace(cut, axis=Axis(cut.axis.sym, as_expr(count * cut.length)))
    p = parts_of(whole)
    (part,), (within,) = p.outer, p.inner
    kind = r.kind.removeprefix("scan_")
    total = _partial(n, p, kind, p.of(n.body, 0), names)
    until = _temporary(n.out, "_until", n.body.dtype, total.out.shape, names)
    starts = replace(n, out=until, index=total.index, body=result(total),
                     reduce=Reduce(r.kind, (part,)))  # fmt: skip
    place = part.sym * cut.length
    made = [total, starts, _after(n, cut.axis, within, place, until, part.sym - 1)]
    made[-1] = replace(made[-1], axes=(part, *n.axes))
    if rest:
        tail = axis("within", rest)
        start = as_expr(count * cut.length)
        made.append(_after(n, cut.axis, tail, start, until, as_expr(count - 1)))
    return tuple(made)


def _after(n: Nest, old: Axis, within: Axis, start: Expr, until: Buffer, before: Expr) -> Nest:
    """The scan `n` from `start` on, along `within`; `until[before]` is what came before."""
    assert n.reduce is not None
    values: dict[Expr, Expr] = {old.sym: start + within.sym}
    sub = Substitution(values)
    body = sub.scalar(n.body)
    zero = const(0, DType.I64)
    first = Op.make("eq", (Index.make(within.sym), zero), DType.BOOL)
    if not before.is_const:
        later = Op.make("ge", (Index.make(before), zero), DType.BOOL)
        first = Op.make("and", (first, later), DType.BOOL)
    known = Load.make(until, (before, *(a.sym for a in n.axes)))
    joined = Op.make(COMBINE[n.reduce.kind.removeprefix("scan_")], (known, body), body.dtype)
    body = Op.make("where", (first, joined, body), body.dtype)
    return replace(n, index=sub.index(n.index), body=body, reduce=Reduce(n.reduce.kind, (within,)))


# ---------------------------------------------------------------- pieces of the above


class _Swap(Substitution):
    """Replaces one load by a scalar."""

    __slots__ = ("_new", "_old")

    def __init__(self, old: Load, new: Scalar) -> None:
        super().__init__({})
        self._old, self._new = old, new

    def load(self, x: Load, index: tuple[Expr, ...]) -> Scalar:
        return self._new if x is self._old else Load.make(x.buffer, index)


def kind_of(n: Nest) -> str:
    assert n.reduce is not None
    return n.reduce.kind


def _start(n: Nest) -> float | int | bool:
    return neutral(kind_of(n), n.body.dtype)


def _less(e: Expr, n: int) -> Scalar:
    return Op.make("lt", (Index.make(e), const(n, DType.I64)), DType.BOOL)


def result(part: Nest) -> Load:
    """What a nest of the parts leaves for the nest that combines them."""
    return Load.make(part.out, part.index)


def _partial(n: Nest, p: Parts, kind: str, body: Scalar, names: Names,
             dtype: DType | None = None) -> Nest:  # fmt: skip
    axes = (*p.outer, *n.axes)
    shape = tuple(a.size for a in axes)
    out = _temporary(n.out, "_part", dtype or body.dtype, shape, names)
    return Nest(out, axes, tuple(a.sym for a in axes), body, Reduce(kind, p.inner),
                origins=n.origins)  # fmt: skip


def _temporary(out: Buffer, suffix: str, dtype: DType, shape: tuple[Expr, ...],
               names: Names) -> Buffer:  # fmt: skip
    name = fresh_name(out.name + suffix, names)
    return Buffer.make(name, dtype, shape, contiguous(shape), ZERO, "temp", out.device)


def fresh_name(name: str, names: Names) -> str:
    """`name`, lengthened if it is taken; taken from now on."""
    while name in names:
        name += "_"
    names.add(name)
    return name
