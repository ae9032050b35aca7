"""Class attributes that are assigned, in the frame and outside: eager's state, few compilations."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.misses import why_missed
from torchweld.pipeline import STATISTICS

X = torch.arange(3.0)


def make(metaclass=type):
    """A class and its subclass, the same each time."""

    class Node(metaclass=metaclass):
        made = 0
        limit = 4
        cache = None

        def __init__(self, held):
            self.held = held

        def run(self):
            return self.held * self.limit + self.made

        @classmethod
        def bump(cls, k):
            cls.made += k
            return cls.made

    class Leaf(Node):
        def run(self):
            return super().run() + super().made

    return Node, Leaf


def counted(x, node, leaf):
    node.made += 1
    return x * 2 + node.made


def inherited(x, node, leaf):
    n = leaf(x)
    type(n).made += 2
    return n.run(), leaf.made, node.made


def kept(x, node, leaf):
    if node.cache is None:
        node.cache = x.cos()
    return x + node.cache


def through_a_method(x, node, leaf):
    n = node(x)
    return n.run() * node.bump(2), n.made


def new_name(x, node, leaf):
    for k in range(3):
        setattr(leaf, "fresh", k + x.shape[0])  # noqa: B010
    return x + leaf.fresh + getattr(node, "fresh", 1)


def swapped(x, node, leaf):
    node.limit, node.made = node.made, node.limit
    return node(x).run()


class Meta(type):
    def __setattr__(cls, name, value):
        super().__setattr__(name, value * 2)


def replaces_a_method(x, node, leaf):
    node.run = lambda self: self.held
    return node(x).run() * 2


def patches(x, node, leaf):
    before = node.run
    node.run = lambda self: before(self) * 2
    try:
        return leaf(x).run() + node(x).run()
    finally:
        node.run = before


def calls_what_the_last_call_left(x, node, leaf):
    n = node(x)
    found = n.run()
    k = x.shape[0]
    node.run = lambda self: self.held * k
    return found + n.run()


def deletes(x, node, leaf):
    leaf.run = node.run
    leaf.extra = x.shape[0]
    found = leaf(x).run() + leaf.extra
    del leaf.extra
    del leaf.run
    try:
        del leaf.extra
    except AttributeError as error:
        return found + leaf(x).run(), str(error), hasattr(leaf, "extra")


def state(kinds):
    return [(k.__name__, name, v) for k in kinds for name, v in vars(k).items()
            if isinstance(v, int | torch.Tensor)]  # fmt: skip


def calls(fn, kinds, n=6):
    return [(fn(X, *kinds), state(kinds)) for _ in range(n)]


@pytest.mark.parametrize(("fn", "captures"), [
    (counted, 2), (inherited, 3), (kept, 2), (through_a_method, 2), (new_name, 2), (swapped, 2),
    (replaces_a_method, 1), (patches, 1), (calls_what_the_last_call_left, 2),
])  # fmt: skip
def test_writes_are_made_at_the_end_and_values_that_change_are_inputs(fn, captures):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager", fullgraph=True)
    assert str(calls(compiled, make())) == str(calls(fn, make()))
    assert torchweld.statistics()["captures"] == captures


def test_what_a_metaclass_has_to_say():
    torchweld.reset()
    compiled = torchweld.compile(counted, backend="eager", fullgraph=True)
    assert str(calls(compiled, make(Meta))) == str(calls(counted, make(Meta)))
    assert torchweld.statistics()["captures"] == 2


def test_attributes_that_are_deleted():
    def fresh():
        node, leaf = make()
        return [deletes(X, node, leaf)]

    torchweld.reset()
    compiled = torchweld.compile(deletes, backend="eager", fullgraph=True)
    node, leaf = make()
    assert str([compiled(X, node, leaf)]) == str(fresh())
    assert "run" not in vars(leaf) and "extra" not in vars(leaf)


def test_methods_of_a_class_that_varies_are_still_watched():
    torchweld.reset()
    node, leaf = make()
    compiled = torchweld.compile(through_a_method, backend="eager", fullgraph=True)
    calls(compiled, (node, leaf))
    node.run = lambda self: self.held - 1
    made = node.made
    torch.testing.assert_close(compiled(X, node, leaf)[0], (X - 1) * (made + 2))
    del leaf.run
    torch.testing.assert_close(compiled(X, node, leaf)[0], (X - 1) * (made + 4))


def reads(x, node, leaf):
    return node(x).run()


def test_what_somebody_else_assigns_is_learned():
    """An attribute that does not matter costs one compilation, a number becomes an input."""
    torchweld.reset()
    node, leaf = make()
    compiled = torchweld.compile(reads, backend="eager", fullgraph=True)
    captures = []
    for k in range(6):
        node.limit, node.note = k, k
        torch.testing.assert_close(compiled(X, node, leaf), reads(X, node, leaf))
        captures.append(torchweld.statistics()["captures"])
    assert captures[-1] == captures[2] <= 3


def test_the_reason_names_the_attribute():
    torchweld.reset()
    node, leaf = make()
    compiled = torchweld.compile(reads, backend="eager")
    compiled(X, node, leaf)
    node.limit = 5
    (miss,) = why_missed(compiled.entries, (X, node, leaf))
    assert "Node.limit` was 4, is 5" in miss.text()


def looks_at_all(x, node, leaf):
    node.made = 3
    return x + node.__dict__["made"]


def replaced_by_a_property(x, node, leaf):
    node.run = property(lambda self: self.held)
    return node(x).run


def looked_at_before(x, node, leaf):
    found = node.__dict__
    node.made = 3
    return x + found["made"]


@pytest.mark.parametrize(("fn", "kind"), [
    (looks_at_all, type), (looked_at_before, type), (replaced_by_a_property, type),
])  # fmt: skip
def test_what_cannot_be_put_off_breaks_and_is_right(fn, kind):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    assert str(calls(compiled, make(kind), 2)) == str(calls(fn, make(kind), 2))
    assert any(r.code == "W106" for r in STATISTICS.refusals)
    assert torchweld.statistics()["internal_errors"] == 0


class Layer(torch.nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)

    def forward(self, x):
        Layer.calls += 1
        return self.lin(x) * Layer.calls


def test_a_forward_that_is_replaced():
    def program(x, layer):
        kind = type(layer)
        before = kind.forward
        kind.forward = lambda self, y: self.lin(y) - 1
        found = layer(x) * layer(x)
        kind.forward = before
        return found

    torchweld.reset()
    layer = Layer()
    compiled = torchweld.compile(program, backend="eager", fullgraph=True)
    before = Layer.forward
    for _ in range(3):
        torch.testing.assert_close(compiled(X, layer), program(X, layer))
        assert Layer.forward is before
    assert torchweld.statistics()["graphs"] == 1


def test_layers_that_count_their_calls():
    torchweld.reset()
    model = torch.nn.Sequential(Layer(), Layer(), Layer())
    compiled = torchweld.compile(model, backend="eager", fullgraph=True)
    for start in (0, 0, 5):
        Layer.calls = start
        want = model(X)
        Layer.calls = start
        torch.testing.assert_close(compiled(X), want)
        assert Layer.calls == start + 3
    assert torchweld.statistics()["captures"] == 2
