"""Division by a number: on a GPU by its reciprocal, as in eager."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_rewrites import graph_of

from torchweld.graph.decomps.division import reciprocal

aten = torch.ops.aten


@pytest.mark.parametrize(("device", "target"), [
    ("cuda:0", aten.mul.Tensor), ("cpu", aten.div.Tensor),
])  # fmt: skip
def test_which_operator_it_is(device: str, target: object) -> None:
    graph = graph_of(lambda x: x / 3.0, ((8,), torch.float32), device=device)
    (node,) = [n for n in graph.nodes if n.op == "call_function"]
    assert node.target is target
    assert node.args[1] == (float(np.float32(1) / np.float32(3)) if device != "cpu" else 3.0)


def test_a_tensor_divisor_is_divided_by() -> None:
    graph = graph_of(lambda x, y: x / y, (8, 8), (8, 8))
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [aten.div.Tensor]


def test_a_number_is_divided_by_a_tensor() -> None:
    graph = graph_of(lambda x: torch.div(1, x), ((8,), torch.float32))
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [aten.div.Tensor]


@pytest.mark.parametrize("x", [3.0, -7.0, 448.0, 0.1, 1e-12, 1e38, 1e-42, 0.0, -0.0, math.inf,
                               1e300])  # fmt: skip
def test_reciprocals_are_those_of_the_type(x: float) -> None:
    with np.errstate(all="ignore"):
        narrow, wide = np.float32(1) / np.float32(x), np.float64(1) / np.float64(x)
    assert (reciprocal(x, wide=False), reciprocal(x, wide=True)) == (float(narrow), float(wide))
    assert math.copysign(1, reciprocal(x, wide=False)) == math.copysign(1, x)
    assert math.isnan(reciprocal(math.nan, wide=False))
