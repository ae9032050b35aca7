"""What is another object in each call, and the same to the captured code: nothing is compiled
again."""

from __future__ import annotations

import functools
import types
import typing

import pytest
import torch
from guard_twin import graphs, same
from torch import nn

import torchweld

X = torch.randn(3, 4)
WEIGHT = torch.randn(4)


def scaled(x, k=2.0, *, by=3.0, table=(1.0, 2.0)):
    return x * k + by * table[0]


def weighted(x, tables=None):
    return x * tables["w"]


class Box:
    scale = 2.0
    count = 0

    def __init__(self):
        self.k = 3.0

    def grow(self, x):
        return x * self.k * self.scale


class Middle(Box):
    pass


class Last(Middle):
    pass


class Net(nn.Module):
    calls = 0
    scale = 2.0

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.fixture(autouse=True)
def as_before():
    kept = [(kind, dict(vars(kind))) for kind in (Box, Middle, Last, Net)]
    defaults = [(fn, fn.__defaults__, fn.__kwdefaults__) for fn in (scaled, weighted)]
    yield
    for kind, before in kept:
        for name in set(vars(kind)) - set(before):
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind)[name] is not value:
                setattr(kind, name, value)
    for fn, given, named in defaults:
        fn.__defaults__, fn.__kwdefaults__ = given, named


def after_each(fn, changes, made, *args):
    """`fn` after each of the changes, compiled in all `made` times."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for change in (lambda: None, *changes):
        change()
        expected = fn(*args)
        same(compiled(*args), expected)
    assert graphs() == made


# ------------------------------------------------------------------------ functions
def equal_defaults():
    scaled.__defaults__ = tuple(float(x) for x in scaled.__defaults__)


def equal_kwdefaults():
    scaled.__kwdefaults__ = {"by": 1.5 * 2, "table": tuple(n / 2 for n in (2, 4))}


@pytest.mark.parametrize("change", [equal_defaults, equal_kwdefaults])
def test_equal_defaults_of_a_function(change):
    after_each(lambda x: scaled(x) + 1, [change] * 4, 1, X)


def test_defaults_that_change():
    def set_to(k, by):
        scaled.__defaults__ = (k,)
        scaled.__kwdefaults__ = {"by": by, "table": (1.0, 2.0)}

    changes = [functools.partial(set_to, k, k + 1) for k in (3.0, 4.0, 5.0, 2.0)]
    after_each(lambda x: scaled(x) + 1, changes, 2, X)


def test_a_default_that_is_not_used_may_change():
    def change():
        scaled.__defaults__ = (scaled.__defaults__[0] + 1,)

    after_each(lambda x: scaled(x, 5.0) + 1, [change] * 3, 1, X)


def test_more_or_fewer_defaults():
    def one():
        scaled.__defaults__ = (2.0,)

    def two():
        scaled.__defaults__ = (X, 2.0)

    after_each(lambda x: scaled(x) + 1, [two, one], 2, X)


def test_a_dict_of_tensors_as_default():
    def change():
        weighted.__defaults__ = ({"w": WEIGHT},)

    change()
    after_each(lambda x: weighted(x) + 1, [change] * 3, 1, X)


def test_another_tensor_as_default_is_seen():
    def change():
        weighted.__defaults__ = ({"w": torch.randn(4)},)

    change()
    after_each(lambda x: weighted(x) + 1, [change] * 3, 1, X)


def made_anew(value):
    def anew(x, k=value):
        return x * k + value

    return anew


@pytest.mark.parametrize("make", [
    lambda: lambda x: x * 2, lambda: made_anew(2.0), lambda: Box().grow,
    lambda: functools.partial(torch.mul, other=2.0),
    lambda: functools.partial(made_anew(1.5), k=3.0), lambda: types.MethodType(Box.grow, Box()),
], ids=["lambda", "closure", "method", "partial", "partial of one", "method by hand"])  # fmt: skip
def test_callables_made_anew(make):
    def apply(x, f):
        return f(x) + 1

    torchweld.reset()
    compiled = torchweld.compile(apply, backend="eager")
    for _ in range(4):
        given = make()
        same(compiled(X, given), apply(X, given))
    assert graphs() == 1


def test_closures_over_a_number_that_changes():
    def apply(x, f):
        return f(x) + 1

    torchweld.reset()
    compiled = torchweld.compile(apply, backend="eager")
    for value in (2.0, 3.0, 4.0, 5.0):
        given = made_anew(value)
        same(compiled(X, given), apply(X, given))
    assert graphs() == 2


def test_a_function_that_an_object_gets_anew():
    box = Box()

    def change():
        box.act = lambda x: x.relu() * 2

    change()
    after_each(lambda x: box.act(x) + 1, [change] * 4, 2, X)


def test_another_function_is_seen():
    box = Box()
    box.act = torch.relu

    def change(factor):
        box.act = (lambda x: x * 2) if factor else (lambda x: x * 3)

    changes = [functools.partial(change, i % 2) for i in range(4)]
    after_each(lambda x: box.act(x) + 1, changes, 5, X)  # the first three by their identity


# ------------------------------------------------------------------------ classes
def test_a_class_attribute_that_is_not_read():
    def change():
        Box.count += 1
        Box.fresh = Box.count
        setattr(Box, f"fresh{Box.count}", 0)

    box = Last()
    after_each(lambda x: box.grow(x) + 1, [change] * 12, 1, X)


def test_a_class_attribute_of_a_module_that_is_not_read():
    def change():
        Net.calls += 1

    net = Net()
    after_each(lambda x: net(x) + 1, [change] * 12, 1, X)


def test_a_class_attribute_that_is_deleted_and_not_read():
    Box.extra = 3
    after_each(lambda x: Box().grow(x), [lambda: delattr(Box, "extra")], 1, X)


def test_a_class_attribute_that_is_set_to_an_equal_number():
    def change():
        Box.scale = float("2.0")

    after_each(lambda x: Box().grow(x), [change] * 3, 1, X)


def test_a_zero_with_another_sign_is_another_number():
    Box.scale = 0.0

    def change():
        Box.scale = -0.0

    after_each(lambda x: torch.sign(1 / Box().grow(x.abs() + 1)), [change] * 2, 2, X)


def test_a_class_attribute_that_is_read_and_changes():
    def change():
        Box.scale += 1

    after_each(lambda x: Box().grow(x), [change] * 5, 2, X)


def found_earlier():
    Middle.grow = lambda self, x: x + 7


def number_found_earlier():
    Middle.scale = 5.0


def property_found_earlier():
    Last.k = property(lambda self: 9.0, lambda self, value: None)


@pytest.mark.parametrize("change", [found_earlier, number_found_earlier, property_found_earlier])
def test_what_would_be_found_earlier_is_seen(change):
    box = Last()
    after_each(lambda x: box.grow(x), [change, lambda: None], 2, X)


def test_a_name_that_is_looked_up_by_its_text():
    names = ["sca", "le"]

    def fn(x):
        return x * getattr(Box, "".join(names)) + hasattr(Box, "extra" + names[1])

    def add():
        Box.extrale = 3

    after_each(fn, [add, lambda: None], 2, X)


def test_all_names_of_a_class():
    def add():
        Box.extra = 3

    after_each(lambda x: x * len([n for n in dir(Box()) if n[0] != "_"]), [add, add], 2, X)


@typing.runtime_checkable
class Shrinks(typing.Protocol):
    def shrink(self, x): ...


def test_a_protocol_that_a_class_comes_to_fulfil():
    def fn(x):
        box = Box()
        return box.grow(x) + 1 if isinstance(box, Shrinks) else box.grow(x)

    def add():
        Box.shrink = lambda self, x: x

    after_each(fn, [add, lambda: None], 2, X)


def test_a_special_method_that_is_added():
    def add():
        Box.__call__ = lambda self, x: x * 3

    after_each(lambda x: Box()(x) if callable(Box()) else x + 1, [add, lambda: None], 2, X)


def test_a_module_whose_forward_is_replaced_after_harmless_changes():
    net = Net()

    def harmless():
        Net.calls += 1

    def replace():
        Net.forward = lambda self, x: x * 9

    after_each(lambda x: net(x) + 1, [harmless, replace, harmless, harmless], 2, X)


def test_functions_that_eager_code_calls_are_not_compiled_again():
    net = Net()

    def fn(x):
        y = net(x)
        if y.sum() > 1e9:
            y = y + 1
        return net(y)

    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for _ in range(4):
        Net.calls += 1
        same(compiled(X), fn(X))
        counts = torchweld.statistics()
    assert counts["recompiles"] == 0
