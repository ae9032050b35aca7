# ruff: noqa: E721
# The programs are written as users write them.
"""Properties, descriptors, __getattr__, slots, class attributes, getattr and setattr."""

import pytest
import torch
from eager_twin import check, check_made

X = torch.arange(4.0)
Y = torch.ones(4)


class Temperature:
    unit = "C"
    readings = 0

    def __init__(self, t):
        self._t = t

    @property
    def t(self):
        return self._t

    @t.setter
    def t(self, value):
        self.readings += 1
        self._t = value

    @t.deleter
    def t(self):
        self._t = None


def test_property_get_set_delete():
    def program(x, o):
        o.t = o.t + x
        y = o.t * 2
        del o.t
        return y, o.t is None

    check(program, (X, Temperature(torch.ones(4))), (Y, Temperature(torch.ones(4))))


def test_property_without_setter():
    class P:
        @property
        def a(self):
            return 1

    def program(x, p):
        y = x + 1
        try:
            p.a = 2
        except AttributeError as error:
            return y, str(error)
        return y

    check(program, (X, P()))


class Typed:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name)

    def __set__(self, obj, value):
        if not isinstance(value, int):
            raise TypeError("int wanted")
        setattr(obj, self.name, value * 10)


class Owner:
    size = Typed()

    def __init__(self, size):
        self.size = size


def test_user_data_descriptor():
    def program(x, o):
        y = x * o.size
        o.size = 4
        return y + o.size, Owner.size is Owner.__dict__["size"]

    check(program, (X, Owner(2)))


def test_descriptor_that_refuses():
    def program(x):
        o = Owner(1)
        try:
            o.size = "a"
        except TypeError as error:
            return x + o.size, str(error)
        return x

    check(program, (X,))


class NonData:
    def __get__(self, obj, owner=None):
        return 5 if obj is None else obj.base + 1


class HasNonData:
    value = NonData()
    base = 2


def test_non_data_descriptor_is_shadowed_by_the_instance():
    def program(x):
        o = HasNonData()
        a = o.value
        o.value = 7
        return x * a + o.value, HasNonData.value

    check(program, (X,))


class Lazy:
    def __init__(self):
        self.known = {"a": 2}

    def __getattr__(self, name):
        if name in vars(self).get("known", ()):
            return self.known[name]
        raise AttributeError(name)


def test_getattr_method():
    def program(x, o):
        return x * o.a, getattr(o, "b", 9), hasattr(o, "c"), hasattr(o, "a")

    check(program, (X, Lazy()), (Y, Lazy()))


class Everything:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append("-" + name)
        object.__delattr__(self, name)


def test_getattribute_setattr_delattr():
    def program(x):
        o = Everything()
        o.a = x + o.magic
        o.b = 1
        del o.b
        return o.a, o.log, hasattr(o, "b")

    check(program, (X,), (Y,))


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class SlottedHeir(Slotted):
    __slots__ = ("c",)


def test_slots():
    def program(x, s):
        s.b = s.a + 1
        h = SlottedHeir(2)
        h.c = 3
        return x * s.a + s.b + h.a + h.c, hasattr(h, "b"), s

    check(program, (X, Slotted(2)))


def test_slot_deleted():
    def program(x, s):
        del s.a
        return x + 1, hasattr(s, "a"), getattr(s, "a", 5)

    check(program, (X, Slotted(2)))


def test_class_attribute_read_through_instance():
    def program(x, o):
        return x + len(o.unit) + o.readings, type(o).unit, o.__class__.__name__

    check(program, (X, Temperature(1.0)))


class Count:
    n = 0


def test_class_attribute_written():
    def program(x):
        Count.n = 5
        return x + Count.n

    check(program, (X,))
    assert Count.n == 5


def test_class_level_list_grows():
    def make():
        class Log:
            rows = []

            def add(self, x):
                self.rows.append(x)

        log = Log()

        def program(x):
            log.add(x * 2)
            return x + 1

        return program, Log.rows

    check_made(make, (X,))


def test_setattr_getattr_delattr_by_name():
    def program(x, o):
        for i, name in enumerate(("a", "b", "c")):
            setattr(o, name, x + i)
        delattr(o, "b")
        return sum(getattr(o, n) for n in ("a", "c")), hasattr(o, "b")

    check(program, (X, HasNonData()))


def test_missing_attribute_raises():
    def program(x, o):
        y = x + 1
        try:
            return o.nothing
        except AttributeError as error:
            return y, str(error)

    check(program, (X, HasNonData()))


def test_dict_of_instance():
    def program(x, o):
        o.z = 1
        return x + len(vars(o)), sorted(vars(o)), o.__dict__["_t"], "z" in o.__dict__

    check(program, (X, Temperature(3)))


def test_dict_of_instance_written():
    def program(x, o):
        o.__dict__["q"] = x + 1
        o.__dict__.update(w=2)
        return o.q + o.w

    check(program, (X, Temperature(3)))


def test_instance_method_replaced():
    def make():
        o = Temperature(2)
        o.scale = lambda x: x * 7
        return (lambda x: o.scale(x)), o

    check_made(make, (X,), (Y,))


def test_attribute_kept_in_order():
    def program(x, o):
        o.b = 1
        o.a = x
        o.b = 2
        del o._t
        return x + 1

    check(program, (X, Temperature(3)))


def test_attribute_changes_recompile():
    check(
        lambda x, o: x * o._t,
        (X, Temperature(2)),
        (X, Temperature(3)),
        (X, Temperature(2)),
        graphs=2,
    )


def test_metaclass_property_and_call():
    class Meta(type):
        @property
        def double(cls):
            return cls.n * 2

        def build(cls, n):
            made = cls()
            made.n = n
            return made

        def __len__(cls):
            return 11

    class A(metaclass=Meta):
        n = 4

    check(lambda x: x * A.double + A.build(3).n + len(A), (X,))


def test_instance_with_new():
    class One:
        def __new__(cls, n):
            made = super().__new__(cls)
            made.n = n + 1
            return made

        def __init__(self, n):
            self.m = n

    check(lambda x: (x * One(2).n, One(2)), (X,))


def test_weak_private_names():
    class A:
        def __init__(self):
            self.__hidden = 3

        def f(self, x):
            return x * self.__hidden

    check(lambda x: A().f(x), (X,))


def test_multiple_inheritance_and_super():
    class Base:
        def f(self, x):
            return x + 1

    class Left(Base):
        def f(self, x):
            return super().f(x) * 2

    class Right(Base):
        def f(self, x):
            return super().f(x) * 3

    class Both(Left, Right):
        def f(self, x):
            return super().f(x) + 10

    check(lambda x: Both().f(x), (X,), (Y,))


def test_abstract_base_class():
    import abc

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    class Square(Shape):
        def __init__(self, a):
            self.a = a

        def area(self):
            return self.a**2

    check(lambda x: (x * Square(3).area(), isinstance(Square(1), Shape)), (X,))


def test_isinstance_and_issubclass():
    import collections.abc

    def program(x, o):
        kinds = (
            isinstance(o, Temperature),
            isinstance(o, (int, str)),
            isinstance(x, torch.Tensor),
            isinstance([1], list),
            isinstance((), collections.abc.Sequence),
            isinstance(1, int | str),
            issubclass(bool, int),
            isinstance({}, collections.abc.Mapping),
            isinstance(x, torch.nn.Parameter),
            isinstance(o.__init__, collections.abc.Callable),
            isinstance(None, type(None)),
            type(x) is torch.Tensor,
            type(o) == Temperature,
        )
        return x + 1, kinds

    check(program, (X, Temperature(1)))


def test_descriptor_on_a_class_gives_itself():
    def program(x):
        return x + 1, Owner.size is Owner.__dict__["size"]

    check(program, (X,))


class Picky:
    def __init__(self, n):
        self.n = n

    @property
    def checked(self):
        if self.n > 2:
            raise AttributeError("too many")
        return self.n

    def __getattr__(self, name):
        if name == "checked" and self.n > 4:
            return -self.n
        raise AttributeError(name)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_a_property_and_getattr_that_both_fail_give_the_default(n):
    def program(x, o):
        return x + getattr(o, "checked", 7), hasattr(o, "checked")

    check(program, (X, Picky(n)))
