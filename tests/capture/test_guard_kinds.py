"""For each kind of guard: a change that must be noticed, and one that must not compile again."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from guard_twin import graphs, same
from torch import nn

import torchweld
from torchweld.ir.guard import KINDS

X = torch.ones(2, 3)


class Box:
    kind = "box"

    def __init__(self, n=1):
        self.n = n
        self.unread = 0

    def grow(self, x):
        return x + self.n


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 1


class Bigger(Box):
    def grow(self, x):
        return x + 2 * self.n


class Lazy:
    def __getattr__(self, name):
        return len(name)


@dataclass
class Case:
    """make: fresh arguments. change: must be noticed. harmless: must not compile again."""

    fn: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    change: Callable[..., Any]
    harmless: Callable[..., Any]


def with_default(x, table):
    return x + table.get("b", 5)


def under_tensor(x, key, table):
    return x + table.get(key, 5)


def all_items(x, table):
    return [x + v for v in table.values()]


def has(x, table):
    return x + 1 if "a" in table else x * 3


def identity(x, y):
    return x + 1 if x is y else x * y


def add_to(x, y):
    x.add_(y)
    return x


def move(table):
    table.move_to_end("a")


def rename(table):
    table["c"] = table.pop("a")


def other_class(x, box):
    box.__class__ = Bigger


def other_dict(x, box):
    box.__dict__ = {"n": 7, "unread": 0}


def same_dict(x, box):
    box.__dict__ = dict(box.__dict__)


def resize(x, box):
    x.data = torch.ones(4, 3)


def varying():
    x = torch.ones(5, 3)
    torchweld.mark_dynamic(x, 0)
    return x, 3


def set_rows(x, n):
    x.data = torch.ones(n, 3)


CASES = {
    "sizes": Case(lambda x, n: x * n, varying, lambda x, n: set_rows(x, 1),
                  lambda x, n: set_rows(x, 8)),
    "type": Case(lambda x, box: box.grow(x), lambda: (X, Box()), other_class,
                 lambda x, box: setattr(box, "unread", 3)),
    "is": Case(lambda x, fns: fns[0](x + 1), lambda: (X, [torch.sin, torch.cos]),
               lambda x, fns: fns.reverse(), lambda x, fns: fns.__setitem__(1, torch.tan)),
    "equal": Case(lambda x, box: box.grow(x) if box.n > 0 else x * 2, lambda: (X, Box(1)),
                  lambda x, box: setattr(box, "n", -1), lambda x, box: setattr(box, "n", 1)),
    "length": Case(lambda x, xs: x * len(xs), lambda: (X, [1, 2]), lambda x, xs: xs.append(3),
                   lambda x, xs: xs.reverse()),
    "has_key": Case(has, lambda: (X, {"a": X}), lambda x, t: t.pop("a"),
                    lambda x, t: t.update(a=3)),
    "lacks_key": Case(with_default, lambda: (X, {"a": 1}), lambda x, t: t.update(b=3),
                      lambda x, t: t.update(c=3)),
    "lacks_tensor": Case(under_tensor, lambda: (X, X.clone(), {"a": 1}),
                         lambda x, y, t: t.__setitem__(y, 3), lambda x, y, t: t.update(c=3)),
    "keys": Case(all_items, lambda: (X, OrderedDict(a=1, b=2)), lambda x, t: move(t),
                 lambda x, t: t.update(a=1)),
    "tensor": Case(lambda x, n: x * n, lambda: (X.clone(), 2), lambda x, n: resize(x, n),
                   lambda x, n: x.fill_(4)),
    "same": Case(identity, lambda: (X,) * 2, None, lambda x, y: None),
    "distinct": Case(add_to, lambda: (X.clone(), X.clone()), None, lambda x, y: y.fill_(3)),
    "class_version": Case(lambda x, box: box.grow(x), lambda: (X, Box()),
                          lambda x, box: setattr(Box, "grow", lambda self, x: x * 9),
                          lambda x, box: setattr(box, "fresh", 1)),
    "state": Case(lambda x, n: x * n, lambda: (X.clone().requires_grad_(), 2),
                  lambda x, n: torch.set_grad_enabled(False), lambda x, n: torch.manual_seed(3)),
    "predicate": Case(lambda x, n: x * n, lambda: (torch.ones(2, 2, dtype=torch.complex64), 2),
                      None, lambda x, n: x.fill_(2j)),
}  # fmt: skip
# the arguments of the second call, where it is not those of the first one, changed
OTHERS = {
    "same": lambda: (X, X.clone()),
    "distinct": lambda: (y := X.clone(), y),
    "predicate": lambda: (torch.ones(2, 2, dtype=torch.complex64).conj(), 2),
}


@pytest.fixture(autouse=True)
def as_before():
    grow = Box.grow
    yield
    Box.grow = grow
    torch.set_grad_enabled(True)
    warnings.resetwarnings()


def test_every_kind_has_a_case():
    elsewhere = {"is_not", "same_value"}  # no capture makes it; tests/training/test_counters.py
    assert set(CASES) == set(KINDS) - elsewhere


def copied(args):
    memo: dict[int, Any] = {}
    return copy.deepcopy(args, memo)


@pytest.mark.parametrize("kind", CASES)
def test_change_is_noticed(kind):
    case = CASES[kind]
    torchweld.reset()
    compiled = torchweld.compile(case.fn, backend="eager")
    args = case.make()
    same(compiled(*args), case.fn(*copied(case.make())))
    (entry,) = compiled.entries
    assert kind in {guard.kind for guard in entry.info.guards}
    if case.change is None:
        args = OTHERS[kind]()
    else:
        case.change(*args)
    for _ in range(2):
        expected = case.fn(*copied(args))
        same(compiled(*args), expected)
        args = args if kind != "distinct" else OTHERS[kind]()
    assert (len(compiled.entries), entry.hits) == (2, 1)


@pytest.mark.parametrize("kind", CASES)
def test_harmless_change_compiles_nothing(kind):
    case = CASES[kind]
    torchweld.reset()
    compiled = torchweld.compile(case.fn, backend="eager")
    args = case.make()
    compiled(*args)
    case.harmless(*args)
    for _ in range(2):
        expected = case.fn(*copied(args))
        same(compiled(*args), expected)
    assert graphs() == 1


# ------------------------------------------------------------------------ what watchers miss
def net():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    made.table = OrderedDict(a=2.0, b=3.0)
    return made


def forward(m, x):
    for v in m.table.values():
        x = x * v + 1
    return m(x)


def count(m):
    m[0].register_forward_hook(lambda mod, args, out: None)


TRAPS = {
    "p.data = another shape": (lambda m: [setattr(m[2].weight, "data", torch.ones(5, 3)),
                                          setattr(m[2].bias, "data", torch.ones(5))], 2),
    "p.data = the same shape": (lambda m: setattr(m[0].weight, "data", torch.ones(3, 3)), 1),
    "p.data = p.data": (lambda m: setattr(m[0].weight, "data", m[0].weight.data), 1),
    "half and back": (lambda m: m.half().float(), 1),
    "requires_grad_ of all": (lambda m: m.requires_grad_(False), 2),
    "requires_grad_ as it was": (lambda m: m.requires_grad_(True), 1),
    "class of a layer": (lambda m: setattr(m[1], "__class__", nn.Tanh), 2),
    "dict of a layer, equal": (lambda m: setattr(m[0], "__dict__", dict(m[0].__dict__)), 1),
    "hook table replaced by an equal one": (
        lambda m: m[0].__dict__.__setitem__("_forward_hooks", OrderedDict()), 1),
    "hook": (count, 2),
    "keys in another order": (lambda m: m.table.move_to_end("a"), 2),
    "value set to itself": (lambda m: m.table.__setitem__("a", 2.0), 1),
    "to_empty": (lambda m: [m.to_empty(device="cpu"), m.load_state_dict(net().state_dict())], 1),
    "share_memory": (lambda m: m.share_memory(), 1),
    "zero_grad": (lambda m: m.zero_grad(), 1),
    "eval": (lambda m: m.eval(), 1),
    "weights tied": (lambda m: setattr(m[2], "weight", m[0].weight), 1),
    "submodule added": (lambda m: m.append(nn.Tanh()), 2),
    "submodule put in by name": (lambda m: m.add_module("1", nn.Tanh()), 2),
    "layer replaced by its like": (lambda m: m.__setitem__(0, nn.Linear(3, 3)), 1),
    "buffer added that is not read": (lambda m: m.register_buffer("b", torch.ones(1)), 1),
}  # fmt: skip


@pytest.mark.parametrize("settle", [False, True], ids=["at once", "after many calls"])
@pytest.mark.parametrize("name", TRAPS)
def test_trap(name, settle):
    change, made = TRAPS[name]
    m = net()
    torchweld.reset()
    compiled = torchweld.compile(forward, backend="eager")
    for _ in range(12 if settle else 1):
        same(compiled(m, X), forward(m, X))
    change(m)
    for _ in range(3):
        same(compiled(m, X), forward(m, X))
    assert graphs() == made


def test_nonlocal_that_changes():
    def make():
        k = 1.0

        def step(x):
            return x * k if k < 3 else x - k

        def change(value):
            nonlocal k
            k = value

        return step, change

    step, change = make()
    torchweld.reset()
    compiled = torchweld.compile(step, backend="eager")
    same(compiled(X), step(X))
    change(5.0)
    same(compiled(X), step(X))
    same(compiled(X), step(X))
    assert graphs() == 2


def test_slot_that_changes():
    box = Slotted()
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * box.n if box.n < 2 else x, backend="eager")
    for n in (1, 2, 1):
        box.n = n
        same(compiled(X), X * n if n < 2 else X)


def test_attribute_that_getattr_answers_and_then_the_instance_has():
    box = Lazy()
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x + box.size, backend="eager")
    same(compiled(X), X + 4)
    box.size = 9
    same(compiled(X), X + 9)


def test_bases_of_a_class_that_change():
    class Left:
        def grow(self, x):
            return x + 1

    class Right:
        def grow(self, x):
            return x + 2

    class Mine(Left):
        pass

    box = Mine()
    torchweld.reset()
    compiled = torchweld.compile(lambda x: box.grow(x), backend="eager")
    same(compiled(X), X + 1)
    Mine.__bases__ = (Right,)
    same(compiled(X), X + 2)
    assert graphs() == 2


def test_module_class_swapped_for_a_subclass_as_parametrize_does():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    m = nn.Linear(3, 3)
    torchweld.reset()
    compiled = torchweld.compile(lambda x: m(x), backend="eager")
    same(compiled(X), m(X))
    m.__class__ = Doubled
    same(compiled(X), m(X))
    m.__class__ = nn.Linear
    same(compiled(X), m(X))
    assert graphs() == 2
