"""Matrix products whose operands have an odd number of columns: numbers that cuBLAS likes better.

It has only slow kernels for half precision where rows do not begin at multiples of 16 bytes, and
where what is summed over is no multiple of them. On one H200 (torch 2.11, bf16), with the gradient
of GPT-2's scores [1024, 50257], the two products that read it took 584 and 623 us. What a loop
writes for products alone gets rows that are longer than what they hold (then 185 and 653 us); what
is left of a sum is a product of its own, which the large one starts from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.graph.rewrites.node import fake_mode_of, new_node, tensor
from torchweld.graph.rewrites.relayout import Relayout
from torchweld.graph.schema import is_pointwise, view_chain
from torchweld.ir.graph import VAL

aten = torch.ops.aten

# the matrices that they multiply
PRODUCTS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
}  # fmt: skip
_HALVES = (torch.bfloat16, torch.float16)
ALIGNMENT = 16  # bytes
_LINE = 128  # bytes: what rows are made multiples of
_LEAST = 1 << 18  # elements; smaller products take no time
LEAST_WORK = 1 << 28  # multiplications, see lower/contractions.py

_ROWS = frozenset((aten._to_copy.default, aten._log_softmax_backward_data.default,
                   aten._softmax_backward_data.default))  # fmt: skip


def align_operands(graph: Graph) -> None:
    """Lengthen the rows of such operands. Errors: Unsupported W201, as Relayout."""
    given = {view_chain(n)[-1] for n in graph.output_node().all_input_nodes}
    layout = Relayout(graph)
    for product in [n for n in graph.nodes if n.target in PRODUCTS]:
        for place in PRODUCTS[product.target]:
            x = product.args[place]
            assert isinstance(x, Node)
            root = view_chain(x)[-1]
            if root not in given and root not in layout.original and _is_odd(root, tensor(x)):
                layout.original[root] = tensor(root)
                root.meta[VAL] = _lengthened(root)
    if layout.original:
        layout.run()
    for product in graph.find_nodes(op="call_function", target=aten.mm.default):
        if _sums_odd(product):
            _in_two(graph, product)


def _sums_odd(product: Node) -> bool:
    """Whether only the number of summands keeps cuBLAS from a fast kernel."""
    if len(product.all_input_nodes) != 2:  # a matrix times itself
        return False
    a, b = map(tensor, product.all_input_nodes)
    if a.device.type != "cuda" or a.dtype not in _HALVES:
        return False
    if a._has_symbolic_sizes_strides or b._has_symbolic_sizes_strides:
        return False
    unit = ALIGNMENT // a.element_size()
    rows, inner, columns = *a.shape, b.shape[1]
    if not inner % unit or inner < _LINE or rows * inner * columns < LEAST_WORK:
        return False
    even = [x.stride(d) % unit == 0 for x, d in ((a, 0), (b, 0))]
    return a.stride(1) == b.stride(1) == 1 and all(even)


def _in_two(graph: Graph, product: Node) -> None:
    """The product as one over a multiple of 16 bytes, added to that over the rest."""
    a, b = product.args
    assert isinstance(a, Node) and isinstance(b, Node)
    inner = tensor(a).shape[1]
    most = inner - inner % (ALIGNMENT // tensor(a).element_size())

    def part(x: Node, dim: int, start: int, end: int) -> Node:
        return new_node(graph, aten.slice.Tensor, (x, dim, start, end), like=product)

    with graph.inserting_before(product):
        rest = new_node(graph, aten.mm.default, (part(a, 1, most, inner), part(b, 0, most, inner)),
                        like=product)  # fmt: skip
        parts = (rest, part(a, 1, 0, most), part(b, 0, 0, most))
        whole = new_node(graph, aten.addmm.default, parts, like=product)
    product.replace_all_uses_with(whole)
    graph.erase_node(product)


def _is_odd(root: Node, operand: Tensor) -> bool:
    """Whether a loop writes the operand, whole, in rows that begin at odd addresses."""
    if root.op != "call_function" or not (root.target in _ROWS or is_pointwise(root.target)):
        return False
    x = tensor(root)
    if x.device.type != "cuda" or x.dtype not in _HALVES or x._has_symbolic_sizes_strides:
        return False
    if not x.is_contiguous() or x.dim() < 2 or x.numel() < _LEAST:
        return False
    columns = x.shape[-1]
    if columns * x.element_size() % ALIGNMENT == 0 or columns < _LINE:
        return False
    return sorted(operand.stride()[-2:]) == [1, columns]


def _lengthened(root: Node) -> Tensor:
    x = tensor(root)
    unit = _LINE // x.element_size()
    row = -(-x.shape[-1] // unit) * unit
    strides = [1, row]
    for size in reversed(x.shape[1:-1]):
        strides.append(strides[-1] * size)
    with fake_mode_of(root):
        return torch.empty_strided(x.shape, strides[: x.dim()][::-1], dtype=x.dtype,
                                   device=x.device)  # fmt: skip
