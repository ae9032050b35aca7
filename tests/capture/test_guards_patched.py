"""Functions of torch and of the standard library that are replaced while compiled code exists."""

from __future__ import annotations

import builtins
import math
import operator
import types

import pytest
import torch
import torch.nn.functional as F
from guard_twin import called_until_settled, changed, graphs, same, settled
from torch import nn

import torchweld

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def calls_relu(x):
    return torch.relu(x) + 1


def calls_sqrt(x):
    return x * math.sqrt(4.0)


def calls_builtin(x):
    return x * abs(-2)


def calls_operator(x):
    return operator.mul(x, 3)


def calls_gelu(x):
    return F.gelu(x)


def reads_constant(x):
    return x * math.pi


def by_dtype(x):
    return x.to(torch.half)


def only_for(marker, result, real):
    """A replacement that others, such as pytest, can go on calling."""
    return lambda x, *rest: result if x == marker and not rest else real(x, *rest)


FUNCTIONS = {
    "torch": (calls_relu, torch, "relu", lambda x: x * 5),
    "torch.nn.functional": (calls_gelu, F, "gelu", lambda x: x * 5),
    "math": (calls_sqrt, math, "sqrt", only_for(4.0, 7.0, math.sqrt)),
    "builtins": (calls_builtin, builtins, "abs", only_for(-2, 9, abs)),
    "operator": (calls_operator, operator, "mul", lambda a, b: a - b),
    "constant": (reads_constant, math, "pi", 3.0),
    "dtype": (by_dtype, torch, "half", torch.float64),
    "Linear": (nn.Linear(3, 3), F, "linear", lambda x, w, b: x * 3),
    "ReLU": (nn.ReLU(), F, "relu", lambda x, inplace: x * 3),
    "LayerNorm": (nn.LayerNorm(3), F, "layer_norm", lambda x, *rest: x * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_replaced_after_one_call(name, monkeypatch):
    fn, module, attribute, other = FUNCTIONS[name]
    with torch.no_grad():
        changed(fn, lambda: monkeypatch.setattr(module, attribute, other), 2, X)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_replaced_after_many_calls_and_put_back(name, monkeypatch):
    fn, module, attribute, other = FUNCTIONS[name]
    compiled = called_until_settled(fn, False)
    with torch.no_grad():
        for _ in range(2):
            monkeypatch.setattr(module, attribute, other)
            same(compiled(X), fn(X))
            monkeypatch.undo()
            same(compiled(X), fn(X))
    assert graphs() == 2


def test_a_global_of_a_module_of_torch():
    module = types.ModuleType("torch.made_up")
    exec("SCALE = 2.0\ndef scaled(x):\n    return x * SCALE * len([1])", vars(module))
    for name, value in (("SCALE", 3.0), ("len", lambda x: 4)):
        changed(module.scaled, lambda n=name, v=value: vars(module).update({n: v}), 2, X)


def test_a_setting_of_torch_that_is_a_property(request):
    def fn(x):
        return x + 1 if torch.backends.cudnn.benchmark else x - 1

    before = torch._C._get_cudnn_benchmark()
    request.addfinalizer(lambda: torch._C._set_cudnn_benchmark(before))
    changed(fn, lambda: torch._C._set_cudnn_benchmark(not before), 2, X)


@pytest.mark.parametrize("module", [torch, F, math, builtins])
def test_what_was_not_read_may_change(module, monkeypatch):
    def fn(x):
        return F.relu(torch.relu(x)) * math.sqrt(4.0) * abs(-2)

    compiled = called_until_settled(fn, True)
    for i in range(20):
        monkeypatch.setattr(module, "made_up", i, raising=False)
        for _ in range(10):
            same(compiled(X), fn(X))
        assert settled(compiled)
    assert graphs() == 1


def test_a_function_that_replaces_itself_is_read_again():
    def fn(x):
        return torch.relu(x) * 2

    compiled = called_until_settled(fn, True)
    relu = torch.relu
    try:
        for _ in range(12):
            torch.relu = torch.tanh
            torch.relu = relu
            same(compiled(X), fn(X))
    finally:
        torch.relu = relu
    assert graphs() == 1
    torchweld.reset()
