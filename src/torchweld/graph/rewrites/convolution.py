"""Convolutions on a GPU: channels last where that is faster, and the bias left to fused kernels.

Measured on one H200 (torch 2.11, cuDNN, batch 8, median of graph replays, 2026-11-30), microseconds
in row-major layout / channels last / channels last with the weight converted on each call:

    channels, size, out, kernel       bf16                    f32
    3x224 -> 64, 7x7 stride 2         84.9 / 62.5 / 65.1      82.1 / 58.2 / 60.0
    64x56 -> 64, 1x1                   3.8 /  4.3 /  5.4       8.2 /  6.5 /  7.7
    64x56 -> 64, 3x3                  19.8 / 10.6 / 12.8      26.1 / 16.3 / 18.4
    256x14 -> 256, 3x3                17.9 /  9.4 / 12.7      22.5 / 13.3 / 17.4
    512x7 -> 512, 3x3                 28.4 / 12.2 / 18.7      36.1 / 20.0 / 29.0
    1024x14 -> 2048, 1x1 stride 2     17.1 / 10.4 / 13.6      21.7 / 13.9 / 17.4
    3x224 -> 768, 16x16 stride 16      116 / 96.6 / 99.3       134 / 98.2 / 100.9
    96x56, depthwise 7x7, batch 1     15.8 / 15.2 / 16.2      15.6 / 10.4 / 11.5

In f32 the layout stays: channels last, cuDNN also takes TF32 kernels where it does not in eager's
layout (a small ViT was 3e-4 from f64 then, and 3e-7 in eager).

A joint graph is laid out as one, before it is divided: what is saved between forward and backward
lies as both want it. Of ResNet-50's step of 4.9 ms (batch 16) cuDNN's own changes of the layout of
gradients and saved values took 0.75.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.graph.rewrites.node import fake_mode_of, new_node, tensor
from torchweld.graph.rewrites.relayout import Relayout
from torchweld.ir.graph import VAL

aten = torch.ops.aten
conv = aten.convolution.default
conv_backward = aten.convolution_backward.default

# where each has its input, its weight and its flag for transposed ones, and the other operands
# that are laid out alike
_INPUT: dict[Any, int] = {conv: 0, conv_backward: 1}
_WEIGHT: dict[Any, int] = {conv: 1, conv_backward: 2}
_TRANSPOSED: dict[Any, int] = {conv: 6, conv_backward: 7}
_MASK = 10  # of conv_backward: which of the gradients of input, weight and bias are wanted

_HALVES = (torch.bfloat16, torch.float16)
_FORMAT = torch.channels_last

def split_bias(graph: Graph) -> None:
    """conv(x, w, bias) as conv(x, w) + bias: what eager does on a GPU, in two kernels."""
    for node in graph.find_nodes(op="call_function", target=conv):
        bias = node.args[2]
        if not isinstance(bias, Node) or tensor(node).device.type != "cuda":
            continue
        rank = tensor(node).dim() - 2
        with graph.inserting_after(node):
            shape = [-1, *([1] * rank)]
            column = new_node(graph, aten.view.default, (bias, shape), like=node)
        with graph.inserting_after(column):
            total = new_node(graph, aten.add.Tensor, (node, column), like=node)
        for user in [u for u in node.users if u is not total]:
            user.replace_input_with(node, total)
        node.args = (*node.args[:2], None, *node.args[3:])


def split_bias_gradient(graph: Graph) -> None:
    """The gradient of a bias as a sum of its own, as ATen computes it behind cuDNN's kernels."""
    for node in graph.find_nodes(op="call_function", target=conv_backward):
        grad_output, mask = node.args[0], node.args[_MASK]
        assert isinstance(grad_output, Node) and isinstance(mask, (list, tuple))
        if not mask[2] or tensor(grad_output).device.type != "cuda":
            continue
        taken = [u for u in node.users if u.target is operator.getitem and u.args[1] == 2]
        dims = [d for d in range(tensor(grad_output).dim()) if d != 1]
        with graph.inserting_before(node):
            total = new_node(graph, aten.sum.dim_IntList, (grad_output, dims), like=node)
        for user in taken:
            user.replace_all_uses_with(total)
            graph.erase_node(user)
        node.args = (*node.args[:_MASK], [mask[0], mask[1], False])
        node.meta[VAL] = (*node.meta[VAL][:2], None)


def channels_last(graph: Graph) -> None:
    """Give convolutions channels-last operands, and let the layout spread to what reads them.

    Outputs of the graph keep the strides that they had.
    Errors: Unsupported W201 where that is not possible; the graph is then of no use.
    """
    convs = [n for n in graph.nodes if n.target in _INPUT]
    if any(max(_kernel(n)) > 1 for n in convs if _eligible(n)):
        Relayout(graph).run(_Operands(graph).convert)


def _eligible(node: Node) -> bool:
    x = tensor(_operand(node, _INPUT))
    transposed = node.args[_TRANSPOSED[node.target]]
    halves = x.device.type == "cuda" and x.dtype in _HALVES
    return halves and x.dim() == 4 and not transposed and x.numel() > 0


def _operand(node: Node, places: dict[Any, int]) -> Node:
    found = node.args[places[node.target]]
    assert isinstance(found, Node)
    return found


def _kernel(node: Node) -> tuple[int, ...]:
    return tuple(tensor(_operand(node, _WEIGHT)).shape[2:])


class _Operands:
    """The copies of tensors in channels-last layout, one of each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copies: dict[Node, Node] = {}
        leading = list(itertools.takewhile(lambda n: n.op == "placeholder", graph.nodes))
        self.start = dict.fromkeys(leading, leading[-1])  # tangents stand further behind

    def convert(self, node: Node) -> Any:
        """Give a convolution operands that are channels last; then cuDNN's results are too."""
        if node.target not in _INPUT or not _eligible(node):
            return None
        count = _WEIGHT[node.target] + 1  # all operands up to the weight
        operands = node.args[:count]
        assert all(isinstance(x, Node) for x in operands)
        copies = [self._copy(x) for x in operands]  # type: ignore[arg-type]
        node.args = (*copies, *node.args[count:])
        made = node.meta[VAL]
        with fake_mode_of(node):
            return tuple(map(_last, made)) if isinstance(made, (tuple, list)) else _last(made)

    def _copy(self, x: Node) -> Node:
        """`x` channels last: copied right behind it, so that whatever reads it may use the copy."""
        if tensor(x).is_contiguous(memory_format=_FORMAT):
            return x
        if x not in self.copies:
            with self.graph.inserting_after(self.start.get(x, x)):
                self.copies[x] = new_node(
                    self.graph, aten.clone.default, (x,), {"memory_format": _FORMAT}, like=x
                )
        return self.copies[x]


def _last(value: Any) -> Any:
    """A result as it is when all operands are channels last."""
    if not isinstance(value, Tensor) or value.dim() != 4:
        return value
    return aten.clone.default(value, memory_format=_FORMAT)
