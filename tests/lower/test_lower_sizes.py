"""Operators on tensors of symbolic sizes: one compilation, eager's results at every size."""

import pytest
import torch
from sized_lower import check, compiled
from torch import randn

from torchweld.ir.loop import Extern

CHOICES = ((4, 16), (2, 7), (3, 33), (5, 3), (17, 64))
BOTH = {0: "b", 1: "s"}


def one(b, s):
    return [randn(b, s, 24)]


def flat(t, x):
    return t("view.default", x, [x.shape[0] * x.shape[1], 24])


# name -> what it computes of one tensor [b, s, 24]; none of it is left to ATen
IN_KERNELS = {
    "exp": lambda t, x: t("exp.default", x),
    "gelu": lambda t, x: t("gelu.default", x),
    "broadcasting": lambda t, x: t("add.Tensor", t("select.int", x, 0, 0), x),
    "softmax": lambda t, x: t("_softmax.default", x, -1, False),
    "softmax over a symbolic dimension": lambda t, x: t("_softmax.default", x, 1, False),
    "log_softmax": lambda t, x: t("_log_softmax.default", x, 1, False),
    "sum": lambda t, x: t("sum.dim_IntList", x, [0, 1]),
    "mean": lambda t, x: t("mean.dim", x, [1], True),
    "variance": lambda t, x: t("var.correction", x, [1], correction=1),
    "norm": lambda t, x: t("linalg_vector_norm.default", x, 2, [1]),
    "argmax": lambda t, x: t("argmax.default", x, 1),
    "amax": lambda t, x: t("amax.default", x, [1]),
    "cumsum": lambda t, x: t("cumsum.default", x, 1),
    "flattened": lambda t, x: t("mul.Tensor", flat(t, x), 2.0),
    "flattened and back": lambda t, x: t(
        "view.default", t("mul.Tensor", flat(t, x), 2.0), list(x.shape)),
    "all in one dimension": lambda t, x: t("mul.Tensor", t("view.default", x, [-1]), 2.0),
    "heads": lambda t, x: t("mul.Tensor", t("permute.default", t(
        "view.default", x, [x.shape[0], x.shape[1], 4, 6]), [0, 2, 1, 3]), 2.0),
    "expand": lambda t, x: t("add.Tensor", t(
        "expand.default", t("slice.Tensor", x, 1, 0, 1), [-1, x.shape[1], -1]), x),
    "slice": lambda t, x: t("mul.Tensor", t("slice.Tensor", x, 1, 1, 2**63 - 1), 2.0),
    "slice before the end": lambda t, x: t("mul.Tensor", t("slice.Tensor", x, 1, 0, -1), 2.0),
    "slice with steps": lambda t, x: t("mul.Tensor", t("slice.Tensor", x, 1, 0, 2**63 - 1, 2), 2.0),
    "last": lambda t, x: t("mul.Tensor", t("select.int", x, 1, -1), 2.0),
    "split": lambda t, x: t("mul.Tensor", t(
        "split_with_sizes.default", x, [1, x.shape[1] - 1], 1)[1], 2.0),
    "cat": lambda t, x: t("cat.default", [x, t("mul.Tensor", x, 2.0)], 1),
    "stack": lambda t, x: t("stack.default", [x, t("mul.Tensor", x, 2.0)], 1),
    "repeat": lambda t, x: t("repeat.default", x, [1, 2, 1]),
    "flip": lambda t, x: t("flip.default", x, [1]),
    "roll": lambda t, x: t("roll.default", x, [1], [1]),
    "arange": lambda t, x: t("add.Tensor", t("arange.start_step", 0, x.shape[1] * 24, 24), t(
        "select.int", t("select.int", x, 0, 0), 1, 0)),
    "tril": lambda t, x: t("tril.default", t("permute.default", x, [2, 0, 1])),
    "full": lambda t, x: t(
        "add.Tensor", t("full.default", [x.shape[0], x.shape[1], 1], 2.0), x),
    "a size as a number": lambda t, x: t("mul.Tensor", x, x.shape[1]),
    "a root of a size": lambda t, x: t("div.Tensor", x, (x.shape[1] + 1) ** 0.5),
    "where": lambda t, x: t("where.self", t("gt.Scalar", x, 0.0), x, t("neg.default", x)),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_KERNELS)
def test_an_operator_is_a_kernel_for_all_sizes(name):
    assert check(IN_KERNELS[name], one, [BOTH], CHOICES) == []


def test_a_product_gets_the_sizes_of_the_call():
    def build(t, x, w):
        y = t("mm.default", flat(t, x), w)
        return t("relu.default", t("view.default", y, [x.shape[0], x.shape[1], 8]))

    made = check(build, lambda b, s: [randn(b, s, 24), randn(24, 8)], [BOTH, {}], CHOICES)
    assert made == ["aten.mm.default"]


def test_an_embedding_reads_at_indices_of_any_number():
    def build(t, i, w):
        return t("mul.Tensor", t("embedding.default", w, i), 2.0)

    def make(b, s):
        return [torch.randint(0, 50, (b, s)), randn(50, 24)]

    assert check(build, make, [BOTH, {}], CHOICES) == []


def test_an_index_into_a_symbolic_dimension_is_checked():
    def build(t, x, i):
        return t("index.Tensor", x, [None, i])

    def make(b, s):
        return [randn(b, s, 24), torch.randint(-s, s, (9,))]

    assert check(build, make, [BOTH, {}], CHOICES) == []
    _, run = compiled(build, make(4, 16), [BOTH, {}])
    with pytest.raises(IndexError):
        run(randn(2, 5, 24), torch.full((9,), 5))


def test_positions_up_to_a_size_are_a_part_of_a_table():
    def build(t, x, w):
        return t("add.Tensor", x, t("slice.Tensor", w, 0, 0, x.shape[1]))

    made = check(build, lambda b, s: [randn(b, s, 24), randn(128, 24)], [BOTH, {}], CHOICES)
    assert made == []


def test_a_rule_that_has_to_know_a_number_leaves_the_operator_to_aten():
    def build(t, x):
        return t("topk.default", x, 2, 1)[0]

    assert check(build, one, [BOTH], CHOICES) == ["aten.topk.default"]


def test_a_graph_says_where_its_sizes_are_read():
    g, _ = compiled(IN_KERNELS["exp"], one(4, 16), [BOTH])
    assert [(r.kind, r.input, r.dim) for r in g.readings] == [("size", 0, 0), ("size", 0, 1)]
    assert not any(isinstance(n, Extern) for n in g.nodes)
