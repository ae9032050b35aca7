"""A model of column-major products in NumPy: computes what a Shape describes from flat memory."""

from __future__ import annotations

import numpy as np
import torch

from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, TensorArg, TensorSpec
from torchweld.runtime.products import shape_of

DTYPES = {torch.float64: DType.F64, torch.float32: DType.F32, torch.complex64: DType.C64}


def operand(sizes, strides, seed=0):
    """A tensor of small integers with these strides."""
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    flat = torch.arange(span, dtype=torch.float64) * (seed + 3) % 7 - 3
    return torch.as_strided(flat, sizes, strides)


def spec(t, place="input"):
    return TensorSpec(place, 0, DTYPES[t.dtype], tuple(t.shape), t.stride(), 0, "cuda:0")


def described(op, tensors, out, **kwargs):
    """The Shape of a call, or why there is none."""
    args = tuple(TensorArg(i) for i in range(len(tensors)))
    call = Call(op, args, tuple(kwargs.items()), (len(tensors),))
    return shape_of(call, (*map(spec, tensors), spec(out, "extern")))


def _flat(t):
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return torch.as_strided(t, (span,), (1,)).numpy()


def _stored(flat, start, rows, columns, step):
    """A column-major matrix; columns that overlap are an error of whoever described it."""
    assert step >= rows
    index = start + np.arange(rows)[:, None] + step * np.arange(columns)[None, :]
    return index, None if flat is None else flat[index]


def computed(s, tensors, out):
    """`out` after D = epilogue(alpha * op(A) op(B) + bias), each element written once."""
    a, b = _flat(tensors[s.a]), _flat(tensors[s.b])
    made = np.full(_flat(out).shape, np.nan)
    ta, tb = s.transposed
    for i in range(s.batches):
        _, left = _stored(a, i * s.strides[0], *((s.k, s.m) if ta else (s.m, s.k)), s.lda)
        _, right = _stored(b, i * s.strides[1], *((s.n, s.k) if tb else (s.k, s.n)), s.ldb)
        d = s.alpha * (left.T if ta else left) @ (right.T if tb else right)
        if s.bias >= 0:
            d = d + _flat(tensors[s.bias])[:, None]
        if s.epilogue == 6:
            d = np.maximum(d, 0)
        where, _ = _stored(None, i * s.strides[2], s.m, s.n, s.ldc)
        assert np.isnan(made[where]).all()
        made[where] = d
    return torch.as_strided(torch.from_numpy(made), out.shape, out.stride())
