"""Rows of what matrix products read begin at addresses for which cuBLAS has fast kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rewrite_graphs import BF16, aten, graph_of, run_on_cpu
from torch import Tensor
from torch.fx import Graph

import torchweld
from torchweld.base.config import current
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.graph.rewrites.aligned import PRODUCTS
from torchweld.ir.graph import VAL, GraphPair
from torchweld.ir.program import Call
from torchweld.lower.run import lower

ODD = 5001
SHAPES = ((4, 256, ODD), (1024, 64), (ODD, 64))


def gradients(scores: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """What a linear layer of odd width does with the gradient of its result."""
    g = (scores.float() * 2).to(scores.dtype).view(-1, scores.shape[-1])
    return g @ w, g.t() @ x, g.sum(0)


def odd_rows(graph: Graph) -> list[tuple[int, ...]]:
    """The strides of the operands of products whose rows do not begin at multiples of 16 bytes."""
    operands = [n.args[i].meta[VAL] for n in graph.nodes if n.target in PRODUCTS
                for i in PRODUCTS[n.target]]  # fmt: skip
    return [x.stride() for x in operands if any(s > 1 and s % 8 for s in x.stride())]


def test_what_a_loop_writes_for_products_gets_longer_rows() -> None:
    graph = graph_of(gradients, *SHAPES)
    assert odd_rows(graph) == []
    program = generate(fuse(lower(GraphPair(graph, (), (None,) * 3)), current()))
    calls = [s for s in program.steps if isinstance(s, Call)]
    read = [program.tensors[a.tensor] for c in calls for a in c.args]
    wide = [t for t in read if 1024 in t.sizes and max(t.sizes) >= ODD - 1]
    assert {t.strides for t in wide} == {(5056, 1), (1, 5056)}


def test_what_is_left_of_a_sum_is_a_product_of_its_own() -> None:
    graph = graph_of(lambda g, w: (g * 2) @ w, (1024, ODD), (ODD, 64))
    (large,) = graph.find_nodes(op="call_function", target=aten.addmm.default)
    (small,) = graph.find_nodes(op="call_function", target=aten.mm.default)
    assert large.args[0] is small
    assert small.args[0].meta[VAL].shape[1] == 1
    assert large.args[1].meta[VAL].shape[1] == ODD - 1


def test_the_values_are_the_same() -> None:
    args = [torch.randn(s).to(BF16) for s in SHAPES]
    found = run_on_cpu(graph_of(gradients, *SHAPES), *args)
    torch.testing.assert_close(found, gradients(*args)[0], rtol=0.02, atol=0.5)


@pytest.mark.parametrize("case", ["an output", "f32", "even", "an input", "small"])
def test_all_else_keeps_its_rows(case: str) -> None:
    def fn(s: Tensor, x: Tensor, w: Tensor) -> Any:
        y = s if case == "an input" else s * 2
        return y.view(-1, y.shape[-1]) @ w, (y if case == "an output" else x)

    columns = 5008 if case == "even" else ODD
    dtype = torch.float32 if case == "f32" else BF16
    rows = 4 if case == "small" else 256
    graph = graph_of(fn, *(((4, rows, columns), dtype), ((4 * rows, 64), dtype),
                           ((columns, 64), dtype)))  # fmt: skip
    (product,) = [n for n in graph.nodes if n.target is aten.mm.default]
    left: Any = product.args[0]
    assert left.meta[VAL].stride() == (columns, 1)


def test_a_matrix_times_itself_is_compiled():
    torchweld.reset()
    x = torch.randn(4, 4)
    torch.testing.assert_close(torchweld.compile(lambda x: x @ x)(x), x @ x)
    assert torchweld.statistics()["internal_errors"] == 0
