"""Views, shared memory and changed inputs of functions through which autograd goes."""

from __future__ import annotations

import pytest
import torch
from training_twin import assert_generated, assert_same, check, copied, leaf, newest

import torchweld

X = leaf(4, 6)


def test_view_of_an_input():
    assert_generated(check(lambda x: (x.t(), x.exp()), X))


def test_view_of_an_input_that_requires_no_grad():
    check(lambda x, y: (y.t(), x.exp()), X, torch.randn(2, 3))


def test_only_views_of_an_input():
    made = check(lambda x: (x.t(), x[1:]), X)
    assert made.refusal is None and made.kernels == made.externs == 0


def test_input_itself():
    check(lambda x: (x, x.exp()), X)


def test_results_that_share_memory():
    def fn(x):
        y = x * 2
        return y[:2], y.view(-1), y

    assert_generated(check(fn, X))


def test_views_of_a_tensor_that_is_not_returned():
    def fn(x):
        a, b = (x * 2).chunk(2, 1)
        return a.view(2, 2, 3).transpose(1, 2), b

    assert_generated(check(fn, X))


def test_same_tensor_twice():
    def fn(x):
        y = x.exp()
        return y, y

    got = torchweld.compile(fn)(copied(X))
    assert got[0] is got[1]
    assert_generated(check(fn, X))


def test_result_changed_later_changes_its_views_too():
    def run(f):
        x = copied(X)
        a, b = f(x)
        a.mul_(3)
        b.sum().backward()
        return [a, b, x.grad]

    def fn(x):
        y = x * 2
        return y, y[1:]

    assert_same(run(torchweld.compile(fn)), run(fn))


def test_buffer_is_changed():
    def fn(x, seen):
        seen.add_(1)
        return x.exp()

    assert_generated(check(fn, X, torch.zeros(3)))


def doubled(x, scale):
    scale.mul_(2)
    return x * x * scale


def test_buffer_that_is_changed_and_read():
    assert_generated(check(doubled, X, torch.ones(6)))


def test_second_derivative_starts_from_the_buffer_as_it_was():
    def run(f):
        x, scale = copied(X), torch.ones(6)
        (g,) = torch.autograd.grad(f(x, scale).sum(), x, create_graph=True)
        g.square().sum().backward()
        return [x.grad, scale, g]

    assert_same(run(torchweld.compile(doubled)), run(doubled))


def test_change_of_what_autograd_keeps_is_eagers_error():
    def fn(x, scale):
        y = x * scale
        scale.mul_(2)
        return y

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torchweld.compile(fn)(copied(X), torch.ones(6)).sum().backward()


def test_buffer_as_it_became_may_be_changed_again_before_the_backward():
    x, scale = copied(X), torch.ones(6)
    out = torchweld.compile(doubled)(x, scale)
    scale.zero_()
    (g,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(g, x.detach() * 4)


def test_input_that_requires_grad_is_changed():
    def run(f):
        x = copied(X)
        y = x * 1
        out = f(y)
        out.sum().backward()
        return [x.grad, y, out]

    def fn(y):
        y.mul_(3)
        return y.exp()

    assert_same(run(torchweld.compile(fn)), run(fn))
    assert "requires grad" in newest().refusal.why or "leaf" in newest().refusal.why


def test_buffer_that_gets_a_history():
    def run(f):
        x, b = copied(X), torch.zeros(4, 6)
        f(x, b)
        b.sum().backward()
        return [x.grad, b]

    def fn(x, b):
        b.add_(x * 2)
        return x.detach() + 1

    assert_same(run(torchweld.compile(fn)), run(fn))


def test_intermediate_changed_in_place():
    def fn(x):
        y = x * 2
        y[1] = 3
        y[:, 2:].mul_(x[:, 2:])
        y.relu_()
        return y.exp()

    assert_generated(check(fn, X))


def test_in_place_on_what_is_needed_is_eagers_error():
    def fn(x):
        y = x.exp()
        y.add_(1)
        return y

    def error(f):
        try:
            f(copied(X)).sum().backward()
        except RuntimeError as found:
            return "modified by an inplace operation" in str(found)
        return False

    assert error(fn) and error(torchweld.compile(fn))


def test_inputs_that_share_memory():
    def run(f):
        x = copied(X)
        f(x, x.view(-1)).sum().backward()
        return [x.grad]

    fn = lambda x, y: x.exp().sum() + y.sin()
    assert_same(run(torchweld.compile(fn)), run(fn))


@pytest.mark.parametrize("layout", [
    lambda x: x[:, 0], lambda x: x[:, 1:], lambda x: x[1:, ::2].t(),
    lambda x: x[1:], lambda x: x.t(),
])  # fmt: skip
def test_an_input_with_gaps_that_eager_does_not_keep_is_saved_as_it_is(layout):
    def fn(x):
        return torch.float_power(x, 2.5)  # eager keeps its conversion to f64

    assert_generated(check(fn, layout(torch.rand(5, 6) + 1).detach().requires_grad_()))


def test_a_view_from_no_grad_of_what_is_written_later_is_eagers_error():
    def fn(x):
        y = x * 2
        with torch.no_grad():
            view = y[None]
            y.t()[1:].neg_()
        return view

    torchweld.reset()
    made = torchweld.compile(fn)(X)
    assert torchweld.statistics()["internal_errors"] == 0
    with pytest.raises(RuntimeError, match="was created in no_grad mode"):
        made.sum().backward()


def test_integers_that_got_a_history_leave_the_frame_to_eager():
    n = torch.zeros(3, 2, dtype=torch.long)
    n[-1, ...] = X[0, 0]  # which torch notes although integers have no gradients
    assert n.requires_grad
    torchweld.reset()
    with torch.no_grad():
        assert torch.equal(torchweld.compile(lambda n: n * 2)(n), n * 2)
    assert torchweld.statistics()["internal_errors"] == 0


def test_a_written_input_with_gaps_whose_new_value_the_backward_reads_is_left_to_eager():
    def fn(x):
        x.diagonal().logical_not_()
        return torch.nn.functional.avg_pool2d(x, 3, 2, 1)

    gradients = []
    torchweld.reset()
    for f in (fn, torchweld.compile(fn)):
        x = torch.ones(4, 2, 6, 6, requires_grad=True)
        f(x.clone()[::2]).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert torchweld.statistics()["internal_errors"] == 0
    assert newest().refusal.code == "W205"


def test_an_object_that_is_returned_twice_is_one_object():
    def fn(x):
        y = x.detach()
        return y, y.contiguous(), y.view(y.shape)

    a, b, c = torchweld.compile(fn)(leaf(2, 3))
    assert a is b and a is not c


def test_asking_for_the_history_of_a_view_from_no_grad_that_was_written_is_a_break():
    def fn(x):
        with torch.no_grad():
            view = x.view(-1)
            x[0], x[1] = x[1], x[0]
            return view.detach() * 2, view.is_leaf

    torchweld.reset()
    for f in (fn, torchweld.compile(fn)):
        with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
            f(torch.ones(4, 6, requires_grad=True) * 1)
    counts = torchweld.statistics()  # the second break is where the exception leaves the block
    assert (counts["breaks"], counts["internal_errors"]) == (2, 0)


def test_data_of_an_argument_beside_a_result_with_gradients_is_another_tensor():
    def f(x, w):
        return w.sin(), x.data

    torchweld.reset()
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    got = torchweld.compile(f, fullgraph=True)(x, w)[1]
    assert got is not x and got.data_ptr() == x.data_ptr() and not got._is_view()
    assert torchweld.statistics()["graphs"] == 1


@pytest.mark.parametrize("grad", [True, False])
def test_a_result_that_an_operator_of_aten_makes_as_a_view_inside_is_no_view(grad):
    """Convolutions of one dimension are computed as those of two."""
    module = torch.nn.Conv1d(3, 4, 3).requires_grad_(grad)
    x = torch.randn(2, 3, 10)
    torchweld.reset()
    got, want = torchweld.compile(module)(x), module(x)
    assert got._is_view() == want._is_view() is False
    assert (torchweld.statistics()["graphs"], torchweld.statistics()["externs"]) == (1, 1)
    torch.testing.assert_close(got.relu_(), want.relu_())
    if grad:
        weight = module.weight
        gradients = [torch.autograd.grad(y.square().sum(), weight)[0] for y in (got, want)]
        torch.testing.assert_close(*gradients)


def of_a_view_from_no_grad(x):
    with torch.no_grad():
        view = x[1:]
    return view.sin()


def counted(x):
    return torch.linalg.vector_norm(x, 0)


@pytest.mark.parametrize("fn", [of_a_view_from_no_grad, counted])
def test_a_result_whose_history_leads_to_no_input_requires_grad_all_the_same(fn):
    torchweld.reset()
    x = leaf(4, 6)
    got, want = torchweld.compile(fn, fullgraph=True)(x), fn(x)
    assert (got.requires_grad, got.is_leaf) == (want.requires_grad, want.is_leaf) == (True, False)
    got.sum().backward()
    assert x.grad is None
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["aten_graphs"], counts["kernels"]) == (1, 0, 1)


def test_what_only_dead_code_read_may_be_written_before_a_second_derivative():
    def f(x, rows):
        rows.cos()
        return x.sin()

    torchweld.reset()
    x, rows = leaf(3, 4), torch.ones(2, 4)
    y = torchweld.compile(f, fullgraph=True)(x, rows)
    rows.add_(1)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -x.detach().sin())
