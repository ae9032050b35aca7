"""torch.utils.checkpoint with gradients: a node whose graph runs again for the backward."""

import contextlib
import functools

import pytest
import torch
from gradient_twin import check
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import torchweld

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
LAYERS = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_function_runs_again_for_the_backward(reentrant):
    torchweld.reset()
    compiled = torchweld.compile(
        lambda x: checkpoint(lambda a: a.sin().exp(), x, use_reentrant=reentrant) * 2,
        backend="eager", fullgraph=True)  # fmt: skip
    y = compiled(X)
    with Counting() as mode:
        y.sum().backward()
    assert mode.seen.count(torch.ops.aten.sin.default) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_modules_constants_and_several_results(reentrant):
    check(lambda m, x: checkpoint(m, x, use_reentrant=reentrant) * 2, LAYERS, X)
    check(lambda x: checkpoint(lambda a, k, b: (a * k + b, a), x, 3, x * 2,
                               use_reentrant=reentrant)[0], X)  # fmt: skip


def saved_bytes(fn, *args):
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(
            lambda x: (seen.append(x.untyped_storage().nbytes()), x)[1], lambda x: x):  # fmt: skip
        fn(*args)
    return sum(seen)


def test_compiled_code_keeps_less():
    def chain(x, w):
        for _ in range(3):
            x = (x @ w).sin()
        return x

    x = torch.randn(16, 8)
    w = (torch.randn(8, 8) * 0.1).requires_grad_()
    torchweld.reset()
    plain = torchweld.compile(chain)
    less = torchweld.compile(lambda x, w: checkpoint(chain, x, w, use_reentrant=False))
    for f in (plain, less):
        f(x, w)
    assert torchweld.statistics()["aten_graphs"] == 0
    assert saved_bytes(less, x, w) < saved_bytes(plain, x, w) / 2
    check(lambda x, w: checkpoint(chain, x, w, use_reentrant=False) * 2, x, w)


def test_keywords():
    check(lambda x: checkpoint(lambda a, k=1: a.sin() * k, x, use_reentrant=False, k=3) * 2, X)


@pytest.mark.parametrize("reentrant", [False, True])
def test_random_numbers_are_the_same_again(reentrant):
    def dropped(x):
        return checkpoint(lambda a: nn.functional.dropout(a.exp(), 0.5), x, use_reentrant=reentrant)

    check(dropped, X)


def test_layers_one_after_the_other():
    check(lambda m, x: checkpoint_sequential(m, 2, x, use_reentrant=False) + 1, LAYERS, X)


def test_what_happens_twice_in_eager_is_left_to_eager():
    calls = []
    norm = nn.BatchNorm1d(4)

    def noted(a):
        calls.append(1)
        return a.sin()

    check(lambda x: checkpoint(noted, x, use_reentrant=False) * 2 + 1 - x, X, breaks=1)
    calls.clear()
    torchweld.compile(lambda x: checkpoint(noted, x, use_reentrant=False))(X).sum().backward()
    assert len(calls) == 2
    check(lambda m, x: checkpoint(m, x, use_reentrant=False).sin() + x - 1, norm, X, graphs=1,
          breaks=1)  # fmt: skip
    torchweld.compile(lambda x: checkpoint(norm, x, use_reentrant=False))(X).sum().backward()
    assert norm.num_batches_tracked == 2


def saved_shapes(fn, *args):
    fn(*args)  # compiles it, which saves too
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(
            lambda x: (seen.append(tuple(x.shape)), x)[1], lambda x: x):  # fmt: skip
        fn(*args)
    return sorted(seen)


MM = torch.ops.aten.mm.default


def keeps_products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op == MM else CheckpointPolicy.PREFER_RECOMPUTE


def keeps_every_other_product():
    """As libraries do: what the policy counts is made anew for each call."""
    counts = {"products": 0}

    def policy(ctx, op, *args, **kwargs):
        counts["products"] += op is MM
        return op is MM and counts["products"] % 2 == 1

    return create_selective_checkpoint_contexts(policy)


def block(x, w, v):
    return (((x @ w).sin() @ v).sin() @ v).sin()


def selected(contexts):
    return lambda x, w, v: checkpoint(block, x, w, v, use_reentrant=False, context_fn=contexts)


SIZES = tuple(torch.randn(n, m).double().requires_grad_() for n, m in ((16, 4), (4, 6), (6, 6)))


def test_a_policy_says_which_results_are_kept():
    contexts = functools.partial(create_selective_checkpoint_contexts, keeps_products)
    check(selected(contexts), *SIZES)
    shapes = saved_shapes(torchweld.compile(selected(contexts)), *SIZES)
    assert shapes.count((16, 6)) == 3  # and no more than the products
    assert torchweld.statistics()["aten_graphs"] == 0
    plain = saved_shapes(torchweld.compile(selected(noop_context_fn)), *SIZES)
    assert (16, 6) not in plain


def test_a_list_of_operators_and_a_policy_made_in_the_frame():
    operators = [MM]
    check(selected(lambda: create_selective_checkpoint_contexts(operators)), *SIZES)
    f = torchweld.compile(selected(lambda: create_selective_checkpoint_contexts([MM])))
    assert saved_shapes(f, *SIZES).count((16, 6)) == 3


def test_a_policy_that_counts():
    check(selected(keeps_every_other_product), *SIZES, like={"torchweld": block})
    f = torchweld.compile(selected(keeps_every_other_product))
    assert saved_shapes(f, *SIZES).count((16, 6)) == 2


def test_what_is_cheap_is_kept_if_the_policy_says_so():
    def chain(x):
        return x.sin().exp().cos()

    def keeps(op):
        contexts = functools.partial(create_selective_checkpoint_contexts, [op])
        return lambda x: checkpoint(chain, x * 2, use_reentrant=False, context_fn=contexts)

    check(keeps(torch.ops.aten.exp.default), X)
    none = saved_shapes(torchweld.compile(keeps(MM)), X)
    one = saved_shapes(torchweld.compile(keeps(torch.ops.aten.exp.default)), X)
    assert len(one) == len(none) + 1


def test_the_policy_counts_where_the_graph_runs_in_aten():
    contexts = functools.partial(create_selective_checkpoint_contexts, keeps_products)
    torchweld.reset()
    f = torchweld.compile(selected(contexts), backend="eager", fullgraph=True)
    counts = []
    for g in (f, selected(contexts), selected(noop_context_fn)):
        y = g(*SIZES)
        with Counting() as mode:
            y.sum().backward()
        counts.append(mode.seen.count(MM))
    assert counts[0] == counts[1] < counts[2]


def test_contexts_of_ones_own():
    def nothing():
        return contextlib.nullcontext(), contextlib.nullcontext()

    def timed():
        return Counting(), contextlib.nullcontext()

    def with_contexts(contexts):
        return lambda x: checkpoint(lambda a: a.sin(), x, use_reentrant=False,
                                    context_fn=contexts) * 2 + x - 1  # fmt: skip

    check(with_contexts(nothing), X)
    check(with_contexts(timed), X, breaks=1)


@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_an_argument_that_is_written_before_the_backward_is_eagers_error(backend):
    def fn(x):
        a = x * 1
        y = checkpoint(lambda q: q.sin() * 2, a, use_reentrant=False)
        a.mul_(2)
        return y

    torchweld.reset()
    y = torchweld.compile(fn, backend=backend, fullgraph=True)(X)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_tensor_of_the_closure_may_be_written_before_the_backward():
    def fn(x):
        a = x * 1
        y = checkpoint(lambda: a.sin() * 2, use_reentrant=False)
        a.mul_(2)
        return y

    check(fn, X)
