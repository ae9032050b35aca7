"""Pooling: a reduction over the positions of a window, which may hang over the edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchweld.base.errors import LoweringError
from torchweld.ir.expr import ZERO, Expr, Int, as_expr
from torchweld.lower.builder import Builder
from torchweld.lower.dtypes import lowest
from torchweld.lower.reduce import read_as
from torchweld.lower.registry import lowering, reduction
from torchweld.lower.tensor import Idx, Tensor, row_major
from torchweld.lower.value import (
    Operand,
    Val,
    all_of,
    binary,
    constant,
    guarded,
    inside,
    isnan,
    maximum,
    minimum,
    position,
    where,
)

# windows that see one element, up to which a backward is generated
_MOST_WINDOWS = 16


def _spread(values: Sequence[int] | int, n: int, default: Sequence[int]) -> list[int]:
    """One number per dimension from one, n or no numbers."""
    given = [values] if isinstance(values, int) else list(values)
    if not given:
        return list(default)
    return given * n if len(given) == 1 else given


@dataclass(frozen=True, slots=True)
class Window:
    """Windows over the last dimensions of a tensor: at output o, tap k they see o*s - p + k*d."""

    source: Idx
    taps: tuple[int, ...]
    step: tuple[int, ...]
    pad: tuple[int, ...]
    gap: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.taps)

    def shape(self, out: Idx) -> Idx:
        """Output positions, then taps."""
        return out + tuple(as_expr(k) for k in self.taps)

    def at(self, idx: Idx) -> Idx:
        """The source index for an index of `shape`; may lie outside."""
        n = self.rank
        lead, outs, taps = idx[: -2 * n], idx[-2 * n : -n], idx[-n:]
        every = zip(outs, taps, self.step, self.pad, self.gap, strict=True)
        return lead + tuple(o * s - p + k * g for o, k, s, p, g in every)

    def fits(self, at: Idx) -> Val | None:
        n = self.rank
        return all_of([inside(e, size) for e, size in
                       zip(at[-n:], self.source[-n:], strict=True)])  # fmt: skip


def _window(x: Tensor, n: int, taps: Sequence[int] | int, step: Sequence[int] | int,
            pad: Sequence[int] | int, gap: Sequence[int] | int = 1) -> Window:  # fmt: skip
    k = _spread(taps, n, ())
    return Window(x.shape, tuple(k), tuple(_spread(step, n, k)), tuple(_spread(pad, n, [0] * n)),
                  tuple(_spread(gap, n, [1] * n)))  # fmt: skip


def _reduced(b: Builder, kind: str, w: Window, x: Tensor, outside: Operand) -> Tensor:
    """REDUCE of the taps inside of the source, in the compute type."""
    shape = w.shape(b.spec.shape)
    read = read_as(x, x.dtype)

    def body(idx: Idx) -> Val:
        at = w.at(idx)
        return guarded(w.fits(at), read(at), outside)

    dims = range(len(shape) - w.rank, len(shape))
    return b.reduce(kind, shape, dims, body, keepdim=False, spec=b.spec, part=kind)


def _max_pool(b: Builder, x: Tensor, n: int, taps: Sequence[int], step: Sequence[int],
              pad: Sequence[int], gap: Sequence[int]) -> Tensor:  # fmt: skip
    w = _window(x, n, taps, step, pad, gap)
    best = _reduced(b, "max", w, x, lowest(x.dtype.compute))
    return best if best.dtype is b.spec.dtype else b.emit(best.load)


@reduction("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool_with_indices(b: Builder, x: Tensor, kernel_size: Sequence[int],
                          stride: Sequence[int] = (), padding: Sequence[int] = (0,),
                          dilation: Sequence[int] = (1,),
                          ceil_mode: bool = False) -> tuple[Tensor, ...]:  # fmt: skip
    """The maximum of each window, and where in the source it is if anybody asks: the first of
    equal ones, but the last NaN."""
    n = len(kernel_size) if len(kernel_size) > 1 else 2
    best = _max_pool(b, x, n, kernel_size, stride, padding, dilation)
    if 1 not in b.used:
        return (best,)
    w = _window(x, n, kernel_size, stride, padding, dilation)
    if any(w.pad) or ceil_mode:
        raise LoweringError("W202", "positions of maxima in padded windows")
    shape = w.shape(b.spec.shape)
    read = read_as(x, x.dtype)
    dims = range(len(shape) - n, len(shape))
    tap = b.reduce("argmax", shape, dims, lambda idx: read(w.at(idx)), keepdim=False, part="tap")
    strides = row_major(x.shape[-n:])
    last = b.reduce("max", shape, dims, lambda idx: _tap_of_nan(read(w.at(idx)), idx[-n:], w.taps),
                    keepdim=False, part="last") if x.dtype.is_float else None  # fmt: skip

    def flat(idx: Idx) -> Val:
        rest = tap.load(idx)
        if last is not None:
            rest = where(last.load(idx) < 0, rest, last.load(idx))
        out = position(ZERO)
        for d in reversed(range(n)):
            k = _remainder(rest, w.taps[d])
            rest = _quotient(rest, w.taps[d])
            start = position(idx[d - n] * w.step[d] * strides[d])
            out = out + start + k * (w.gap[d] * strides[d].value)
        return out

    return best, b.emit(flat, b.specs[1], "indices")


def _tap_of_nan(v: Val, taps: Idx, sizes: Sequence[int]) -> Val:
    """The number of a tap in its window if its value is NaN, else -1."""
    number: Expr = ZERO
    for k, size in zip(taps, sizes, strict=True):
        number = number * size + k
    return where(isnan(v), position(number), -1)


def _remainder(x: Val, n: int) -> Val:
    return binary("mod", x, n)


def _quotient(x: Val, n: int) -> Val:
    return binary("floor_div", x, n)


@reduction("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(b: Builder, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
             padding: Sequence[int] = (0,), ceil_mode: bool = False,
             count_include_pad: bool = True,
             divisor_override: int | None = None) -> Tensor:  # fmt: skip
    """Window sums divided by a number, or by how many taps count."""
    n = len(kernel_size) if len(kernel_size) > 1 else _dimensions(b)
    w = _window(x, n, kernel_size, stride, padding)
    if not x.dtype.is_float:
        raise LoweringError("W203", f"average of {x.dtype.value}")
    total = _reduced(b, "sum", w, x, 0)
    taps = 1
    for k in w.taps:
        taps *= k
    simple = divisor_override or (taps if not any(w.pad) and not ceil_mode else None)

    def body(idx: Idx) -> Val:
        v = total.load(idx)
        if simple is not None:
            return v / simple
        return v / _counted(w, idx[-n:], count_include_pad).to(v.dtype)

    return b.emit(body)


def _windows_over(w: Window, here: Idx, outs: Idx) -> list[tuple[Idx, Val | None]]:
    """The windows that see a position of the source, first to last, and whether each is there.

    w: windows without gaps. Errors: LoweringError if they are many.
    """
    found: list[tuple[Idx, list[Val | None]]] = [((), [])]
    for e, size, k, s, p in zip(here, outs, w.taps, w.step, w.pad, strict=True):
        first, within = (e + p) // s, (e + p) % s
        one: list[tuple[Expr, list[Val | None]]] = []
        for back in reversed(range(-(-k // s))):
            o, tap = first - back, within + back * s
            one.append((o, [inside(o, size), inside(tap, as_expr(k))]))
        found = [((*at, o), [*a, *c]) for at, a in found for o, c in one]
    if len(found) > _MOST_WINDOWS:
        raise LoweringError("W202", f"{len(found)} windows see each element")
    return [(at, all_of(conditions)) for at, conditions in found]


def _summed(w: Window, grad: Tensor, idx: Idx, one: Callable[[Idx], Val]) -> Val:
    """The sum of what the windows give that see an element."""
    n, total = w.rank, None
    for at, there in _windows_over(w, idx[-n:], grad.shape[-n:]):
        given = guarded(there, one((*idx[:-n], *at)), 0)
        total = given if total is None else total + given
    assert total is not None
    return total


@lowering("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(b: Builder, grad_output: Tensor, x: Tensor, kernel_size: Sequence[int],
                      stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
                      count_include_pad: bool, divisor_override: int | None) -> Tensor:  # fmt: skip
    """Each element gathers its share of the gradients of the windows that see it."""
    w = _window(x, _dimensions(b), kernel_size, stride, padding)
    read = read_as(grad_output, grad_output.dtype)

    def share(at: Idx) -> Val:
        g = read(at)
        if divisor_override:
            return g / divisor_override
        return g / _counted(w, at[-w.rank :], count_include_pad).to(g.dtype)

    return b.emit(lambda idx: _summed(w, grad_output, idx, share))


def _dimensions(b: Builder) -> int:
    """How many dimensions the windows of the current node have, by its name."""
    return next(n for n in (1, 2, 3) if f"pool{n}d" in b.name)


def _counted(w: Window, outs: Idx, padded: bool) -> Val:
    """The number of taps at an output position that lie inside (of the padding, if `padded`)."""
    count: Val | None = None
    for o, size, k, s, p in zip(outs, w.source[-w.rank :], w.taps, w.step, w.pad, strict=True):
        margin = p if padded else 0
        first = maximum(position(o * s - p), -margin)
        last = minimum(position(o * s - p + k), position(size + margin))
        one = last - first
        count = one if count is None else count * one
    assert count is not None
    return count


@lowering("aten.im2col.default")
def im2col(b: Builder, x: Tensor, kernel_size: Sequence[int], dilation: Sequence[int],
           padding: Sequence[int], stride: Sequence[int]) -> Tensor:  # fmt: skip
    """[N, C, H, W] -> [N, C * taps, positions]; zeros outside."""
    w = _window(x, 2, kernel_size, stride, padding, dilation)
    kh, kw = w.taps
    across = (x.shape[-1] + 2 * w.pad[1] - w.gap[1] * (kw - 1) - 1) // w.step[1] + 1

    def body(idx: Idx) -> Val:
        *lead, row, at = idx
        c, tap = row // (kh * kw), row % (kh * kw)
        there = w.at((*lead, c, at // across, at % across, tap // kw, tap % kw))
        return guarded(w.fits(there), x.load(there), constant(0, x.dtype))

    return b.emit(body)


def _longest(size: Expr, parts: int) -> Expr:
    """How many elements the largest of nearly equal parts has; of a size that varies, at most."""
    if size % parts is ZERO:
        return size // parts
    if not isinstance(size, Int):
        return (size + parts - 1) // parts + 1
    m = size.n
    return as_expr(max(-(-((o + 1) * m) // parts) - (o * m) // parts for o in range(parts)))


@reduction("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default",
           "aten.adaptive_avg_pool1d.default")  # fmt: skip
def adaptive_avg_pool(b: Builder, x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Means over windows that split each dimension into `output_size` nearly equal parts."""
    n = len(output_size)
    if not x.dtype.is_float:
        raise LoweringError("W203", f"average of {x.dtype.value}")
    sizes = x.shape[-n:]
    outs = [e.value for e in b.spec.shape[-n:]]
    if 0 in outs:
        return b.emit(lambda idx: x.load((ZERO,) * len(x.shape)))
    lead = len(x.shape) - n

    def start(d: int, o: Expr) -> Expr:
        return (o * sizes[d]) // outs[d]

    def end(d: int, o: Expr) -> Expr:
        return ((o + 1) * sizes[d] + outs[d] - 1) // outs[d]

    longest = [_longest(m, k) for m, k in zip(sizes, outs, strict=True)]
    read = read_as(x, x.dtype)

    def body(idx: Idx) -> Val:
        taps = idx[-n:]
        at = [start(d, idx[lead + d]) + taps[d] for d in range(n)]
        fits = all_of([None if sizes[d] % outs[d] is ZERO
                       else position(at[d]) < position(end(d, idx[lead + d]))
                       for d in range(n)])  # fmt: skip
        return guarded(fits, read((*idx[:lead], *at)), 0)

    shape = b.spec.shape + tuple(longest)
    total = b.reduce("sum", shape, range(len(shape) - n, len(shape)), body, keepdim=False,
                     part="sum")  # fmt: skip

    def mean(idx: Idx) -> Val:
        v = total.load(idx)
        for d in range(n):
            o = idx[lead + d]
            v = v / position(end(d, o) - start(d, o)).to(v.dtype)
        return v

    return b.emit(mean)
