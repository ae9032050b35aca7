"""Python values from outside are guarded: arguments, containers, objects, globals, cells."""

from __future__ import annotations

import enum
import math
import types
from collections import OrderedDict

import pytest
import torch
from guard_twin import calls, changed, graphs, same

import torchweld

X = torch.ones(3)


def use(x, v):
    if v is None or isinstance(v, str):
        return x + len(str(v)), v
    return x + v, v


VALUES = {
    "equal int": (3, 3, 1),
    "equal big int": (10**15, 10**14 * 10, 1),
    "equal string": ("abc", "".join(["a", "bc"]), 1),
    "string": ("abc", "abd", 2),
    "True and 1": (True, 1, 2),
    "1 and 1.0": (1, 1.0, 2),
    "0.0 and -0.0": (0.0, -0.0, 2),
    "nan twice": (math.nan, float("nan"), 1),
    "nan and inf": (math.nan, math.inf, 2),
    "None and 0": (None, 0, 2),
    "None and False": (None, False, 2),
    "complex": (1j, 2j, 2),
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_argument(name):
    a, b, made = VALUES[name]
    calls(use, (X, a), (X, b), (X, a), (X, b), made=made)


def test_minus_zero_gives_minus_zero():
    def f(x, v):
        return x * v

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    assert math.copysign(1.0, compiled(X, 0.0)[0].item()) == 1.0
    assert math.copysign(1.0, compiled(X, -0.0)[0].item()) == -1.0


# -------------------------------------------------------------------------- containers
def total(x, items):
    for i in items:
        x = x + i
    return x


CONTAINERS = {
    "equal list": (total, [1, 2], [1, 2], 1),
    "list item": (total, [1, "a"][:1], [2], 2),
    "list length": (total, [1, 2], [1, 2, 3], 2),
    "list and tuple": (total, [1, 2], (1, 2), 2),
    "tuple item type": (total, (1, 2), (1, 2.0), 2),
    "tensors in a list": (total, [X + 5, X + 1], [X + 2, X + 3], 1),
    "a shorter list of tensors": (total, [X + 5, X + 1], [X + 2], 2),
    "sizes in a list": (lambda x, n: x.expand(n), [2, 3], [4, 3], 2),
    "Ellipsis": (lambda x, i: x[i], ..., 0, 2),
    "dict keys": (lambda x, d: total(x, [len(k) for k in d]), {"a": 1}, {"bb": 1}, 2),
    "dict order": (lambda x, d: total(x * 2, d.values()), {"a": 1, "b": 2}, {"b": 2, "a": 1}, 2),
    "dict value": (lambda x, d: x + d["a"], {"a": "x" and 1}, {"a": 2}, 2),
    "unread dict value": (lambda x, d: x + d["a"], {"a": 1, "b": 2}, {"a": 1, "b": 3}, 1),
    "key that is asked for": (lambda x, d: x + d.get("k", 5), {"a": 1}, {"k": 1}, 2),
    "key that is not asked for": (lambda x, d: x + d.get("k", 5), {"a": 1}, {"b": 1}, 1),
    "set contents": (lambda x, s: x + (7 if 3 in s else 9), {3, 4}, {4, 5}, 2),
    "equal set": (lambda x, s: x + (7 if 3 in s else 9), {3, 4}, {4, 3}, 1),
    "frozenset contents": (lambda x, s: x + len(s), frozenset({3}), frozenset({4, 5}), 2),
    "nested": (lambda x, d: x + d["a"][1]["b"], {"a": [0, {"b": 1}]}, {"a": [0, {"b": 2.0}]}, 2),
    "unread list item": (lambda x, v: x + v[0], [1, 2], [1, 3], 1),
    "range": (total, range(3), range(4), 2),
    "slice": (lambda x, s: x[s], slice(0, 2), slice(0, 1), 2),
    "dtype": (lambda x, d: x.to(d), torch.float64, torch.int64, 2),
    "device": (lambda x, d: x.to(d), torch.device("cpu"), torch.device("cpu"), 1),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_argument(name):
    fn, a, b, made = CONTAINERS[name]
    calls(fn, (X, a), (X, b), (X, a), (X, b), made=made)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def test_enum_argument():
    calls(lambda x, c: x + c.value, (X, Color.RED), (X, Color.BLUE), (X, Color.RED), made=2)


# ----------------------------------------------------------------------------- objects
class Config:
    factor = 2

    def __init__(self):
        self.scale = 3.0
        self.name = "a"
        self.unread = 0

    def apply(self, x):
        return x * self.scale + self.factor


class Other(Config):
    def apply(self, x):
        return x - self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


def run(config):
    return lambda x: config.apply(x)


def test_attribute_of_an_object():
    c = Config()
    changed(run(c), lambda: setattr(c, "scale", "s" and 4.0), 2, X)


def test_attribute_that_is_not_read():
    c = Config()
    changed(run(c), lambda: setattr(c, "unread", 4.0), 1, X)


def test_instance_attribute_that_hides_a_class_attribute():
    c = Config()
    changed(run(c), lambda: setattr(c, "factor", 7), 2, X)


def test_deleted_instance_attribute():
    c = Config()
    c.factor = 9
    changed(run(c), lambda: delattr(c, "factor"), 2, X)


def test_method_put_on_the_instance():
    c = Config()
    changed(run(c), lambda: setattr(c, "apply", lambda x: x * 100), 2, X)


def test_class_attribute(monkeypatch):
    c = Config()
    changed(run(c), lambda: monkeypatch.setattr(Config, "factor", 11), 2, X)


def test_method_of_the_class_replaced(monkeypatch):
    c = Config()
    changed(run(c), lambda: monkeypatch.setattr(Config, "apply", lambda self, x: x / 2), 2, X)


def test_base_class_changed(monkeypatch):
    c = Other()
    changed(lambda x: c.apply(x) + c.factor, lambda: monkeypatch.setattr(Config, "factor", 5), 2, X)


def test_class_of_the_instance():
    c = Config()
    changed(run(c), lambda: setattr(c, "__class__", Other), 2, X)


def test_dict_of_the_instance_replaced():
    c = Config()
    changed(run(c), lambda: setattr(c, "__dict__", {"scale": "t" and 8.0}), 2, X)


def test_slot_of_an_object():
    s = Slotted(2.0)
    changed(lambda x: x * s.scale, lambda: setattr(s, "scale", "3"[:0] or 3), 2, X)


def test_another_object_of_the_same_kind():
    a, b, c = Config(), Config(), Config()
    c.scale = 5
    torchweld.reset()
    compiled = torchweld.compile(lambda x, config: config.apply(x), backend="eager")
    for config in (a, b, c, a):
        same(compiled(X, config), config.apply(X))
    assert graphs() == 2


# ---------------------------------------------------------------- globals, cells, functions
LEVEL = 1
TABLE = {"a": 1}


def inner(x):
    return x + 1


def uses_globals(x):
    return inner(x) * LEVEL + TABLE["a"]


def replacement(x):
    return x - 1


def test_global_value(monkeypatch):
    changed(uses_globals, lambda: monkeypatch.setitem(globals(), "LEVEL", 1.5), 2, X)


def test_global_function(monkeypatch):
    changed(uses_globals, lambda: monkeypatch.setitem(globals(), "inner", replacement), 2, X)


def test_item_of_a_global_dict(monkeypatch):
    changed(uses_globals, lambda: monkeypatch.setitem(TABLE, "a", 5.0), 2, X)


def test_global_dict_replaced_by_an_equal_one(monkeypatch):
    changed(uses_globals, lambda: monkeypatch.setitem(globals(), "TABLE", {"a": 1}), 1, X)


def test_global_that_hides_a_builtin(monkeypatch):
    def f(x):
        return x + abs(-2)

    changed(f, lambda: monkeypatch.setitem(globals(), "abs", lambda v: 7), 2, X)


def test_unrelated_global(monkeypatch):
    changed(uses_globals, lambda: monkeypatch.setitem(globals(), "UNRELATED", 3), 1, X)


def test_cell():
    level = 1.0

    def f(x):
        return x * level

    def change():
        nonlocal level
        level = "text" and 2

    changed(f, change, 2, X)


def test_function_in_a_cell():
    fn = inner

    def f(x):
        return fn(x)

    def change():
        nonlocal fn
        fn = replacement

    changed(f, change, 2, X)


def test_code_of_a_called_function():
    def callee(x):
        return x + 1

    def change():
        callee.__code__ = replacement.__code__

    changed(lambda x: callee(x), change, 2, X)


def test_defaults_of_a_called_function():
    def callee(x, k=1):
        return x + k

    changed(lambda x: callee(x), lambda: setattr(callee, "__defaults__", (5,)), 2, X)


def test_keyword_defaults_of_a_called_function():
    def callee(x, *, k=1):
        return x + k

    changed(lambda x: callee(x), lambda: callee.__kwdefaults__.update(k=5.0), 2, X)


def test_defaults_of_the_compiled_function():
    def f(x, k=1):
        return x + k

    changed(f, lambda: setattr(f, "__defaults__", (5.0,)), 2, X)


def test_code_of_the_compiled_function():
    def f(x):
        return x + 1

    changed(f, lambda: setattr(f, "__code__", replacement.__code__), 2, X)


def test_function_argument_swapped():
    calls(lambda x, g: g(x), (X, inner), (X, replacement), (X, inner), made=2)


def test_attribute_of_a_function():
    def callee(x):
        return x + callee.k

    callee.k = 1
    changed(lambda x: callee(x), lambda: setattr(callee, "k", 2.0), 2, X)


def test_attribute_of_a_module_of_the_user():
    module = types.ModuleType("user_settings")
    module.k = 1
    changed(lambda x: x + module.k, lambda: setattr(module, "k", 2.5), 2, X)


def test_partial_with_other_arguments():
    from functools import partial

    def scaled(x, k):
        return x * k

    calls(lambda x, p: p(x), (X, partial(scaled, k=1)), (X, partial(scaled, k=2.0)), made=2)


def test_order_of_an_ordered_dict_that_was_rearranged():
    def f(x, d):
        for v in d.values():
            x = x * 2 + v
        return x

    d = OrderedDict(a=1, b=2)
    changed(lambda x: f(x, d), lambda: d.move_to_end("a"), 2, X)


# ------------------------------------------------------------------- what must not recompile
def _cells():
    level, other = 10**6, 1.0

    def f(x):
        return x * level if other else x

    def change():
        nonlocal level, other
        level, other = int("1000000"), 1.0

    return f, change


def _unread_cell():
    read, unread = 2, 3

    def f(x):
        return x * read

    def g():
        return unread

    def change():
        nonlocal unread
        unread += 1

    return f, lambda: (g(), change())


def _attributes():
    def callee(x):
        return x + callee.k

    callee.k = 1
    return lambda x: callee(x), lambda: setattr(callee, "unread", 5)


def _class_attributes():
    class Own:
        k, unread = 2, 3

        def use(self, x):
            return x * self.k

    own = Own()

    def change():
        own.other = own.unread = 6

    return lambda x: own.use(x), change


def _order():
    table = {"a": 1, "b": 2}

    def change():
        table["a"] = 1
        table.update(b=2)

    return lambda x: total(x, table.values()), change


def _set():
    held = {3, 4}

    def change():
        held.add(5)
        held.discard(5)

    return lambda x: x + sum(held), change


HARMLESS = {
    "a cell set to what it was": _cells, "a cell that is not read": _unread_cell,
    "another attribute of a function": _attributes,
    "another attribute of an object": _class_attributes, "items set to what they were": _order,
    "a set as it was": _set,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_change_that_does_not_matter_compiles_nothing(name):
    fn, change = HARMLESS[name]()
    changed(fn, change, 1, X)


def test_a_class_attribute_that_varies_and_is_not_read_compiles_nothing():
    class Own:
        k, unread = 2, 0

        def use(self, x):
            return x * self.k

    own = Own()
    torchweld.reset()
    compiled = torchweld.compile(lambda x: own.use(x), backend="eager")
    for i in range(9):
        Own.unread = i
        same(compiled(X), X * 2)
    assert graphs() == 1
