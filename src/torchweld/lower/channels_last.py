"""Intermediates of images with their channels last, where what they are made of has them so.

A convolution by packed weights gives its channels last, and is fastest on such an operand. Between
two convolutions stand loop nests, which are as fast in either layout as long as everything that
they touch has the same one. So each intermediate follows the majority of what it is computed from;
in a tie the channels are last: what is computed from it then has company.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.ir.expr import ONE, ZERO, Expr, Sym, atoms, stride_of
from torchweld.ir.loop import (
    Buffer,
    Extern,
    LoopGraph,
    Nest,
    View,
    loads,
    views_of,
    writes,
)
from torchweld.lower.swap import Swap
from torchweld.lower.tensor import numel, row_major

# calls that take an operand in either layout, and give the same result in the same layout
_EITHER = frozenset({"mkldnn._convolution_pointwise.default"})
CHANNEL, _LAST = 1, 3


def last_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of [N, C, H, W] stored as [N, H, W, C]."""
    n, h, w, c = row_major((shape[0], shape[2], shape[3], shape[1]))
    return (n, c, h, w)


def with_channels_last(b: Buffer) -> Buffer:
    """A buffer like `b` in that layout."""
    return Buffer.make(b.name, b.dtype, b.shape, last_strides(b.shape), b.offset, b.role, b.device)


def is_channels_last(v: View | Buffer) -> bool:
    """Whether it lies so and not otherwise, as far as its sizes show."""
    if len(v.shape) != 4:
        return False
    pairs = zip(v.shape, v.strides, last_strides(v.shape), strict=True)
    return all(s is wanted for n, s, wanted in pairs if n is not ONE)


def channels_last(g: LoopGraph) -> LoopGraph:
    """`g` with intermediates laid out as their sources are; nothing that a caller sees changes."""
    seeds = {b for n in g.nodes if isinstance(n, Extern) and n.op in _EITHER for b in n.outs}
    if not any(map(is_channels_last, seeds)):
        return g
    free = _free(g)
    writers: dict[Buffer, list[Nest]] = {}
    for n in g.nodes:
        if isinstance(n, Nest):
            writers.setdefault(n.out, []).append(n)
    moved: dict[Buffer, Buffer] = {}
    for n in g.nodes:
        if not isinstance(n, Nest) or n.out not in free:
            continue
        nests = writers.pop(n.out, [])
        votes = [v for x in nests for v in _votes(x, moved)]
        if 1 in votes and sum(votes) >= 0:
            moved[n.out] = with_channels_last(n.out)
    swap = Swap(moved)
    return replace(g, nodes=tuple(map(swap.node, g.nodes))) if moved else g


def _free(g: LoopGraph) -> set[Buffer]:
    """The intermediates whose layout is nobody's business but the nests' that use them."""
    returned = {v.buffer for v in g.outputs if v is not None}
    found: set[Buffer] = set()
    fixed: set[Buffer] = set(returned)
    for n in g.nodes:
        if isinstance(n, Nest):
            found.add(n.out)
            continue
        fixed |= writes(n)
        given = views_of((*n.args, *(v for _, v in n.kwargs)))
        fixed |= {v.buffer for v in given if n.op not in _EITHER or not v.whole}
    return {b for b in found - fixed if b.role == "temp" and _image(b)}


def _image(b: Buffer) -> bool:
    """Whether it is a whole row-major [N, C, H, W] of which the order of C and W can be seen."""
    return (
        len(b.shape) == 4 and b.strides == row_major(b.shape) and b.offset is ZERO
        and ONE not in (b.shape[CHANNEL], b.shape[_LAST])
    )  # fmt: skip


def _votes(n: Nest, moved: dict[Buffer, Buffer]) -> list[int]:
    """Of each large operand of the nest: 1 if its channels are adjacent, -1 if its columns are."""
    if n.reduce is not None and n.reduce.is_scan:
        return [-1]
    votes = []
    least = numel(n.out.shape) // 2
    for load in loads(n.body):
        b = moved.get(load.buffer, load.buffer)
        if numel(b.shape) < least:
            continue
        at: Expr = ZERO
        for e, s in zip(load.index, b.strides, strict=True):
            at = at + e * s
        votes.append(_adjacent(at, n.index[CHANNEL]) - _adjacent(at, n.index[_LAST]))
    return votes


def _adjacent(at: Expr, index: Expr) -> bool:
    """Whether neighbours along this index of the result are neighbours in memory."""
    axis = moving(index)
    return axis is not None and stride_of(at, axis) is ONE


def moving(index: Expr) -> Sym | None:
    """The axis along which an index runs one by one, from any start; None if it does not."""
    found = [a for a in atoms(index) if isinstance(a, Sym)]
    one = len(found) == 1 and stride_of(index, found[0]) is ONE
    return found[0] if one and len(atoms(index)) == 1 else None
