"""Functions of torch whose C++ takes plain sizes only, written with others that take symbols; or
that asks for values which the sizes tell.

The interpreter runs them where a size varies, the latter everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def max_pool1d(input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
               dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Tensor:  # fmt: skip
    """In two dimensions, of which the first has one element."""
    size = _only(kernel_size)
    step = size if stride is None or stride == [] else _only(stride)
    pooled = torch.max_pool2d(input.unsqueeze(-2), (1, size), (1, step), (0, _only(padding)),
                              (1, _only(dilation)), ceil_mode)  # fmt: skip
    return pooled.squeeze(-2)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """In two dimensions, of which the first has one element."""
    pooled = torch._C._nn.adaptive_avg_pool2d(input.unsqueeze(-2), (1, _only(output_size)))
    return pooled.squeeze(-2)


def _only(x: Any) -> Any:
    return x[0] if isinstance(x, (tuple, list)) else x


def linspace(start: float, end: float, steps: int, dtype: Any = None, device: Any = None) -> Tensor:
    """Counted from the nearer end, as eager does."""
    kind = torch.get_default_dtype() if dtype is None else dtype
    computed = torch.float64 if kind == torch.float64 else torch.float32
    if steps < 2:
        return torch.full((steps,), start, dtype=kind, device=device)
    i = torch.arange(steps, dtype=computed, device=device)
    step = (end - start) / (steps - 1)
    near, far = i * step + start, end - (steps - 1 - i) * step
    return torch.where(i < steps // 2, near, far).to(kind)


def affine_grid(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """Each point's place in an image or a volume, the last dimension first, times the matrices."""
    n, _, *sizes = size
    rank = len(sizes)
    parts = [torch.ones((n, *sizes), dtype=theta.dtype, device=theta.device)]
    points = 1
    for d, k in enumerate(sizes):
        shape = (1,) * (1 + d) + (-1,) + (1,) * (rank - 1 - d)
        place = _centres(k, align_corners, theta).view(shape)
        parts.insert(0, place.expand(n, *sizes))
        points = points * k
    base = torch.stack(parts, -1).view(n, points, rank + 1)
    return base.bmm(theta.transpose(1, 2)).view(n, *sizes, rank)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Each element of the one times the whole other one.

    As in eager these are no views for autograd: it does not see that what they show is changed.
    """
    rank = max(input.dim(), other.dim())
    a = [1] * (rank - input.dim()) + list(input.shape)
    b = [1] * (rank - other.dim()) + list(other.shape)
    shown: Any = torch.ops.aten._unsafe_view.default
    rows = shown(input, [k for n in a for k in (n, 1)])
    columns = shown(other, [k for n in b for k in (1, n)])
    made: Tensor = shown(rows * columns, [n * k for n, k in zip(a, b, strict=True)])
    return made


def take_along_dim(input: Tensor, indices: Tensor, dim: Any = None) -> Tensor:
    """Gathers, of tensors that are as large as one another in the other dimensions."""
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    at = dim % input.dim()
    sizes = [max(n, k) if n == 1 or k == 1 else n
             for n, k in zip(input.shape, indices.shape, strict=True)]  # fmt: skip
    index = indices.expand([indices.shape[d] if d == at else n for d, n in enumerate(sizes)])
    source = input.expand([input.shape[d] if d == at else n for d, n in enumerate(sizes)])
    return source.gather(at, index)


def multi_dot(tensors: Any) -> Tensor:
    """Of two or three matrices, in the order that takes fewer products."""
    if len(tensors) == 2:
        return torch.mm(tensors[0], tensors[1])
    first, second, third = tensors
    (a, b), (c, d) = first.shape, third.shape
    if a * c * (b + d) > b * d * (a + c):
        return torch.mm(first, torch.mm(second, third))
    return torch.mm(torch.mm(first, second), third)


def vander(x: Tensor, N: int, increasing: bool = False) -> Tensor:
    """Powers by repeated products, from the last column on if they do not increase."""
    kind = torch.promote_types(x.dtype, torch.int64)
    column = x.to(kind).unsqueeze(1)
    ones = torch.ones_like(column, memory_format=torch.contiguous_format)
    out = torch.cat([ones, column.expand(-1, N - 1).cumprod(1)], 1)
    return out if increasing else out.flip([1])


def fill_diagonal_(input: Tensor, fill_value: Any) -> Tensor:
    """Of a matrix."""
    rows, columns = (torch.arange(n, device=input.device) for n in input.shape)
    return input.masked_fill_(rows.unsqueeze(1) == columns, fill_value)


def _centres(k: int, align_corners: bool, like: Tensor) -> Tensor:
    """From -1 to 1, or so that both are half a step away from the ends."""
    ends = linspace(-1.0, 1.0, k, like.dtype, like.device)
    return ends if align_corners else ends * (k - 1) / k


def tensor_split(input: Tensor, sections: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of which the first may have one more each, whatever the remainder is."""
    n, start, out = input.shape[dim], 0, []
    for i in range(sections):
        size = (n - i + sections - 1) // sections
        out.append(input.narrow(dim, start, size))
        start = start + size
    return tuple(out)


def upsample_bicubic2d(input: Tensor, output_size: Any, align_corners: bool,
                       scale_factors: Any = None) -> Tensor:  # fmt: skip
    return _resized(torch.ops.aten.upsample_bicubic2d.default, input, output_size, align_corners,
                    scale_factors)  # fmt: skip


def upsample_bicubic2d_aa(input: Tensor, output_size: Any, align_corners: bool,
                          scale_factors: Any = None) -> Tensor:  # fmt: skip
    return _resized(torch.ops.aten._upsample_bicubic2d_aa.default, input, output_size,
                    align_corners, scale_factors)  # fmt: skip


def upsample_bilinear2d(input: Tensor, output_size: Any, align_corners: bool,
                        scale_factors: Any = None) -> Tensor:  # fmt: skip
    """Of bytes: eager's kernel rounds in each direction, torch's composition does not."""
    return _resized(torch.ops.aten.upsample_bilinear2d.default, input, output_size, align_corners,
                    scale_factors)  # fmt: skip


def _resized(op: Any, input: Tensor, output_size: Any, align_corners: bool,
             scale_factors: Any) -> Tensor:  # fmt: skip
    scales: Any = (None, None) if scale_factors is None else scale_factors
    size = output_size
    if size is None:
        size = [int(input.shape[d + 2] * scales[d]) for d in (0, 1)]
    return op(input, size, align_corners, scales[0], scales[1])  # type: ignore[no-any-return]


def tensor_of(data: Any, dtype: Any, device: Any) -> Tensor:
    """torch.tensor of numbers, in lists to any depth."""
    if isinstance(data, (list, tuple)):
        return torch.stack([tensor_of(x, dtype, device) for x in data])
    return torch.full((), data, dtype=dtype, device=device)


def cov(input: Tensor, *, correction: int = 1) -> Tensor:
    """Covariances of rows, of more columns than the correction."""
    x = input.unsqueeze(0) if input.dim() < 2 else input
    n = x.shape[1]
    x = x - (x.sum(1) / tensor_of(n, torch.int64, x.device)).unsqueeze(1)
    products = torch.mm(x, x.t().conj())
    return (products / tensor_of(n - correction, torch.int64, x.device)).squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """Covariances over the deviations of both rows, which rounding may take beyond 1."""
    c = cov(input)
    if c.dim() == 0:
        return c / c
    deviations = torch.sqrt(c.diag().real if c.is_complex() else c.diag())
    c = c / deviations.view(-1, 1) / deviations.view(1, -1)
    if c.is_complex():
        return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1))
    return c.clip(-1, 1)
