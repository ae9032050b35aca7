"""What torch's own Python functions call, when it is replaced while compiled code exists."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from guard_twin import called_until_settled, changed, graphs, same
from torch import nn

import torchweld

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)

LEAVES = {
    "softmax": (lambda x: F.softmax(x), F, "_get_softmax_dim", lambda name, n, level: 0),
    "layer_norm": (nn.LayerNorm(3), torch, "layer_norm", lambda x, *rest: x * 3),
    "einsum": (lambda x: torch.einsum("ij,ij->i", x, x), F, "relu", torch.tanh),
    "nested": (lambda x: F.kl_div(x, x, reduction="sum"), torch.nn._reduction, "get_enum",
               lambda name: 1),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEAVES)
def test_replaced_under_a_function_of_torch(name, monkeypatch):
    fn, module, attribute, other = LEAVES[name]
    made = 1 if name == "einsum" else 2
    with torch.no_grad():
        changed(fn, lambda: monkeypatch.setattr(module, attribute, other), made, X)


def test_replaced_under_a_function_in_a_closure(monkeypatch):
    def fn(x):
        return F.max_pool2d(x[None], 1)

    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    same(compiled(X), fn(X))
    monkeypatch.setattr(torch, "max_pool2d", lambda x, *rest: x * 3)
    same(compiled(X), fn(X))


@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_what_was_replaced_is_called_by_what_replaced_it(backend, monkeypatch):
    real = torch.relu
    monkeypatch.setattr(torch, "relu", lambda x: real(x) * 2)
    torchweld.reset()
    compiled = torchweld.compile(lambda x: torch.relu(x) + 1, backend=backend)
    for _ in range(2):
        same(compiled(X), real(X) * 2 + 1)
    assert graphs() == 1


def test_a_function_that_was_kept_is_called_after_its_name_was_given_away(monkeypatch):
    real = torch.relu
    torchweld.reset()
    compiled = torchweld.compile(lambda x: real(x) + 1, backend="eager")
    same(compiled(X), real(X) + 1)
    monkeypatch.setattr(torch, "relu", lambda x: x * 5)
    for _ in range(2):
        same(compiled(X), real(X) + 1)
    assert graphs() == 2


def test_a_replacement_is_called_as_often_as_in_eager(monkeypatch):
    norm, real, seen = nn.LayerNorm(3), torch.layer_norm, []

    def counting(x, *rest):
        seen.append(1)
        return real(x, *rest) * 2

    monkeypatch.setattr(torch, "layer_norm", counting)
    torchweld.reset()
    compiled = torchweld.compile(lambda x: norm(x), backend="eager")
    for i in range(1, 5):
        same(compiled(X), real(X, (3,), norm.weight, norm.bias) * 2)
        assert len(seen) == i


def shifted(x, *rest):
    return x - 1


def test_replaced_after_many_calls_and_put_back(monkeypatch):
    norm = nn.LayerNorm(3)
    compiled = called_until_settled(norm, False)
    with torch.no_grad():
        for _ in range(2):
            monkeypatch.setattr(torch, "layer_norm", shifted)
            same(compiled(X), norm(X))
            monkeypatch.undo()
            same(compiled(X), norm(X))
    assert graphs() == 2


METHODS = {
    "method": (lambda x: x.relu(), "relu", lambda self: self * 5),
    "method in Python": (lambda x: x.split(1)[0], "split", lambda self, n: (self * 5,)),
    "operator": (lambda x: x + 2, "__add__", lambda self, other: self * 5),
    "reflected": (lambda x: 2 - x, "__rsub__", lambda self, other: self * 5),
    "parameter": (nn.PReLU(), "__mul__", lambda self, other: self),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_tensors_is_replaced(name, monkeypatch):
    fn, method, other = METHODS[name]
    torchweld.reset()
    compiled = torchweld.compile(fn)
    with torch.no_grad():
        same(compiled(X), fn(X))
        monkeypatch.setattr(torch.Tensor, method, other)
        got, expected = compiled(X), fn(X)
        monkeypatch.undo()
        same(got, expected)
        same(compiled(X), fn(X))


def test_other_attributes_of_tensors_may_be_assigned(monkeypatch):
    compiled = called_until_settled(lambda x: x.relu() + 2, True)
    for i in range(5):
        monkeypatch.setattr(torch.Tensor, "made_up", i, raising=False)
        same(compiled(X), X.relu() + 2)
    assert graphs() == 1


def test_a_method_of_a_class_of_torch_is_replaced(monkeypatch):
    def fn(x):
        return torch.distributions.Normal(x, x, validate_args=False).variance

    changed(fn, lambda: monkeypatch.setattr(
        torch.distributions.Normal, "variance", property(lambda self: self.scale * 7)), 2, X)


def imports_inside(x):
    from math import floor

    return x * floor(2.5)


def test_a_function_that_the_frame_imports_is_replaced(monkeypatch):
    real = math.floor

    def other(x):
        return 11 if x == 2.5 else real(x)

    changed(imports_inside, lambda: monkeypatch.setattr(math, "floor", other), 2, X)
