"""Arguments that a function only passes on: nothing about them is guarded but their class."""

from __future__ import annotations

import pytest
import torch
from guard_twin import calls, graphs, same
from torch import nn

import torchweld

X = torch.ones(3)


def rows(n):
    return torch.ones(n, 2)


class Layer(nn.Module):
    """Does nothing with its mask, or something."""

    def __init__(self, looks=False):
        super().__init__()
        self.looks = looks
        self.linear = nn.Linear(3, 3)

    def forward(self, x, mask):
        x = self.linear(x)
        return x * mask.shape[0] if self.looks else x


def passes(x, mask):
    other = mask
    return [x * 2, other]


@pytest.mark.parametrize("dynamic", [None, False])
def test_sizes_of_a_tensor_that_is_passed_on_do_not_matter(dynamic):
    calls(passes, *((X, rows(n)) for n in (4, 6, 1, 0)), made=1, dynamic=dynamic)


def test_neither_do_its_dtype_and_strides():
    masks = (rows(4), rows(4).t(), rows(4).long(), rows(4)[:, 0])
    calls(passes, *((X, mask) for mask in masks), made=1)


def test_its_class_does():
    calls(passes, (X, rows(2)), (X, None), (X, nn.Parameter(rows(2))), (X, rows(3)), made=3)


def test_a_tensor_that_is_asked_for_its_shape_is_guarded():
    calls(lambda x, y: x * y.shape[0], *((X, rows(n)) for n in (2, 3)), made=2, dynamic=False)


def test_an_argument_that_all_layers_ignore_is_no_input():
    model = nn.ModuleList(Layer() for _ in range(4))

    def run(x, mask):
        for layer in model:
            x = layer(x, mask)
        return x

    calls(run, *((X, rows(n)) for n in (4, 6, 8)), made=1, dynamic=False)


def test_a_layer_that_is_copied_looks_at_what_the_first_one_looked_at():
    layers = nn.ModuleList(Layer(looks=True) for _ in range(2))
    torchweld.reset()

    def run(x, first, second):
        return layers[1](layers[0](x, first), second)

    compiled = torchweld.compile(run, backend="eager", dynamic=False)
    for n in (4, 5):
        same(compiled(X, rows(4), rows(n)), run(X, rows(4), rows(n)))
    assert graphs() == 2


def test_the_same_tensor_twice_is_one_input():
    def f(x, y):
        return x.add_(1), y

    for other in (X.clone(), None):
        a, b = X.clone(), X.clone()
        compiled = torchweld.compile(f)
        got = compiled(a, a if other is None else other)
        expected = f(b, b if other is None else other.clone())
        torch.testing.assert_close(got, expected)
