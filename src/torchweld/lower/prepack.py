"""Weights that never change, packed once in the layout that the library wants.

Measured on 2026-11-30 (AMD EPYC Zen 4, torch 2.13, 1 thread, least of 25, other work on the
machine), f32, microseconds of oneDNN's linear with the weight as it lies and packed:

    128x768x768   1468  1395      8x768x768    161   108      1x1024x4096   609   769
    128x768x3072  6158  5741      8x768x3072   861   682      1x768x768      51    52
    128x3072x768  6006  5651     16x768x3072  1216   943

and of the convolutions of a ResNet-50 (1x3x224x224), milliseconds: aten 89, aten on channels-last
tensors 81 to 87, packed weights 79, packed weights on channels-last tensors 66. With its channels
first, a large image costs more by packed weights than by aten (64 channels to 32 of 64x64: 2.5 and
1.7, channels last 1.6), so a convolution is packed only if its operand has its channels last, or
few of them, or if another packed convolution takes what becomes of its result.

Relu is not left to the library: it turns NaN into 0, and so does its clip to [0, inf].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO
from torchweld.ir.loop import Buffer, Extern, Load, LoopGraph, Nest, Node, View, loads
from torchweld.ir.loop_verify import buffers_of
from torchweld.lower.builder import axes_of
from torchweld.lower.channels_last import (
    CHANNEL,
    channels_last,
    is_channels_last,
    moving,
    with_channels_last,
)
from torchweld.lower.contractions import LINEAR, available
from torchweld.lower.tensor import numel, row_major

CONVOLUTION = "mkldnn._convolution_pointwise.default"
_PACK_LINEAR = "mkldnn._reorder_linear_weight.default"
_PACK_CONVOLUTION = "mkldnn._reorder_convolution_weight.default"
_ATEN = "aten.convolution.default"
_LEAST_ROWS = 8
_FEW = 4  # channels


def prepack(g: LoopGraph, constant: set[Buffer]) -> LoopGraph:
    """`g` with packed weights where the weight is one of the constant buffers and it pays."""
    if not (available() and hasattr(torch.ops.mkldnn, "_reorder_convolution_weight")):
        return g
    left = _grouped(g)
    while True:
        packer = _Packer(g, constant, left)
        made = channels_last(replace(g, nodes=tuple(packer.nodes())))
        dear = {packer.results[b] for b in _dear(made)}
        if not dear:
            return made
        left |= dear


def _dear(g: LoopGraph) -> set[Buffer]:
    """Results of packed convolutions that had to turn their operand, and for nobody's good."""
    sources = _sources(g, CONVOLUTION)
    turning: set[Buffer] = set()
    serving: set[Buffer] = set()
    for n in g.nodes:
        if isinstance(n, Extern) and n.op == CONVOLUTION:
            x = n.args[0]
            assert isinstance(x, View)
            if is_channels_last(x):
                serving |= sources.get(x.buffer, frozenset())
            elif x.shape[CHANNEL].value > _FEW:
                turning |= set(n.outs)
    return turning - serving


def _grouped(g: LoopGraph) -> set[Buffer]:
    """Results of convolutions from which loop nests lead to one that takes channels in groups.

    Such a nest (a group norm, a shuffle of pixels) is slow where the channels are last.
    """
    sources = _sources(g, _ATEN)
    found: set[Buffer] = set()
    for n in g.nodes:
        for load in loads(n.body) if isinstance(n, Nest) else ():
            channel = load.index[CHANNEL] if len(load.index) == 4 else ZERO
            if load.buffer in sources and not channel.is_const and moving(channel) is None:
                found |= sources[load.buffer]
    return found


def _sources(g: LoopGraph, op: str) -> dict[Buffer, frozenset[Buffer]]:
    """Of each buffer that loop nests make of results of `op`: those results."""
    found: dict[Buffer, frozenset[Buffer]] = {}
    for n in g.nodes:
        if isinstance(n, Extern):
            found.update({b: frozenset((b,)) for b in n.outs if n.op == op})
            continue
        mine = frozenset[Buffer]().union(*(found.get(ld.buffer, ()) for ld in loads(n.body)))
        if mine:
            found[n.out] = found.get(n.out, frozenset()) | mine
    return found


class _Packer:
    """The nodes so far, and the packed form of each weight that was met.

    left: results of convolutions that stay as they are. results: what those of the others are
    called now, and were called.
    """

    def __init__(self, g: LoopGraph, constant: set[Buffer], left: set[Buffer]) -> None:
        self.results: dict[Buffer, Buffer] = {}
        self._old = g.nodes
        self._constant = constant
        self._left = left
        self._names = {b.name for b in buffers_of(g)}
        self._packed: dict[object, Buffer] = {}
        self._new: list[Node] = []

    def nodes(self) -> list[Node]:
        for n in self._old:
            if isinstance(n, Extern) and n.op == LINEAR:
                self._linear(n)
            elif isinstance(n, Extern) and n.op == _ATEN and n.outs[0] not in self._left:
                self._convolution(n)
            else:
                self._new.append(n)
        return self._new

    def _linear(self, n: Extern) -> None:
        x, w, *rest = n.args
        assert isinstance(x, View) and isinstance(w, View)
        rows = x.shape[0].value
        if w.buffer not in self._constant or rows < _LEAST_ROWS:
            self._new.append(n)
            return
        packed = self._pack(_PACK_LINEAR, (w, rows), n)
        self._new.append(replace(n, args=(x, packed, *rest)))

    def _convolution(self, n: Extern) -> None:
        """The call by the packed weight, whose result has its channels last."""
        x, w, bias, stride, padding, dilation, transposed, _, groups = n.args
        assert isinstance(x, View) and isinstance(w, View)
        (out,) = n.outs
        if transposed or w.buffer not in self._constant or not _fits(x, w, bias, out):
            self._new.append(n)
            return
        packed = self._pack(_PACK_CONVOLUTION, (w, padding, stride, dilation, groups, x.shape), n)
        made = out if is_channels_last(out) else self._named(with_channels_last(out), "last")
        self.results[made] = out
        self._new.append(Extern(
            (made,), CONVOLUTION,
            (x, packed, bias, padding, stride, dilation, groups, "none", (), ""), (), (),
            n.origins,
        ))  # fmt: skip
        if made is not out:
            axes, index = axes_of(out.shape)
            self._new.append(Nest(out, axes, index, Load.make(made, index), None, "set", n.origins))

    def _pack(self, op: str, args: tuple[object, ...], n: Extern) -> View:
        """The weight, which is the first argument, in the form that `op` gives it."""
        made = self._packed.get((op, args))
        if made is None:
            w = args[0]
            assert isinstance(w, View)
            like = Buffer.make(w.buffer.name, w.buffer.dtype, w.shape, row_major(w.shape), ZERO,
                               "temp", w.buffer.device)  # fmt: skip
            made = self._packed[op, args] = self._named(like, "packed")
            self._new.append(Extern((made,), op, args, (), (), n.origins))  # type: ignore[arg-type]
        return View(made, made.shape, made.strides, made.offset)

    def _named(self, like: Buffer, part: str) -> Buffer:
        """A buffer like this one, with a new name."""
        name, n = f"{like.name}_{part}", 0
        while name in self._names:
            n += 1
            name = f"{like.name}_{part}_{n}"
        self._names.add(name)
        return Buffer.make(name, like.dtype, like.shape, like.strides, like.offset, like.role,
                           like.device)  # fmt: skip


def _fits(x: View, w: View, bias: object, out: Buffer) -> bool:
    """Whether the library takes these operands as they lie, and computes what aten does."""
    if len(x.shape) != 4 or out.device != "cpu" or 0 in map(numel, (x.shape, out.shape)):
        return False
    operands = [x, w] if bias is None else [x, w, bias]
    if any(not isinstance(v, View) or v.buffer.dtype is not DType.F32 for v in operands):
        return False
    return all(_flat(v) or is_channels_last(v) for v in operands if isinstance(v, View))


def _flat(v: View) -> bool:
    return _matter(v.shape, v.strides) == _matter(v.shape, row_major(v.shape))


def _matter(shape: Sequence[object], strides: Sequence[object]) -> list[object]:
    """The strides of the dimensions that have more than one element."""
    return [s for n, s in zip(shape, strides, strict=True) if n is not ONE]
