"""isinstance, special methods of C, and subclasses that say other than their contents."""

import collections
import typing

import pytest
import torch
from eager_twin import check, check_made, check_refused

import torchweld
import torchweld.pipeline

X = torch.arange(4.0)


class Tagged(type):
    def __instancecheck__(cls, x):
        return hasattr(x, "tag")

    def __subclasscheck__(cls, kind):
        return kind is int


class Kind(metaclass=Tagged):
    pass


class Fitted(type):
    """A check that asks the ordinary one too."""

    def __instancecheck__(cls, x):
        return hasattr(x, "tag") and super().__instancecheck__(x)


class Base(metaclass=Fitted):
    pass


class Derived(Base):
    tag = 1


class Item:
    def __init__(self, tag=False):
        if tag:
            self.tag = 1


def test_a_metaclass_decides_about_instances_and_subclasses():
    item = Item()

    def asks(x):
        answers = (isinstance(Item(True), Kind), isinstance(Item(), Kind), isinstance(item, Kind),
                   isinstance(item, int | Kind), isinstance(Item(True), (str, (int, Kind))),
                   isinstance(x, Kind), issubclass(int, Kind), issubclass(str, Kind),
                   isinstance(Kind(), Kind), isinstance(Derived(), Base),
                   isinstance(Base(), Base))  # fmt: skip
        return x + sum(answers), answers

    check(asks, (X,))


def test_a_class_pattern_asks_the_metaclass():
    def matches(x):
        match Item(True):
            case Kind():
                return x + 1
            case _:
                return x - 1

    check(matches, (X,))


def test_the_check_is_called_as_often_as_in_eager():
    def made():
        log = []

        class Counted(type):
            def __instancecheck__(cls, x):
                log.append(type(x).__name__)
                return False

        class Never(metaclass=Counted):
            pass

        return lambda x: x + isinstance(3, Never) + isinstance(Never(), Never), log

    check_made(made, (X,))


@typing.runtime_checkable
class Scaled(typing.Protocol):
    scale: float


def test_a_protocol_of_data_and_an_object_of_the_frame():
    def asks(x):
        item, other = Item(), Item()
        item.scale = 2.0
        return x + isinstance(item, Scaled) + 2 * isinstance(other, Scaled)

    check(asks, (X,))


class Unchecked(typing.Protocol):
    scale: float


def test_a_protocol_that_is_not_checked():
    check_refused(lambda x: x + isinstance(Item(), Unchecked), X, code="W107",
                  says="not checked")  # fmt: skip


# ------------------------------------------------------------ methods of C as special methods
class AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Softly(dict):
    __getattr__ = dict.get
    __getitem__ = dict.get


def test_attributes_that_are_items():
    def made():
        box = AttrDict(start=2)

        def fn(x):
            box.scale = box.start + 1
            y = x * box.scale
            del box.scale
            return y, "scale" in box

        return fn, [box]

    check_made(made, (X,))


def test_attributes_that_are_items_of_an_object_of_the_frame():
    def fn(x):
        box = AttrDict(start=2)
        box.scale = box.start + 1
        soft = Softly(a=1)
        return x * box.scale, dict(box), soft.a, soft.b, soft["c"]

    check(fn, (X,))


class Computed:
    def __getattr__(self, name):
        return 42

    def found(self, name):
        try:
            return object.__getattribute__(self, name)
        except AttributeError:
            return None


class Guarded:
    def __getattribute__(self, name):
        if name == "hidden":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __getattr__(self, name):
        return 42


def test_object_getattribute_asks_no_getattr():
    computed = Computed()
    check(lambda x: (x + computed.a, computed.found("a"), Guarded().hidden), (X,))


# --------------------------------------------------------------- attributes set and deleted
class Counted:
    """A descriptor that keeps its value in the dictionary of the instance."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__.get(self.name, 0)

    def __set__(self, instance, value):
        instance.__dict__[self.name] = value * 2

    def __delete__(self, instance):
        instance.__dict__.pop(self.name, None)


class Doubled:
    def __get__(self, instance, owner=None):
        return 7


class Parts:
    __slots__ = ("__dict__", "slot")
    counted, doubled, plain = Counted(), Doubled(), 3


@pytest.mark.parametrize("name", ["counted", "doubled", "plain", "slot", "other"])
def test_set_and_deleted_in_one_frame(name):
    def fn(x, parts):
        setattr(parts, name, 5)
        y = x * getattr(parts, name)
        delattr(parts, name)
        return y, hasattr(parts, name)

    check(fn, (X, Parts()))


# ----------------------------------------------------------------- subclasses of containers
class Nines(list):
    def __iter__(self):
        return iter([9])

    def __getitem__(self, i):
        return 7

    def __len__(self):
        return 4


class Keyed(dict):
    def __getitem__(self, key):
        return 5

    def __iter__(self):
        return iter("zz")

    def keys(self):
        return ["q"]


def test_lists_that_iterate_over_something_else():
    def fn(x, made):
        box = Nines([1, 2]) if made else GIVEN
        return (x + 1, list(box), [*box], tuple(box), set(box), dict.fromkeys(box), sum(box),
                list(reversed(box)), len(box), box[0], [*map(int, box)])  # fmt: skip

    check(fn, (X, True), (X, False))


GIVEN = Nines([1, 2])


def test_dicts_whose_keys_are_others():
    def fn(x):
        box, into = Keyed(a=1), {}
        into.update(box)
        return x + 1, dict(box), {**box}, into, collections.OrderedDict(box), list(box)

    check(fn, (X,))


class Raised(collections.OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)


def test_ordered_dicts_put_items_in_by_their_own_method():
    def fn(x):
        box = Raised(a=1)
        box.update(b=2)
        box.setdefault("c", 3)
        box |= {"d": 4}
        return x + 1, dict(box), type(box | {"e": 5}).__name__

    check_refused(fn, X, code="W103", says="Raised.__setitem__")


class Plain(dict):
    pass


def test_a_copy_of_a_dict_is_no_instance_of_the_subclass():
    def fn(x, box):
        return x + 1, box.copy(), Plain(a=1).copy()

    check(fn, (X, Plain(b=2)))


def test_a_copy_of_an_ordered_dict_is_one():
    class Sorted(collections.OrderedDict):
        pass

    given = Sorted(a=1)
    for fn in (lambda x: (x + 1, given.copy()), lambda x: (x + 1, Sorted(b=1).copy())):
        torchweld.reset()
        assert type(torchweld.compile(fn, backend="eager")(X)[1]) is Sorted


# ------------------------------------------------------------------------ dropped objects
def test_an_object_with_a_del_that_the_frame_drops():
    log = []

    class Noted:
        def __del__(self):
            log.append("dropped")

    def fn(x):
        noted = Noted()
        noted = None
        log.append("after")
        return x + 1

    torchweld.reset()
    torch.testing.assert_close(torchweld.compile(fn, backend="eager")(X), X + 1)
    assert log == ["dropped", "after"]
    refusals = [r.code for r in torchweld.pipeline.STATISTICS.refusals]
    assert "W123" in refusals


def test_an_object_with_a_del_that_leaves_the_frame_is_captured():
    class Noted:
        def __del__(self):
            pass

    def made():
        def fn(x):
            noted = Noted()
            noted.x = x + 1
            return noted

        return fn

    check_made(made, (X,))
