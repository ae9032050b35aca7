"""Reads at indices that are loaded: index, gather, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchweld.base.errors import LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr
from torchweld.lower.builder import Builder, broadcast
from torchweld.lower.registry import lowering
from torchweld.lower.tensor import Idx, Tensor, elements
from torchweld.lower.value import Check, checked, constant
from torchweld.lower.views import reshaped, wrap


def broadcast_shapes(shapes: Sequence[Idx]) -> Idx:
    """The shape that all broadcast to."""
    rank = max(map(len, shapes))
    out: list[Expr] = [ONE] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n is not ONE:
                out[d] = n
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Advanced:
    """x[indices] with index tensors at some dimensions.

    shape: of the result. The broadcast index dimensions stand at `front`, where the first index
    tensor is if the tensors are neighbours, else first.
    """

    tensors: dict[int, Tensor]
    source: Idx
    shape: Idx
    common: Idx
    front: int

    def at(self, idx: Idx) -> Idx:
        """The index into the source for an index of the result; indices are checked."""
        n = len(self.common)
        mine = idx[self.front : self.front + n]
        rest = iter(idx[: self.front] + idx[self.front + n :])
        return tuple(
            checked(self.tensors[d].load(broadcast(mine, self.tensors[d].shape)), size, Check.WRAP)
            if d in self.tensors else next(rest)
            for d, size in enumerate(self.source)
        )  # fmt: skip


def advanced(x: Tensor, indices: Sequence[Tensor | None]) -> Advanced:
    """How `x[indices]` reads. Errors: LoweringError for masks, whose result size is data."""
    tensors = {d: i for d, i in enumerate(indices) if i is not None}
    if any(not i.dtype.is_int or i.dtype is DType.U8 for i in tensors.values()):
        raise LoweringError("W202", "index by a mask")
    if not tensors:
        raise LoweringError("W202", "index by nothing")
    dims = sorted(tensors)
    together = dims[-1] - dims[0] + 1 == len(dims)
    front = dims[0] if together else 0
    common = broadcast_shapes([i.shape for i in tensors.values()])
    rest = tuple(n for d, n in enumerate(x.shape) if d not in tensors)
    shape = rest[:front] + common + rest[front:]
    return Advanced(tensors, x.shape, shape, common, front)


@lowering("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    how = advanced(x, indices)
    return b.emit(lambda idx: x.load(how.at(idx)))


@lowering("aten.embedding.default")
def embedding(b: Builder, weight: Tensor, indices: Tensor, padding_idx: int = -1,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:  # fmt: skip
    """Rows of `weight`; negative indices do not wrap."""
    rows = weight.shape[0]
    return b.emit(lambda idx: weight.load(
        (checked(indices.load(idx[:-1]), rows, Check.INDEX), idx[-1])))  # fmt: skip


@lowering("aten.index_select.default")
def index_select(b: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Positions of one dimension; negative indices do not wrap.

    Errors: of the second dimension, eager checks the indices in a loop of its own.
    """
    if not x.shape:
        only, i = ranked(x), ranked(index)
        return b.emit(lambda idx: only.load((checked(i.load((ZERO,)), ONE, Check.INDEX),)))
    d = wrap(dim, len(x.shape))
    i = reshaped(index, (elements(index.shape),))
    how = Check.BOUND if d == 1 else Check.INDEX

    def at(idx: Idx) -> Idx:
        return (*idx[:d], checked(i.load((idx[d],)), x.shape[d], how), *idx[d + 1 :])

    return b.emit(lambda idx: x.load(at(idx)))


@lowering("aten.gather.default")
def gather(b: Builder, x: Tensor, dim: int, index: Tensor,
           sparse_grad: bool = False) -> Tensor:  # fmt: skip
    """out[..., i, ...] = x[..., index[..., i, ...], ...]; negative indices do not wrap."""
    x, index = ranked(x), ranked(index)
    d = wrap(dim, len(x.shape))
    if len(x.shape) != len(index.shape):
        return b.emit(lambda idx: constant(0, x.dtype))  # the index is empty

    def at(idx: Idx) -> Idx:
        idx = idx or (ZERO,)
        return (*idx[:d], checked(index.load(idx), x.shape[d], Check.BOUND), *idx[d + 1 :])

    return b.emit(lambda idx: x.load(at(idx)))


def ranked(x: Tensor) -> Tensor:
    """`x` with at least one dimension."""
    return x if x.shape else reshaped(x, (ONE,))


@lowering("aten.take.default")
def take(b: Builder, x: Tensor, index: Tensor) -> Tensor:
    n = elements(x.shape)
    flat = reshaped(x, (n,))
    return b.emit(lambda idx: flat.load((checked(index.load(idx), n, Check.WRAP),)))
