"""What classes and modules are given, or lose, after a function that asks them was compiled."""

import abc
import collections.abc
import sys
import types
import typing

import pytest
import torch
from guard_twin import calls, changed, graphs, same

import torchweld

X = torch.arange(4.0)


def with_property():
    class Config:
        pass

    config = Config()
    config.scale = 2
    return lambda x: x * config.scale, lambda: setattr(Config, "scale", property(lambda _: 9))


def with_registered_class():
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    square = Square()
    return lambda x: x + isinstance(square, Shape), lambda: Shape.register(Square)


def with_registered_mapping():
    class Table:
        pass

    table = Table()
    return (lambda x: x + isinstance(table, collections.abc.Mapping),
            lambda: collections.abc.Mapping.register(Table))  # fmt: skip


def with_registered_subclass():
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    return lambda x: x + issubclass(Square, Shape), lambda: Shape.register(Square)


def with_instancecheck():
    class Meta(type):
        pass

    class Kind(metaclass=Meta):
        pass

    def change():
        Meta.__instancecheck__ = lambda kind, x: True

    return lambda x: x + isinstance(x, Kind), change


def with_attribute_in_a_module():
    module = types.ModuleType("given")
    return (lambda x: x + (1 if hasattr(module, "scale") else 2),
            lambda: setattr(module, "scale", 1))  # fmt: skip


def with_getattr_in_a_module():
    module = types.ModuleType("given")
    return (lambda x: x + getattr(module, "scale", 2),
            lambda: setattr(module, "__getattr__", lambda name: 5))  # fmt: skip


def with_getattr_of_a_metaclass():
    class Meta(type):
        pass

    class Kind(metaclass=Meta):
        pass

    def change():
        Meta.__getattr__ = lambda kind, name: 5

    return lambda x: x + getattr(Kind, "scale", 2), change


def with_property_of_a_metaclass():
    class Meta(type):
        pass

    class Kind(metaclass=Meta):
        scale = 2

    return lambda x: x + Kind.scale, lambda: setattr(Meta, "scale", property(lambda kind: 5))


@pytest.mark.parametrize("make", [
    with_property, with_registered_class, with_registered_mapping, with_registered_subclass,
    with_instancecheck, with_attribute_in_a_module, with_getattr_in_a_module,
    with_getattr_of_a_metaclass, with_property_of_a_metaclass,
])  # fmt: skip
def test_what_a_class_is_given_is_seen(make):
    fn, change = make()
    changed(fn, change, 2, X)


def test_what_an_instance_loses_is_seen_by_a_protocol():
    @typing.runtime_checkable
    class Scaled(typing.Protocol):
        scale: float

    class Layer:
        def __init__(self):
            self.scale = 2.0

    layer = Layer()
    changed(lambda x: x + isinstance(layer, Scaled), lambda: delattr(layer, "scale"), 2, X)


def test_an_unrelated_registration_compiles_nothing():
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Other(abc.ABC):  # noqa: B024
        pass

    layer = types.SimpleNamespace()
    changed(lambda x: x + isinstance(layer, Shape), lambda: Other.register(dict), 1, X)


def test_leaves_and_others_are_told_apart():
    leaf = torch.ones(4, requires_grad=True)

    def about(x):
        return x * 2, x.is_leaf, x.grad_fn is None

    torchweld.reset()
    compiled = torchweld.compile(about, backend="eager")
    for x in (leaf, X):
        same(compiled(x), about(x))
    assert graphs() == 2
    assert compiled(leaf * 1)[1:] == (False, False)


def test_leaves_of_two_kinds_share_what_asks_only_for_gradients():
    calls(lambda x: (x * 2, x.requires_grad), (X,), (X + 1,), made=1)


def test_another_module_under_the_name_that_the_frame_imports(monkeypatch):
    def named(scale):
        module = types.ModuleType("given")
        module.scale = scale
        return module

    def fn(x):
        import given  # a name in sys.modules
        return x * given.scale

    monkeypatch.setitem(sys.modules, "given", named(2))
    changed(fn, lambda: monkeypatch.setitem(sys.modules, "given", named(5)), 2, X)
