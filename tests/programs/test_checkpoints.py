"""torch.utils.checkpoint with gradients: a node whose graph runs again for the backward."""

import contextlib

import pytest
import torch
from gradient_twin import check
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

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


def test_contexts_of_ones_own_are_left_to_eager():
    def contexts():
        return contextlib.nullcontext(), contextlib.nullcontext()

    check(lambda x: checkpoint(lambda a: a.sin(), x, use_reentrant=False, context_fn=contexts) * 2,
          X, breaks=1)  # fmt: skip
