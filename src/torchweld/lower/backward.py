"""Backwards of softmax and of normalisations: sums along rows, and of columns."""

from __future__ import annotations

from collections.abc import Sequence

from torchweld.base.errors import LoweringError
from torchweld.ir.expr import as_expr
from torchweld.lower.builder import Builder
from torchweld.lower.reduce import Over, Read, over, read_as
from torchweld.lower.registry import reduction
from torchweld.lower.tensor import Idx, Spec, Tensor, elements
from torchweld.lower.value import Val, exp
from torchweld.lower.views import reshaped

Results = tuple[Tensor | None, ...]


@reduction("aten._softmax_backward_data.default")
def softmax_backward(b: Builder, grad_output: Tensor, output: Tensor, dim: int,
                     input_dtype: object = None) -> Tensor:  # fmt: skip
    """(g - sum(g * y)) * y, along `dim`."""
    o = over(output, dim)
    g, y = read_as(grad_output, output.dtype), read_as(output, output.dtype)
    total = b.reduce("sum", o.shape, tuple(o.dims), lambda i: g(i) * y(i), part="sum")
    return b.emit(lambda i: (g(i) - total.load(o.row(i))) * y(i))


@reduction("aten._log_softmax_backward_data.default")
def log_softmax_backward(b: Builder, grad_output: Tensor, output: Tensor, dim: int,
                         input_dtype: object = None) -> Tensor:  # fmt: skip
    """g - exp(y) * sum(g), along `dim`."""
    o = over(output, dim)
    g, y = read_as(grad_output, output.dtype), read_as(output, output.dtype)
    total = b.reduce("sum", o.shape, tuple(o.dims), g, part="sum")
    return b.emit(lambda i: g(i) - exp(y(i)) * total.load(o.row(i)))


class _Masked:
    """The results of a backward that computes only some of them: the others are None."""

    def __init__(self, b: Builder, mask: Sequence[bool]) -> None:
        self._b = b
        every = len(b.specs) == len(mask)  # torch predicts what nobody asks for, of batch norm
        specs = iter(b.specs)
        self.specs = [next(specs) if wanted or every else None for wanted in mask]

    def emit(self, k: int, body: Read, part: str) -> Tensor | None:
        spec = self.specs[k]
        return None if spec is None else self._b.emit(body, spec, part)

    def sums(self, k: int, shape: Idx, dims: Sequence[int], body: Read, part: str) -> Tensor | None:
        """The sum of `body` over `dims` as the k-th result."""
        spec = self.specs[k]
        if spec is None:
            return None
        total = self._b.reduce("sum", shape, dims, body, keepdim=False, part=part)
        return self._b.emit(total.load, spec, f"{part}_out")

    def channels(self, k: int, shape: Idx, body: Read, part: str) -> Tensor | None:
        """The sum over samples and positions of a grouped body, as a vector of channels."""
        spec = self.specs[k]
        if spec is None:
            return None
        total = self._b.reduce("sum", shape, (0, 3), body, keepdim=False, part=part)
        return self._b.emit(reshaped(total, spec.shape).load, spec, f"{part}_out")


def _row_backward(b: Builder, o: Over, g: Read, normal: Read, scale: Read,
                  centered: bool) -> Read:  # fmt: skip
    """The gradient of x for normal = (x - mean) * scale: each row's gradient without its part along
    the row, and without its mean if `centered`."""
    dims = tuple(o.dims)
    along = b.reduce("sum", o.shape, dims, lambda i: g(i) * normal(i), part="along")
    mean = b.reduce("sum", o.shape, dims, g, part="sum") if centered else None

    def body(idx: Idx) -> Val:
        row = o.row(idx)
        v = g(idx) - normal(idx) * (along.load(row) / o.count)
        if mean is not None:
            v = v - mean.load(row) / o.count
        return v * scale(row)

    return body


@reduction("aten.native_layer_norm_backward.default")
def layer_norm_backward(b: Builder, grad_out: Tensor, x: Tensor, normalized_shape: Sequence[int],
                        mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
                        output_mask: Sequence[bool]) -> Results:  # fmt: skip
    """Gradients of x, weight and bias."""
    return _norm_backward(b, grad_out, x, len(normalized_shape), mean, rstd, weight, output_mask)


@reduction("aten._fused_rms_norm_backward.default")
def rms_norm_backward(b: Builder, grad_out: Tensor, x: Tensor, normalized_shape: Sequence[int],
                      rstd: Tensor, weight: Tensor | None,
                      output_mask: Sequence[bool]) -> Results:  # fmt: skip
    """Gradients of x and weight."""
    mask = (*output_mask, False)
    return _norm_backward(b, grad_out, x, len(normalized_shape), None, rstd, weight, mask)[:2]


def _norm_backward(b: Builder, grad_out: Tensor, x: Tensor, count: int, mean: Tensor | None,
                   rstd: Tensor, weight: Tensor | None,
                   output_mask: Sequence[bool]) -> Results:  # fmt: skip
    """Gradients of x, weight and bias for (x - mean) * rstd * weight + bias over the last `count`
    dimensions; without a mean the rows are not centered."""
    out = _Masked(b, output_mask)
    first = len(x.shape) - count
    o = Over(x.shape, frozenset(range(first, first + count)), True)
    g, read = read_as(grad_out, x.dtype), read_as(x, x.dtype)

    def scale(row: Idx) -> Val:
        return rstd.load(row).to(x.dtype.compute)

    def normal(idx: Idx) -> Val:
        row = o.row(idx)
        v = read(idx)
        return (v if mean is None else v - mean.load(row).to(x.dtype.compute)) * scale(row)

    def weighted(idx: Idx) -> Val:
        v = g(idx)
        return v if weight is None else v * weight.load(idx[first:]).to(v.dtype)

    rows = tuple(range(first))
    centered = mean is not None
    dx = _row_backward(b, o, weighted, normal, scale, centered) if output_mask[0] else g
    return (out.emit(0, dx, "x"),
            out.sums(1, x.shape, rows, lambda i: g(i) * normal(i), "weight"),
            out.sums(2, x.shape, rows, g, "bias"))  # fmt: skip


@reduction("aten.native_batch_norm_backward.default")
def batch_norm_backward(b: Builder, grad_out: Tensor, x: Tensor, weight: Tensor | None,
                        running_mean: Tensor | None, running_var: Tensor | None,
                        save_mean: Tensor | None, save_invstd: Tensor | None, train: bool,
                        eps: float, output_mask: Sequence[bool]) -> Results:  # fmt: skip
    """Gradients of x, weight and bias. The running statistics count only outside of training."""
    if not train:
        raise LoweringError("W202", "backward of batch norm with running statistics")
    if save_mean is None or save_invstd is None or not elements(x.shape).lo:
        raise LoweringError("W202", "backward of batch norm without statistics")
    mean, inverse = save_mean, save_invstd
    out = _Masked(b, output_mask)
    rank = len(x.shape)
    dims = tuple(d for d in range(rank) if d != 1)
    g, read = read_as(grad_out, x.dtype), read_as(x, x.dtype)
    compute = x.dtype.compute
    count = Over(x.shape, frozenset(dims), False).count

    def normal(idx: Idx) -> Val:
        c = idx[1:2]
        return (read(idx) - mean.load(c).to(compute)) * inverse.load(c).to(compute)

    total = b.reduce("sum", x.shape, dims, g, keepdim=False, part="sum")
    along = b.reduce("sum", x.shape, dims, lambda i: g(i) * normal(i), keepdim=False,
                     part="along")  # fmt: skip

    def dx(idx: Idx) -> Val:
        c = idx[1:2]
        v = g(idx) - total.load(c) / count - normal(idx) * (along.load(c) / count)
        v = v * inverse.load(c).to(compute)
        return v if weight is None else v * weight.load(c).to(compute)

    return (out.emit(0, dx, "x"), out.emit(1, along.load, "weight"),
            out.emit(2, total.load, "bias"))  # fmt: skip


@reduction("aten.native_group_norm_backward.default")
def group_norm_backward(b: Builder, grad_out: Tensor, x: Tensor, mean: Tensor, rstd: Tensor,
                        weight: Tensor | None, N: int, C: int, HxW: int, group: int,
                        output_mask: Sequence[bool]) -> Results:  # fmt: skip
    """Gradients of x, weight and bias: layer norm over the channels of each group and positions."""
    out = _Masked(b, output_mask)
    each = C // group
    shape = tuple(as_expr(n) for n in (N, group, each, HxW))
    o = Over(shape, frozenset((2, 3)), True)
    compute = x.dtype.compute
    g, read = (read_as(reshaped(t, shape), x.dtype) for t in (grad_out, x))
    center, inverse = (reshaped(t, shape[:2]) for t in (mean, rstd))

    def scale(row: Idx) -> Val:
        return inverse.load(row[:2]).to(compute)

    def normal(idx: Idx) -> Val:
        return (read(idx) - center.load(idx[:2]).to(compute)) * scale(idx)

    def weighted(idx: Idx) -> Val:
        v = g(idx)
        if weight is None:
            return v
        return v * reshaped(weight, shape[1:3]).load(idx[1:3]).to(compute)

    dx = None
    if output_mask[0]:
        body = _row_backward(b, o, weighted, normal, scale, True)
        own = b.temp(body, Spec(shape, (), b.spec.dtype, b.spec.device), b.spec.dtype, "dx")
        dx = out.emit(0, reshaped(own, x.shape).load, "x")
    return (dx, out.channels(1, shape, lambda i: g(i) * normal(i), "weight"),
            out.channels(2, shape, g, "bias"))  # fmt: skip
