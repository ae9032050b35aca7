"""What is overwritten is not relied on: only whether the attribute or the key was there is."""

from __future__ import annotations

import threading

import pytest
import torch
from guard_twin import calls, same
from torch import nn

import torchweld

X = torch.ones(3)


class Box:
    def __init__(self, **given):
        vars(self).update(given)

    def __eq__(self, other):
        return list(vars(self)) == list(vars(other)) and str(vars(self)) == str(vars(other))


class Keeper(nn.Module):
    """Keeps what it computed last, as models do for whoever looks at it afterwards."""

    def __init__(self):
        super().__init__()
        self.last = None
        self.said = ""

    def forward(self, x):
        self.last = x * 2
        self.said = "done"
        return self.last + 1


OLD = (None, "a", "b", 3, 4, 2.5, (1, 2), [1], {"a": 1}, torch.ones(2), torch.ones(4, 4).double())


def put_attribute(x, box):
    box.k = x * 2
    return x + 1


def put_item(x, table):
    table["k"] = x * 2
    return x + 1


def test_what_an_attribute_was_does_not_matter():
    calls(put_attribute, *((X, Box(k=old)) for old in OLD), made=1)


def test_what_was_under_a_key_does_not_matter():
    calls(put_item, *((X, {"k": old}) for old in OLD), made=1)


def test_a_module_that_keeps_its_last_result_is_compiled_once():
    torchweld.reset()
    m, twin = Keeper(), Keeper()
    compiled = torchweld.compile(m, backend="eager")
    for i in range(4):
        same(compiled(X + i), twin(X + i))
        same(m.last, twin.last)
        assert m.said == "done"
        m.said = f"looked at {i}"
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["recompiles"], counts["breaks"]) == (1, 0, 0)


@pytest.mark.parametrize("make", [lambda d: Box(**d), dict], ids=["attributes", "keys"])
def test_where_a_new_one_stands_does(make):
    fn = put_attribute if make is not dict else put_item
    calls(fn, (X, make({"k": 1, "z": 0})), (X, make({"z": 0})), (X, make({"z": 0, "k": 2})), made=2)


def test_what_is_read_before_is_guarded():
    def f(x, box):
        x = x + len(box.k)
        box.k = "new"
        return x

    calls(f, (X, Box(k="a")), (X, Box(k="bc")), (X, Box(k="a")), made=2)


def test_what_is_put_back_is_guarded():
    def f(x, box):
        before, box.k = box.k, "inside"
        x = x + len(box.k)
        box.k = before
        return x

    calls(f, (X, Box(k="a")), (X, Box(k="b")), made=2)


def test_a_parameter_in_the_place_of_an_attribute_is_seen():
    torchweld.reset()
    m, twin = Keeper(), Keeper()
    compiled = torchweld.compile(m, backend="eager")
    same(compiled(X), twin(X))
    for of in (m, twin):
        del of.last
        of.last = nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match="cannot assign"):
        twin(X)
    with pytest.raises(TypeError, match="cannot assign"):
        compiled(X)
    assert list(m._parameters) == ["last"]


def test_attributes_of_a_thread():
    here = threading.local()

    def f(x):
        here.k = "inside"
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for old in OLD:
        here.k = old
        same(compiled(X), f(X))
        assert here.k == "inside"
    assert torchweld.statistics()["graphs"] == 1
