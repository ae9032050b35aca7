"""Gradients of embeddings: the few rows that were looked up, not a matrix of zeros with sums in it.

aten.embedding_dense_backward fills a matrix as large as the weight with zeros and adds rows to it;
where the weight is also that of the last layer, the matrix is added to another one of its size. For
GPT-2's weight [50257, 768] in f32 that is 620 MB that are moved for 4 MB of rows (1024 tokens).

Rows for equal tokens are summed at the place of one of them, in f32 or wider, and the sums are
written to (or added to) the rows of the result:

    table[tokens[j]] = j            one of the places of each token, whichever is stored last
    place[j] = table[tokens[j]]
    sums[place[j], :] += rows[j, :]
    out[tokens[j], :] = base[tokens[j], :] + sums[place[j], :]

Equal tokens write equal values. On a CPU sums run in the order of tokens: they are eager's bits.
On a GPU they are atomic, so their order varies; eager's kernels are deterministic but round each
partial sum to the weight's dtype. Where deterministic algorithms are asked for, ATen keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torchweld.graph.layout import same_strides
from torchweld.graph.rewrites.node import arg, new_node, only_user, tensor
from torchweld.graph.schema import view_chain

aten = torch.ops.aten
embedding_backward = aten.embedding_dense_backward.default

_ACCUMULATED = {torch.bfloat16: torch.float32, torch.float16: torch.float32,
                torch.float32: torch.float32, torch.float64: torch.float64}  # fmt: skip
# elements of a weight whose rows are summed at their places: it is no larger than a few activations
_SMALL = 1 << 20


def sum_rows(graph: Graph) -> None:
    """Replace such gradients where that moves less than ATen's kernel does."""
    for node in graph.find_nodes(op="call_function", target=embedding_backward):
        found = _match(node)
        if found is not None:
            with graph.inserting_before(found.last):
                made = _written(_Rows(graph, node), found)
            found.last.replace_all_uses_with(made)
            graph.erase_node(found.last)


@dataclass(frozen=True, slots=True)
class _Match:
    """last: the node that is replaced. base: what the gradient is added to, if it is."""

    last: Node
    base: Node | None


def _match(node: Node) -> _Match | None:
    rows, tokens, out = (tensor(n) for n in (*node.all_input_nodes[:2], node))
    if node.args[4] or out.dtype not in _ACCUMULATED or not tokens.numel() or out.dim() != 2:
        return None
    if any(x._has_symbolic_sizes_strides for x in (rows, tokens, out)):
        return None
    gpu = out.device.type == "cuda"
    if gpu and torch.are_deterministic_algorithms_enabled():
        return None
    total = only_user(node)
    base = None if total is None else _base(total, node)
    if base is not None and total is not None:
        return _Match(total, base)
    return _Match(node, None) if gpu else None


def _base(total: Node, node: Node) -> Node | None:
    """What the gradient is added to in `total`, a matrix of its kind that nobody else reads."""
    if total.target is not aten.add.Tensor or total.kwargs or len(total.args) != 2:
        return None
    base = total.args[0] if total.args[1] is node else total.args[1]
    if not isinstance(base, Node) or base.op != "call_function" or only_user(base) is not total:
        return None
    x, out = tensor(base), tensor(total)
    alike = x.shape == out.shape and x.dtype == out.dtype and same_strides(x, out)
    return base if alike and view_chain(base)[-1].op == "call_function" else None


class _Rows:
    """The operands of one gradient, and nodes behind them."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.like = graph, node
        self.out = tensor(node)
        self.wide = _ACCUMULATED[self.out.dtype]
        rows, tokens = node.args[0], node.args[1]
        assert isinstance(rows, Node) and isinstance(tokens, Node)
        self.count, self.width = tensor(tokens).numel(), self.out.shape[1]
        self.tokens = self._flat(tokens, [self.count])
        self.rows = self._wide(self._masked(self._flat(rows, [self.count, self.width]),
                                            arg(node, 3, "padding_idx", -1)))  # fmt: skip

    def new(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return new_node(self.graph, target, args, kwargs, like=self.like)

    def _flat(self, x: Node, shape: list[int]) -> Node:
        if not tensor(x).is_contiguous():
            x = self.new(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self.new(aten.view.default, x, shape)

    def _masked(self, rows: Node, padding: int) -> Node:
        """Rows of the padding count nothing."""
        if padding < 0:
            return rows
        hit = self.new(aten.eq.Scalar, self.new(aten.unsqueeze.default, self.tokens, 1), padding)
        return self.new(aten.where.self, hit, self.full([], self.out.dtype), rows)

    def _wide(self, rows: Node) -> Node:
        return self._cast(rows, self.wide)

    def narrow(self, x: Node) -> Node:
        return self._cast(x, self.out.dtype)

    def _cast(self, x: Node, dtype: torch.dtype) -> Node:
        same = tensor(x).dtype is dtype
        return x if same else self.new(aten._to_copy.default, x, dtype=dtype)

    def full(self, shape: list[int], dtype: torch.dtype) -> Node:
        return self.new(aten.full.default, shape, 0, dtype=dtype, device=self.out.device)

    def add_to(self, target: Node, places: Node) -> Node:
        """`target` with all rows added at their places."""
        return self.new(aten.index_put.default, target, [places], self.rows, True)

    def at_tokens(self) -> Node:
        """For each token, the sum of the rows of all tokens that are equal to it."""
        order = self.new(aten.arange.default, self.count, dtype=torch.int64, device=self.out.device)
        table = self.full([self.out.shape[0]], torch.int64)
        table = self.new(aten.index_put.default, table, [self.tokens], order)
        place = self.new(aten.index.Tensor, table, [self.tokens])
        sums = self.add_to(self.full([self.count, self.width], self.wide), place)
        return self.narrow(self.new(aten.index.Tensor, sums, [place]))


def _written(rows: _Rows, found: _Match) -> Node:
    shape = list(rows.out.shape)
    if found.base is None and (rows.wide is rows.out.dtype or rows.out.numel() <= _SMALL):
        return rows.narrow(rows.add_to(rows.full(shape, rows.wide), rows.tokens))
    base = rows.full(shape, rows.out.dtype) if found.base is None else found.base
    values = rows.at_tokens()
    if found.base is not None:
        old = rows.new(aten.index.Tensor, base, [rows.tokens])
        values = rows.new(aten.add.Tensor, old, values)
    return rows.new(aten.index_put.default, base, [rows.tokens], values)
