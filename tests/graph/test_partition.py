"""What a forward graph saves for its backward, and what backward graphs compute again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_capture import capture

from torchweld.base.config import Config
from torchweld.graph.backward import backward
from torchweld.graph.joint import joint
from torchweld.graph.mincut import INFINITE, Network
from torchweld.ir.graph import VAL

CHECKED = replace(Config(), verify=True)
X = torch.randn(4, 6).requires_grad_()
W = torch.randn(6, 6).requires_grad_()


def parts_of(fn, *inputs):
    return joint(capture(fn, *inputs), CHECKED)


def saved(parts):
    return [str(n.target) for n in parts.saved]


def operators(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def test_chain_of_cheap_operators_saves_nothing_but_its_input():
    parts = parts_of(lambda x: (x * x).sin().exp().sum(), X)
    assert (parts.kept_inputs, parts.saved) == ((0,), ())


def test_backward_computes_again_what_it_needs():
    parts = parts_of(lambda x: (x * x).sin().sum(), X)
    made = operators(backward(parts, [True], CHECKED).pair.forward)
    assert made.count("aten.mul.Tensor") >= 2 and "aten.cos.default" in made


def test_product_is_saved_not_computed_again():
    parts = parts_of(lambda x, w: (x @ w).sin().exp().sum(), X, W)
    assert saved(parts) == ["aten.mm.default"]


def test_operand_of_a_product_is_saved_not_written_twice():
    parts = parts_of(lambda x, w: F.gelu(x @ w) @ w, X, W)
    assert saved(parts) == ["aten.mm.default", "aten.gelu.default"]


def test_mask_is_saved_instead_of_what_it_was_made_of():
    def fn(x, w):
        y = x @ w
        return torch.where(y.cumsum(0) > 0, x, 0.0)

    parts = parts_of(fn, X, W)
    assert [n.meta[VAL].dtype for n in parts.saved] == [torch.bool]


def test_random_numbers_are_saved():
    parts = parts_of(lambda x: F.dropout(x, 0.5), X)
    made = operators(backward(parts, [True], CHECKED).pair.forward)
    assert "aten.bernoulli.p" in saved(parts) or "aten.div.Scalar" in saved(parts)
    assert not any("bernoulli" in name for name in made)


def test_input_that_eager_does_not_keep_is_not_read_later():
    parts = parts_of(lambda x, b: F.gelu(x + b), X, torch.randn(6).requires_grad_())
    assert parts.kept_inputs == () and len(parts.saved) == 1


def test_weights_that_eager_keeps_are_not_copied():
    parts = parts_of(lambda x, w: x @ w, X, W)
    assert (parts.kept_inputs, parts.saved) == ((0, 1), ())


def test_result_that_eager_keeps_is_read_as_it_is():
    parts = parts_of(lambda x: x.exp(), X)
    assert (parts.kept_results, parts.saved) == ((0,), ())


def test_absent_gradient_leaves_its_branch_out():
    parts = parts_of(lambda x, w: (x.exp(), w.sin()), X, W)
    made = backward(parts, [True, False], CHECKED)
    assert made.gradients == (0, None)
    assert "aten.cos.default" not in operators(made.pair.forward)


def test_absent_part_of_a_sum_is_left_out():
    parts = parts_of(lambda x: (x * 2, x.sin()), X)
    made = backward(parts, [True, False], CHECKED)
    assert operators(made.pair.forward) == ["aten.mul.Tensor"]


def test_backward_nodes_have_the_line_of_their_forward():
    def line(x, w):
        y = x @ w
        return F.gelu(y)

    parts = parts_of(line, X, W)
    (node,) = [n for n in parts.graph.nodes if "gelu_backward" in str(n.target)]
    assert node.meta["origin"] == "gelu"


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 6).flatmap(lambda n: st.tuples(
    st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1),
                                   st.integers(1, 9)), max_size=14))))  # fmt: skip
def test_cut_is_the_cheapest(network):
    n, edges = network
    made = Network()
    for _ in range(n):
        made.node()
    for a, b, c in edges:
        made.edge(a, b, c)
    side = made.sink_side(0, n - 1)

    def cost(sink):
        return sum(c for a, b, c in edges if a not in sink and b in sink)

    inner = range(1, n - 1)
    all_sides = [{n - 1, *chosen} for k in range(n - 1)
                 for chosen in itertools.combinations(inner, k)]  # fmt: skip
    assert cost(side) == min(map(cost, all_sides)) < INFINITE
    assert n - 1 in side and 0 not in side


def blocks(x, *weights):
    for w in weights:
        y = F.layer_norm(x, (6,))
        y = F.scaled_dot_product_attention(y[None], y[None], y[None])[0]
        x = x + F.gelu(y @ w) @ w.t()
    return x.sum()


def saved_bytes(parts):
    return sum(n.meta[VAL].numel() * n.meta[VAL].element_size() for n in parts.saved)


def test_a_smaller_budget_saves_fewer_bytes():
    gm = capture(blocks, X, W, W + 1, W + 2)
    sizes = [saved_bytes(joint(gm, replace(CHECKED, memory_budget=b / 8))) for b in range(9)]
    assert sizes == sorted(sizes) and len(set(sizes)) > 3
    for b, size in enumerate(sizes):
        assert size <= sizes[0] + (sizes[-1] - sizes[0]) * b / 8
    assert sizes[0] == 0 and sizes[-1] == saved_bytes(joint(gm, CHECKED))


def test_random_numbers_are_saved_whatever_the_budget():
    parts = joint(capture(lambda x: F.dropout(x.sin(), 0.5).exp(), X),
                  replace(CHECKED, memory_budget=0.0))  # fmt: skip
    made = operators(backward(parts, [True], CHECKED).pair.forward)
    assert saved(parts) and not any("bernoulli" in name for name in made)
