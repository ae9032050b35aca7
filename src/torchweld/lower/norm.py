"""Normalisations: layer, group, batch and root mean square."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, as_expr
from torchweld.lower.builder import Builder
from torchweld.lower.dtypes import representable
from torchweld.lower.reduce import Over, Read, moments, read_as
from torchweld.lower.registry import reduction
from torchweld.lower.tensor import Idx, Tensor, numel
from torchweld.lower.value import Val, constant, rsqrt
from torchweld.lower.views import in_order, reshaped


def _last(x: Tensor, count: int) -> Over:
    """A reduction over the last `count` dimensions that keeps them with size 1."""
    rank = len(x.shape)
    return Over(x.shape, frozenset(range(rank - count, rank)), True)


def _result(b: Builder, t: Tensor, k: int) -> Tensor:
    """`t` as the node's k-th result: reshaped, and copied only if layout or dtype differ."""
    spec = b.specs[k]
    t = reshaped(t, spec.shape)
    if t.whole and t.dtype is spec.dtype and t.buffer.strides == spec.strides:
        return t
    return b.emit(t.load, spec, f"result{k}")


def _affine(v: Val, idx: Idx, weight: Tensor | None, bias: Tensor | None) -> Val:
    """v * weight + bias, both optional, at `idx` of them."""
    if weight is not None:
        v = v * weight.load(idx).to(v.dtype)
    return v if bias is None else v + bias.load(idx).to(v.dtype)


def _spread(b: Builder, read: Read, o: Over, eps: float) -> tuple[Tensor, Tensor]:
    """Kept-dim mean and 1 / sqrt(variance + eps)."""
    center, squares = moments(b, read, o)
    scale = b.temp(lambda idx: rsqrt(squares.load(idx) / o.count + eps), squares, squares.dtype,
                   "rstd")  # fmt: skip
    return center, scale


@reduction("aten.native_layer_norm.default")
def layer_norm(b: Builder, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None,
               bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions; mean; 1 / std."""
    count = len(normalized_shape)
    o = _last(x, count)
    read = read_as(x, x.dtype)
    center, scale = _spread(b, read, o, eps)

    def body(idx: Idx) -> Val:
        row = o.row(idx)
        v = (read(idx) - center.load(row)) * scale.load(row)
        return _affine(v, idx[len(idx) - count :], weight, bias)

    return b.emit(body), _result(b, center, 1), _result(b, scale, 2)


@reduction("aten._fused_rms_norm.default")
def rms_norm(b: Builder, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None,
             eps: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x / sqrt(mean(x * x) + eps) * weight over the last dimensions; the reciprocal root."""
    count = len(normalized_shape)
    o = _last(x, count)
    read = read_as(x, x.dtype)
    epsilon = _EPSILON[x.dtype.compute] if eps is None else eps
    total = b.reduce("sum", x.shape, tuple(o.dims), lambda i: read(i) * read(i), part="squares")
    scale = b.temp(lambda i: rsqrt(total.load(i) / o.count + epsilon), total, total.dtype, "rstd")

    def body(idx: Idx) -> Val:
        return _affine(read(idx) * scale.load(o.row(idx)), idx[len(idx) - count :], weight, None)

    return b.emit(body), _result(b, scale, 1)


_EPSILON = {DType.F32: 1.1920928955078125e-07, DType.F64: 2.220446049250313e-16}


@reduction("aten.native_group_norm.default")
def group_norm(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int,
               HxW: int, group: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Layer norm over the channels of each group and all positions; weight, bias per channel."""
    each = C // group
    if C == 0:
        raise LoweringError("W202", "group norm without channels")
    grouped = reshaped(x, tuple(as_expr(n) for n in (N, group, each, HxW)))
    o = _last(grouped, 2)
    center, scale = _spread(b, read_as(grouped, x.dtype), o, eps)
    read = read_as(x, x.dtype)

    def body(idx: Idx) -> Val:
        row = (idx[0], idx[1] // each, ZERO, ZERO)
        return _affine((read(idx) - center.load(row)) * scale.load(row), idx[1:2], weight, bias)

    return b.emit(body), _result(b, center, 1), _result(b, scale, 2)


def _channels(x: Tensor) -> Over:
    """Every dimension but the channels (dimension 1)."""
    return Over(x.shape, frozenset(range(len(x.shape))) - {1}, False)


@reduction("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
                         running_mean: Tensor, running_var: Tensor, momentum: float,
                         eps: float) -> tuple[Tensor, ...]:  # fmt: skip
    """(x - running mean) / sqrt(running variance + eps) * weight + bias; two empty results."""
    read = read_as(x, x.dtype)
    compute = x.dtype.compute

    def of_channel(c: Idx) -> Val:
        f = rsqrt(running_var.load(c).to(compute) + eps)
        return f if weight is None else f * weight.load(c).to(compute)

    per_channel: Callable[[Idx], Val] = of_channel
    if b.spec.device == "cpu":
        # a nest of its own: the root is taken once per channel, not once per element; a GPU has
        # arithmetic to spare, and would need one kernel more
        per_channel = b.temp(of_channel, running_var, compute, "factor").load

    def body(idx: Idx) -> Val:
        c = idx[1:2]
        scaled = (read(idx) - running_mean.load(c).to(compute)) * per_channel(c)
        return _affine(scaled, c, None, bias)

    # a GPU says that it has statistics here, which nothing reads
    if any(k in b.used and numel(s.shape) for k, s in enumerate(b.specs) if k):
        raise LoweringError("W202", "batch norm statistics of an unknown shape")
    return (b.emit(body), *(b.emit(lambda c: running_mean.load(c[:1]), s, "unused")
                            for s in b.specs[1:3]))  # fmt: skip


@reduction("aten.native_batch_norm.default")
def native_batch_norm(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
                      running_mean: Tensor | None, running_var: Tensor | None, training: bool,
                      momentum: float, eps: float) -> tuple[Tensor, ...]:  # fmt: skip
    if training:
        raise LoweringError("W201", "batch norm that updates its statistics in place")
    if running_mean is None or running_var is None:
        raise LoweringError("W202", "batch norm without statistics")
    return batch_norm_inference(b, x, weight, bias, running_mean, running_var, momentum, eps)


@reduction("aten._native_batch_norm_legit.no_stats")
def batch_norm_own(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
                   training: bool, momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm by the batch's own statistics; their mean and 1 / std."""
    center, scale, _ = _batch_statistics(b, x, (weight, bias), eps)
    out = _batch_normal(b, x, weight, bias, center, scale)
    return out, _result(b, center, 1), _result(b, scale, 2)


@reduction("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
                          running_mean: Tensor, running_var: Tensor, training: bool,
                          momentum: float, eps: float) -> tuple[Tensor, ...]:  # fmt: skip
    """As `batch_norm_own`, and the updated running mean and (unbiased) variance."""
    old = running_mean, running_var
    if not training:
        first = batch_norm_inference(b, x, weight, bias, *old, momentum, eps)
        return (*first, b.emit(old[0].load, b.specs[3]), b.emit(old[1].load, b.specs[4]))
    return _training(b, x, weight, bias, old, momentum, eps, 3)


@reduction("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
                           running_mean: Tensor, running_var: Tensor, momentum: float,
                           eps: float) -> tuple[Tensor, ...]:  # fmt: skip
    """The same, with an empty fourth result that other devices use."""
    first = _training(b, x, weight, bias, (running_mean, running_var), momentum, eps, 4)
    if numel(b.specs[3].shape):
        raise LoweringError("W202", "batch norm with a reserve")
    reserve = b.emit(lambda idx: constant(0, b.specs[3].dtype), b.specs[3], "reserve")
    return (*first[:3], reserve, *first[3:])


def _training(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
              old: tuple[Tensor, Tensor], momentum: float, eps: float,
              k: int) -> tuple[Tensor, ...]:  # fmt: skip
    """Output, mean, 1 / std, and new running statistics (the node's results k and k + 1)."""
    center, scale, squares = _batch_statistics(b, x, (weight, bias, *old), eps)
    out = _batch_normal(b, x, weight, bias, center, scale)
    freedom = _channels(x).count - 1

    compute = x.dtype.compute
    narrow = center.dtype is DType.BF16 and _in_memory_order(x)
    kept = DType.BF16 if narrow else compute

    def rounded(v: Val) -> Val:
        return v.to(kept).to(compute)

    def moved(before: Tensor, idx: Idx, now: Val) -> Val:
        """Eager rounds the momentum and both products where it keeps the statistics in bf16."""
        new, rest = (representable(f, kept) for f in (momentum, 1 - momentum))
        return rounded(before.load(idx).to(compute) * rest) + rounded(now * new)

    def new_mean(idx: Idx) -> Val:
        return moved(old[0], idx, center.load(idx).to(compute))

    def new_var(idx: Idx) -> Val:
        return moved(old[1], idx, rounded(squares(idx) / freedom))

    return (out, _result(b, center, 1), _result(b, scale, 2),
            b.emit(new_mean, b.specs[k], "running_mean"),
            b.emit(new_var, b.specs[k + 1], "running_var"))  # fmt: skip


def _batch_statistics(b: Builder, x: Tensor, others: Sequence[Tensor | None],
                      eps: float) -> tuple[Tensor, Tensor, Read]:  # fmt: skip
    """Mean and 1 / std of each channel, in the dtype that eager returns them in, and the reader of
    the sum of squared distances, all of shape [C].

    Eager keeps the sum and what is divided from it in that dtype, which rounds them if it is
    narrow; its kernel for other layouts does not (bit for bit in bf16, torch 2.13), and kernels of
    GPUs never round them.
    Errors: LoweringError if torch predicts another dtype for a result that is used.
    """
    if len(x.shape) < 2:
        raise LoweringError("W202", "batch norm without channels")
    mixed = any(t is not None and t.dtype is not x.dtype for t in others)
    kept = x.dtype.compute if mixed or b.spec.device != "cpu" else x.dtype
    if any(k in b.used and b.specs[k].dtype is not kept for k in (1, 2)):
        raise LoweringError("W203", "statistics whose dtype torch predicts wrongly")
    o = _channels(x)
    mean, total = moments(b, read_as(x, x.dtype), o)
    compute, inner = total.dtype, kept if _in_memory_order(x) else total.dtype
    mean, squares = (reshaped(t, (x.shape[1],)) for t in (mean, total))

    def sum_of_squares(idx: Idx) -> Val:
        return squares.load(idx).to(inner).to(compute)

    def inverse(idx: Idx) -> Val:
        return rsqrt((sum_of_squares(idx) / o.count).to(inner).to(compute) + eps)

    return (b.temp(mean.load, squares, kept, "center"), b.temp(inverse, squares, kept, "rstd"),
            sum_of_squares)  # fmt: skip


def _batch_normal(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None,
                  center: Tensor, scale: Tensor) -> Tensor:  # fmt: skip
    """The output from the statistics as the node returns them, rounded as eager rounds it."""
    compute = x.dtype.compute
    step = compute if _in_memory_order(x) or center.dtype is compute else x.dtype

    def rounded(v: Val) -> Val:
        return v.to(step).to(compute)

    def body(idx: Idx) -> Val:
        c = idx[1:2]
        v = rounded(x.load(idx).to(compute) - center.load(c).to(compute))
        v = rounded(v * scale.load(c).to(compute))
        if weight is not None:
            v = rounded(v * weight.load(c).to(compute))
        return v if bias is None else v + bias.load(c).to(compute)

    return b.emit(body)


def _in_memory_order(x: Tensor) -> bool:
    """Whether `x` is contiguous, with its channels first or last."""
    rank = len(x.shape)
    last = (0, *range(2, rank), 1)
    return in_order(x, range(rank)) or (rank > 3 and in_order(x, last))
