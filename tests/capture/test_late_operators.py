"""Operators that take a number which changes, wherever the number is found."""

from __future__ import annotations

import dataclasses
import functools
import math
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from guard_twin import calls, graphs, same

import torchweld

X = torch.linspace(-2, 2, 40).reshape(5, 8)
VALUES = (0.5, 0.25, 0.75)
USES = {
    "where": lambda x, v: torch.where(x > 0, v, x),
    "where of two numbers": lambda x, v: torch.where(x > 0, v, 0.0),
    "the method where": lambda x, v: x.where(x > 0, v),
    "full": lambda x, v: torch.full((2, 3), v),
    "full of another dtype": lambda x, v: torch.full((2, 3), v, dtype=torch.float64),
    "full_like": torch.full_like,
    "new_full": lambda x, v: x.new_full((2,), v),
    "clamp between": lambda x, v: x.clamp(-0.1, v),
    "clamp_min": lambda x, v: x.clamp_min(v),
    "equal": lambda x, v: (x == v) | (v != x),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -v, v),
    "threshold": lambda x, v: F.threshold(x, v, 9.0),
    "normalize": lambda x, v: F.normalize(x, eps=v),
    "layer_norm": lambda x, v: F.layer_norm(x, (8,), torch.ones(8), torch.ones(8), eps=v),
    "rms_norm": lambda x, v: F.rms_norm(x, (8,), eps=v),
    "temperature": lambda x, v: torch.softmax(x / v, -1),
    "schedule": lambda x, v: x * (1 + math.cos(math.pi * v)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", USES)
def test_generated_code_takes_the_number(name, dtype):
    fn, x = USES[name], X.to(dtype)
    torchweld.reset()
    compiled = torchweld.compile(lambda x, v: fn(x, v))
    for v in VALUES:
        torch.testing.assert_close(compiled(x, v), fn(x, v))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["aten_graphs"], counts["internal_errors"]) == (2, 0, 0)


@pytest.mark.parametrize("name", ["where", "full", "full_like", "new_full", "equal"])
def test_operators_take_an_integer(name):
    calls(lambda x, v: USES[name](x, v), *((X, v) for v in (2, 3, 4)), made=2)
    calls(lambda x, v: USES[name](x, v), *((X.long(), v) for v in (2, 3, 4)), made=2)


GLOBAL = 0.0


class Settings:
    v = 0.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: float


class Slots:
    __slots__ = ("v",)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Module()

    def forward(self, x):
        return x * self.inner.v


def _module():
    net = Net()
    return net, lambda v: setattr(net.inner, "v", v)


def _object(make):
    def places():
        held = make()
        return lambda x: x * held.v, lambda v: setattr(held, "v", v)

    return places


def _item(make, key):
    def places():
        held = make()
        return lambda x: x * held[key], lambda v: held.__setitem__(key, v)

    return places


def _frozen():
    held = [None]
    return lambda x: x * held[0].v, lambda v: held.__setitem__(0, Frozen(v))


def _cell():
    held = 0.0

    def put(v):
        nonlocal held
        held = v

    return lambda x: x * held, put


def _global():
    return lambda x: x * GLOBAL, lambda v: globals().__setitem__("GLOBAL", v)


def _scaled(x, k):
    return x * k


def _partial():
    held = [None]

    def put(v):
        held[0] = functools.partial(_scaled, k=v)

    return lambda x: held[0](x), put


PLACES = {
    "attribute of a submodule": _module, "attribute": _object(Settings), "slot": _object(Slots),
    "namespace": _object(types.SimpleNamespace), "item of a dict": _item(dict, "v"),
    "item of a list": _item(lambda: [0.0], 0), "frozen dataclass": _frozen, "cell": _cell,
    "global": _global, "argument of a partial": _partial,
}  # fmt: skip


@pytest.mark.parametrize("kind", [int, float, np.float64, np.float32, np.int64])
@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_changes_becomes_an_input(place, kind):
    eager, put_eager = PLACES[place]()
    fn, put = PLACES[place]()
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True, backend="eager")
    for v in (2, 3, 5, 7, 2):
        put_eager(kind(v))
        expected = eager(X)
        put(kind(v))
        same(compiled(X), expected)
    assert graphs() == 2


def test_a_class_attribute_that_changes_becomes_an_input():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * Settings.v, fullgraph=True, backend="eager")
    for i in range(6):
        Settings.v = i / 4
        same(compiled(X), X * Settings.v)
    assert graphs() <= 3


NUMPY = {
    "arithmetic": lambda x, v: (x * (v * 2 + 1), v / 3),
    "branch": lambda x, v: x + 1 if v > 0.1 else x - 1,
    "truth": lambda x, v: x * v if v else x + 1,
    "text": lambda x, v: (x + 1, f"{v:.2f}"),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
}


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", NUMPY)
def test_numpy_numbers_that_change(name, kind):
    calls(NUMPY[name], *((X, kind(v)) for v in (*VALUES, 0.9)), made=2)


def test_a_comparison_of_a_numpy_number_is_of_its_own_type():
    calls(lambda x, v: (x + 1, v > 0.1), *((X, np.float64(v)) for v in VALUES), made=2)


def test_numpy_numbers_in_tensors_comparisons_and_slices():
    n, v = np.int64(2), np.float64(1.5)

    def f(x):
        made = torch.tensor(v), torch.tensor([v, 1.0]), torch.tensor(np.int32(3))
        return made, x == n, v != x, x[:n], x[n - 1 : n], x.view(np.int64(4), -1)

    calls(f, (X,), made=1)


def test_bits_of_a_number_that_changes():
    calls(lambda x, n: x * ((n & 6) | 1) + (n ^ 3), *((X, n) for n in range(6)), made=2)
