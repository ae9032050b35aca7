"""What is said about a recompilation: both values, the user's line, what helps."""

from __future__ import annotations

import collections
import logging

import numpy as np
import pytest
import torch
from torch import nn

import torchweld
from torchweld.base import config, events
from torchweld.misses import why_missed

X = torch.ones(4, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.scale = 0.5

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def scaled(x, scale):
    return x * scale


def pick(x, table):
    return x * table["a"] + len(table)


def total(xs):
    return sum(xs, torch.zeros(3))


def run(x, fn):
    return fn(x + 1)


def counted(x, box):
    return x + box.n


def part(x, at):
    return x[at] * 2


class Box:
    def __init__(self, n):
        self.n = n


class Other(Box):
    pass


def added(x, y):
    x.add_(y)
    return x


def reason(fn, before, after):
    """The one reason that the compiled `fn` gives for compiling again for `after`."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    compiled(*before)
    (miss,) = why_missed(compiled.entries, after)
    return miss


def counted_in(x, s):
    return x * 2 if 1 in s else x


def hooked():
    m = nn.Linear(3, 3)
    m.register_forward_hook(lambda *given: None)
    return m


ONE = torch.ones(3)
REASONS = {
    "number": (scaled, (X, 0.5), (X, 0.7), "`scale` was 0.5, is 0.7; none needed: from now on"),
    "number of another type": (scaled, (X, 2), (X, 2.0), "`scale` was 2, is 2.0"),
    "size": (scaled, (X, 2), (X[:2], 2), "`x` had size 4 in dimension 0, has 2; none needed: "
                                         "unless dynamic=False it is a symbol from now on"),
    "size of 1": (scaled, (X, 2), (X[:1], 2), "`x` had size 4 in dimension 0, has 1; sizes 0 and 1 "
                                              "are compiled for themselves"),
    "set": (counted_in, (X, {1}), (X, {2, 3}), "`s` was {1}, is {2, 3}; keep it the same"),
    "bool": (scaled, (X, True), (X, False), "`scale` was True, is False; none needed: each of "
                                            "them is compiled once"),
    "hook": (lambda x, m: m(x), (X, nn.Linear(3, 3)), (X, hooked()), "`m` had 0 forward hooks, has "
                                                                     "1; register hooks"),
    "rank": (scaled, (X, 2), (X[0], 2), "`x` had 2 dimensions, has 1"),
    "dtype": (scaled, (X, 2), (X.half(), 2), "`x` was float32, is float16"),
    "layout": (scaled, (torch.ones(3, 4), 2), (torch.ones(4, 3).t(), 2),
               "`x` had strides (4, 1), has (1, 3)"),
    "requires_grad": (scaled, (X, 2), (X.clone().requires_grad_(), 2),
                      "`x`.requires_grad was False, is True"),
    "class": (scaled, (X, 2), (nn.Parameter(X, False), 2), "`x` was a Tensor, is a Parameter"),
    "no tensor": (scaled, (X, 2), (3, 2), "`x` was a tensor, is 3"),
    "item": (pick, (X, {"a": 1}), (X, {"a": 3}), "`table['a']` was 1, is 3"),
    "length": (total, ([ONE, ONE],), ([ONE],), "`xs` had length 2, has 1"),
    "function": (run, (X, torch.sin), (X, torch.cos), "`fn` was torch.sin, is torch.cos"),
    "attribute": (counted, (X, Box(1)), (X, Box(2)), "`box.n` was 1, is 2"),
    "type": (counted, (X, Box(1)), (X, Other(1)), "`box` was a Box, is an Other"),
    "slice": (part, (X, slice(0, 2)), (X, slice(0, 3)),
              "`at.stop` was 2, is 3; none needed: from now on it is an input"),
    "NumPy's number": (part, (X, np.int64(1)), (X, np.int64(2)),
                       "`at` was np.int64(1), is np.int64(2); keep it the same"),
    "one object": (added, (ONE.clone(), ONE), (ONE, ONE), "`x` and `y` were two objects, are one"),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_reason(name):
    fn, before, after, words = REASONS[name]
    miss = reason(fn, before, after)
    assert miss.what.startswith(words.split(";")[0])
    assert words in miss.text()
    assert __file__ in miss.text() or name == "one object"


def test_the_line_is_the_one_that_read_the_value():
    miss = reason(scaled, (X, 0.5), (X, 0.7))
    assert miss.at.text().endswith("return x * scale")


def test_an_attribute_of_a_module_is_named_as_the_user_would():
    m = Net()
    torchweld.reset()
    compiled = torchweld.compile(lambda x: m(x), backend="eager")
    compiled(X)
    m.scale = 0.25
    assert [miss.what for miss in why_missed(compiled.entries, (X,))] == ["`m.scale` was 0.5, is "
                                                                          "0.25"]  # fmt: skip
    m.scale = 0.5
    m.layers[1].double()
    (miss,) = why_missed(compiled.entries, (X,))
    assert miss.what == "`m.layers[1].weight` was float32, is float64"


def test_a_state_of_torch():
    torchweld.reset()
    compiled = torchweld.compile(scaled, backend="eager")
    compiled(X, 2)
    with torch.no_grad():
        (miss,) = why_missed(compiled.entries, (X, 2))
    assert miss.what == "is_grad_enabled() was True, is False"


def test_what_is_not_there_any_more():
    box = Box(1)
    miss_of = Box(1)
    del miss_of.n
    assert "`box.n`" in reason(counted, (X, box), (X, miss_of)).what


def test_recompilations_are_events(capfd):
    torchweld.reset()
    compiled = torchweld.compile(scaled, backend="eager")
    compiled(X, 0.5)
    with config.override(logs=("recompiles",)):
        compiled(X[:2], 0.5)
    (event,) = events.recent("recompiles")
    assert event.name == "scaled"
    assert f"recompiled {__file__}" in capfd.readouterr().err


def test_the_limit_is_told_once_with_the_last_reason(caplog):
    torchweld.reset()
    compiled = torchweld.compile(run, backend="eager", options={"recompile_limit": 2})
    with caplog.at_level(logging.WARNING, "torchweld"):
        for fn in (torch.sin, torch.cos, torch.tan, torch.exp, torch.tanh):
            torch.testing.assert_close(compiled(X, fn), run(X, fn))
    (record,) = caplog.records
    said = record.getMessage()
    assert "W114" in said
    assert "run was compiled 2 times" in said
    assert "`fn` was torch.cos, is torch.tan" in said
    assert __file__ in said
    assert len(compiled.entries) == 3


def storm(fn, *calls, caplog):
    """What is logged when a function is compiled too often."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    with caplog.at_level(logging.WARNING, "torchweld"):
        for args in calls:
            torch.testing.assert_close(compiled(X, *args), fn(X, *args))
    (record,) = caplog.records
    return record.getMessage()


def test_the_limit_is_told_with_all_values(caplog):
    class Sequence(list):
        pass

    def joined(x, xs):
        return torch.cat([*xs]) + x.sum()

    said = storm(joined, *((Sequence([X] * n),) for n in range(2, 13)), caplog=caplog)
    assert "`xs` had length 2, 3, 4, 5, 6, 7, 8, 9, has 10; pass one length" in said
    assert said.count(__file__) == 2  # the function, and the line that needs the length


def test_the_limit_is_told_of_texts(caplog):
    def named(x, name):
        return x * len(name) if name != "q" else x

    said = storm(named, *((c,) for c in "abcdefghijkl"), caplog=caplog)
    assert "`name` was 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', is 'i'; keep it the same" in said


def test_a_decision_about_a_number_is_told_with_both_sides():
    def steps(x, n):
        return x + 1 if n % 2 == 0 and n > 3 else x * 2

    torchweld.reset()
    compiled = torchweld.compile(steps, backend="eager")
    for n in (1, 5, 8):
        compiled(X, n)
    whats = [m.what for m in why_missed(compiled.entries, (X, 10))]
    assert any("held, but `n` is 10" in w for w in whats), whats


def test_looking_for_reasons_makes_no_entries():
    """Neither does learning from them what varies: a defaultdict makes what is asked for."""
    torchweld.reset()
    compiled = torchweld.compile(lambda x, d, on: x * d["k"] if on else x * 2)
    empty = collections.defaultdict(lambda: 3)
    compiled(X, collections.defaultdict(int, k=2), True)
    torch.testing.assert_close(compiled(X, empty, False), X * 2)
    assert not why_missed(compiled.entries[1:], (X, empty, False)) and not empty
