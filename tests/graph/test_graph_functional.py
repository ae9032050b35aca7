"""Programs with in-place operators, views and aliases: the functional graph against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_capture import capture, compare, targets

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.graph.run import normalize

X = torch.randn(4, 6)


def test_mlp_becomes_addmm_relu_softmax():
    w, b = torch.randn(3, 6), torch.randn(3)
    pair = compare(lambda x, w, b: F.softmax(F.relu(F.linear(x, w, b)), -1), X, w, b)
    assert targets(pair) == [
        "aten.t.default", "aten.addmm.default", "aten.relu.default", "aten._softmax.default"
    ]  # fmt: skip
    assert pair.mutated == () and pair.aliases == (None,)


def test_in_place_chain_on_a_temporary_is_functional():
    pair = compare(lambda x: (x * 2).add_(1).relu_(), X)
    assert targets(pair) == ["aten.mul.Tensor", "aten.add.Tensor", "aten.relu.default"]


def test_input_changed_in_place_is_updated_and_returned_as_itself():
    pair = compare(lambda x: x.add_(1), X)
    assert pair.mutated == (0,) and pair.aliases == (0,)


def test_input_changed_through_a_view_is_updated():
    def fn(x):
        y = x.t()
        y[0].mul_(2)
        return y

    pair = compare(fn, X)
    assert pair.mutated == (0,) and pair.aliases == (0,)


def test_slice_assignment_into_a_fresh_tensor():
    def fn(x):
        y = torch.zeros(4, 6)
        y[:, 1] = x[:, 2]
        y[1:3] = 5.0
        y[0, ::2] += x[0, ::2]
        return y, y[0]

    compare(fn, X)


def test_mask_and_index_assignment():
    def fn(x, i):
        y = x.clone()
        y[x > 0] = 0.0
        y[i] = x[0]
        y.masked_fill_(x < -1, 3.0)
        return y

    compare(fn, X, torch.tensor([1, 3]))


def test_copy_into_a_tensor_of_other_dtype_and_shape():
    def fn(x):
        y = torch.ones(3, 4, 6, dtype=torch.float64)
        y.copy_(x)
        z = torch.ones(6, 4).t()
        z.copy_(x)
        return y, z

    compare(fn, X)


def test_copied_tensor_does_not_alias_its_source():
    def fn(x):
        y = torch.empty(4, 6)
        y.copy_(x)
        return y

    assert compare(fn, X).aliases == (None,)


def test_input_overwritten_by_another_input():
    def fn(x, y):
        x.copy_(y)
        return x.t(), y, x

    compare(fn, X, torch.randn(4, 6))


def test_two_inputs_swapped_through_copies():
    def fn(x, y):
        t = x.clone()
        x.copy_(y)
        y.copy_(t)
        return t

    assert compare(fn, X, torch.randn(4, 6)).mutated == (0, 1)


def test_old_value_of_a_mutated_input_is_returned():
    def fn(x):
        old = x.clone()
        x.zero_()
        return old, x + 1

    compare(fn, X)


def test_views_and_detached_inputs_are_aliases():
    def fn(x):
        return x.detach(), x, x.clone(), x.contiguous(), x.view(2, 12), x[1], x.expand(2, 4, 6)

    assert compare(fn, X).aliases == (0, 0, None, 0, 0, 0, 0)


@pytest.mark.parametrize("fn", [
    lambda x: torch.unsafe_split(x, 2), lambda x: x.unsafe_chunk(2, dim=1),
    lambda x: torch.unsafe_split_with_sizes(x, split_sizes=[1, 3]),
])  # fmt: skip
def test_unsafe_splits_share_memory_as_in_eager(fn):
    pair = compare(fn, X)
    assert set(pair.aliases) == {0}


def test_write_to_a_part_of_an_unsafe_split_reaches_the_input():
    pair = compare(lambda x: x.unsafe_split(2)[1].add_(1), X)
    assert pair.mutated == (0,)


def test_outputs_that_are_views_of_each_other_share_memory():
    def fn(x):
        y = x * 2
        return y, y.t(), y[1], y.detach(), y.view(-1)

    compare(fn, X)


def test_views_of_a_tensor_that_is_not_returned_share_memory():
    compare(lambda x: tuple((x * 2).chunk(3, 1)), X)


def test_views_still_share_memory_after_one_is_changed():
    def fn(x):
        a, b = (x * 2).chunk(2, 1)
        a.add_(1)
        return a, b

    compare(fn, X)


def test_equal_outputs_do_not_share_memory():
    compare(lambda x: (x + 1, x + 1, (x + 1).t()), X)


def test_same_object_returned_twice_is_one_object():
    def fn(x):
        y = x.exp()
        return y, y

    compare(fn, X)


def test_group_of_views_equal_to_another_group_gets_its_own_memory():
    def fn(x):
        a, b = x + 1, x + 1
        return a, a.t(), b, b.t()

    compare(fn, X)


def test_base_changed_after_a_view_was_taken():
    def fn(x):
        y = x.clone()
        v = y[:, 1:3]
        y.mul_(3)
        v.sub_(1)
        return v * 1, y

    compare(fn, X)


def test_in_place_on_transposed_keeps_strides():
    compare(lambda x: (x.t() * 2).add_(1), X)
    compare(lambda x: x.t().contiguous().t().mul(2), X)


def test_in_place_on_slice_of_a_fresh_tensor_keeps_strides():
    compare(lambda x: (x * 2)[:, ::2].add_(1), X)


def test_out_argument_is_an_updated_input():
    pair = compare(lambda x, y: torch.add(x, 1, out=y), X, torch.empty(4, 6))
    assert pair.mutated == (1,) and pair.aliases == (1,)


def test_out_argument_that_is_a_temporary():
    compare(lambda x: torch.mm(x, x.t(), out=torch.empty(4, 4)), X)


def test_several_results():
    def fn(x):
        v, i = x.max(dim=1)
        s, j = torch.sort(x, dim=0)
        return v, i, s, j, *torch.var_mean(x, 1), *x.unbind(0)

    compare(fn, X)


def test_in_place_promotion_keeps_dtype():
    compare(lambda x: x.to(torch.bfloat16).add_(torch.ones(6)).float(), X)


def test_metadata_changes_of_a_temporary():
    compare(lambda x: (x * 2).t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1) + 1, X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.t_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.resize_(2, 2),
        lambda x: x.set_(torch.zeros(3)),
        lambda x: (x * 2).requires_grad_(),
    ],
)
def test_change_of_what_an_input_is_is_refused(fn):
    with pytest.raises(Unsupported, match="W201"):
        normalize(capture(fn, torch.randn(4, 6)), Config())


def test_changed_input_that_shares_memory_with_another_is_refused():
    x = torch.randn(4, 6)
    with pytest.raises(Unsupported, match="share memory"):
        normalize(capture(lambda a, b: a.add_(b.sum()), x, x[0]), Config())


def test_unchanged_inputs_may_share_memory():
    x = torch.randn(4, 6)
    assert normalize(capture(lambda a, b: a + b, x, x[0]), Config()).mutated == ()


def test_value_of_a_tensor_and_data_dependent_shape_are_refused():
    gm = capture(lambda x: x * 2, X)
    gm.graph.erase_node(gm.graph.output_node())
    last = list(gm.graph.nodes)[-1]
    gm.graph.output((gm.graph.call_method("nonzero", (last,)),))
    with pytest.raises(Unsupported, match="W105"):
        normalize(gm, Config())


def test_as_strided_of_a_temporary():
    compare(lambda x: (x.t() * 2).as_strided((2, 2), (4, 1), 3) * 1, X)


def test_as_strided_of_memory_that_was_laid_out_anew_is_refused():
    def fn(x):
        y = torch.zeros(6, 4).t()
        y.mul_(x)  # the functional product is contiguous
        return y.as_strided((2, 2), (4, 1)) * 1

    try:
        compare(fn, X)
    except Unsupported as error:
        assert "laid out anew" in error.why


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.as_strided((3, 2), (2, 1), 1) + 1,
        lambda x: x[1:].as_strided((3, 2), (2, 1), 1) + 1,
        lambda x: (x * 2).as_strided((3, 2), (2, 1), 1).add_(1),
    ],
)
def test_as_strided_of_an_input_and_writes_through_it_are_refused(fn):
    with pytest.raises(Unsupported, match="as_strided"):
        normalize(capture(fn, X), Config())


def test_constants_of_the_program_are_operators():
    def fn(x):
        a = torch.tensor([1.0, 2, -0.0, 4, float("nan"), float("inf")])
        return x + a, x[torch.tensor([0, 2, 3])], x * torch.tensor(2.5), torch.tensor([[1], [2]])

    compare(fn, X)


def test_index_with_lists():
    compare(lambda x: x[[0, 2], [1, 1]] + x[[0, 1, 2, 3]].sum(), X)


def test_no_inputs():
    compare(lambda: torch.arange(5) * 2)


@pytest.mark.parametrize("method", ["mul_", "logit_", "div_"])
def test_in_place_operator_that_eager_refuses_is_refused(method):
    n = torch.ones(3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="cast"):
        getattr(n.clone(), method)(1.5)
    gm = capture(lambda n: n, n)
    gm.graph.erase_node(gm.graph.output_node())
    (node,) = gm.graph.nodes
    gm.graph.output((gm.graph.call_method(method, (node, 1.5)),))
    with pytest.raises(Unsupported, match="W201"):
        normalize(gm, Config())


def test_integer_tensor_takes_float_values_by_copy():
    def fn(n, x):
        n.copy_(x)
        n[0] = 2.7
        return n

    compare(fn, torch.ones(4, 6, dtype=torch.int64), X)


def test_reshape_of_a_changed_strided_input_copies_as_in_eager():
    def fn(x):
        x.masked_fill_(x > 0, 0.0)
        return x.contiguous(), x.reshape(-1)

    compare(fn, torch.randn(6, 4).t())


def test_changed_input_with_gaps_keeps_its_aliases_or_is_refused():
    def fn(x):
        x.add_(1)
        return x.contiguous()

    with pytest.raises(Unsupported, match="eager makes a copy"):
        compare(fn, torch.randn(4, 12)[:, ::2])


def test_as_strided_copy_of_a_written_input_reads_the_memory_as_eager_does():
    def fn(x):
        x.mul_(3)
        return torch.as_strided_copy(x, (2,), (3,))

    def strided():
        return torch.arange(12)[::3]

    import torchweld

    with torch.no_grad():
        assert torch.equal(torchweld.compile(fn)(strided()), fn(strided()))
