# The programs are written as users write them.
"""Classes that a frame makes and that leave it: made anew in each call, in one graph."""

import abc
import collections
import dataclasses
import enum
import functools
import itertools
import typing

import pytest
import torch
from eager_twin import Twins

import torchweld

ROWS = []
X = torch.arange(4.0)
KEPT = []


class Registered:
    names = []

    def __init_subclass__(cls, tag=None, **named):
        super().__init_subclass__(**named)
        Registered.names.append(cls.__name__)
        cls.tag = tag


class Meta(type):
    def __new__(meta, name, bases, space):
        made = super().__new__(meta, name, bases, space)
        made.by_meta = len(space)
        return made

    def hello(cls):
        return cls.__name__ + "!"


class Field:
    def __set_name__(self, owner, name):
        self.owner, self.name = owner, "_" + name

    def __get__(self, x, kind=None):
        return self if x is None else getattr(x, self.name, 0)

    def __set__(self, x, value):
        setattr(x, self.name, value * 2)


def leaves(look):
    """look: what is compared of the program's result, by eager code."""

    def keep(program):
        ROWS.append(pytest.param(program, look, id=program.__name__.strip("_")))
        return program

    return keep


def names(kind):
    return kind.__name__, kind.__qualname__, kind.__module__, list(vars(kind)), kind.__doc__


@leaves(lambda r, x: (r[0], names(r[1]), r[1]().f(x), r[1](), r[1].k, r[1].half(x), r[1]().p))
def class_(x, n):
    """Methods, a closure over a tensor, what the class holds."""
    z = x * 3 + n

    class A:
        """A."""

        k = [n, z]

        def f(self, v):
            return v + z + self.k[0], A is type(self), __class__ is A

        @staticmethod
        def half(v):
            return v / 2 - z

        @property
        def p(self):
            return self.k[1] + n

    return A().f(x)[0], A


@leaves(lambda r, x: (r.f(x), r.v, type(r).__mro__[1].__name__, r, isinstance(r, type(r).base)))
def instance_(x, n):
    class Base:
        def f(self, v):
            return v * n

    class Derived(Base):
        base = Base

        def __init__(self, v):
            super().__init__()
            self.v = v

        def f(self, v):
            return super().f(v) + self.v

    return Derived(x * 2 + 1 - n)


@leaves(lambda r, x: (r, r == type(r)(r.a, 3), hash(r.a), dataclasses.asdict(r), repr(type(r)(1))))
def dataclass_(x, n):
    @dataclasses.dataclass(order=True)
    class P:
        a: int
        b: typing.Any = 3
        seen: list = dataclasses.field(default_factory=list)

    return P(n, n + 1, [x * 2 + n - 1])


@leaves(lambda r, x: (r.v, r.total(), raises(lambda: setattr(r, "v", 1)), type(r).__slots__))
def frozen_and_slots_(x, n):
    @dataclasses.dataclass(frozen=True, slots=True)
    class P:
        v: torch.Tensor
        k: int = n

        def total(self):
            return self.v.sum() + self.k

    return P(x * 2 + n - 1)


def raises(fn):
    try:
        fn()
    except Exception as error:
        return type(error).__name__, str(error)


@leaves(lambda r, x: (r, r._fields, r._replace(a=1), type(r).__name__, r[1] + x, r._asdict()))
def namedtuple_(x, n):
    P = collections.namedtuple("P", "a b", defaults=(n,))
    return P(n, x * 2 + P(1).b - 1)


@leaves(lambda r, x: (r, r.double(), r._field_defaults, type(r).__annotations__))
def typed_tuple_(x, n):
    class P(typing.NamedTuple):
        a: int
        b: torch.Tensor = None

        def double(self):
            return self.b * 2 + self.a

    return P(n, x * 2 + 1 - n)


@leaves(lambda r, x: (r[0], [(m.name, m.value) for m in r[1]], r[1].TWO.up(), r[2] is r[1].ONE,
                      r[1](2).name, r[3].name, r[4] is r[1]["TWO"]))  # fmt: skip
def enum_(x, n):
    class E(enum.Enum):
        ONE = 1
        TWO = enum.auto()

        def up(self):
            return self.value + n

    return x * E.TWO.up() + E.ONE.value - 1, E, E.ONE, E.TWO, {"k": E.TWO}["k"]


@leaves(lambda r, x: (r[0], [m.name for m in r[1]], r[2].name, r[1].__module__, r[3] | r[3]))
def enum_by_call_(x, n):
    E = enum.Enum("E", "A B C")
    F = enum.IntFlag("F", ["X", "Y"])
    return x * E.B.value + 1 - n, E, E.C, (F.X | F.Y).value


@leaves(lambda r, x: (names(r[1]), r[1]().f(), r[1].__bases__[0].__name__, r[0]))
def type_(x, n):
    T = type("T", (), {"v": n, "f": lambda self: self.v})
    S = type("S", (T,), {"w": x * 2 + 1 - n})
    return S().w + S().f(), S


@leaves(lambda r, x: (r(x), r.__self__.v, r.__func__.__qualname__))
def bound_method_(x, n):
    class A:
        def __init__(self):
            self.v = x * 2 + 1 - n

        def f(self, v):
            return v + n + self.v

    return A().f


@leaves(lambda r, x: (r[0](None, x), r[0] is r[1].f, r[1].p, type(vars(r[1])["p"]).__name__))
def function_of_a_class_(x, n):
    class A:
        def f(self, v):
            return v + n

        p = x * 2 + 1 - n

    return A.f, A


@leaves(lambda r, x: (r["made"].v, KEPT[-1](3).get(), KEPT.pop() is r["kinds"][0] is r["same"][1]))
def containers_and_globals_(x, n):
    class A:
        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v, n

    KEPT.append(A)
    return {"kinds": [A, int], "made": A(x * 2 + 1 - n), "same": (A, A)}


@leaves(lambda r, x: (r[0].hello(), r[0].by_meta, type(r[0]) is Meta, r[1]))
def metaclass_(x, n):
    class A(metaclass=Meta):
        v = n

    A.later = x
    return A, x * A.by_meta + A.v - 1


@leaves(lambda r, x: (r[0].tag, r[0].__mro__[1] is Registered, r[1], Registered.names.clear()))
def told_bases_once_(x, n):
    class A(Registered, tag=n):
        pass

    return A, x * A.tag + len(Registered.names) - 1


@leaves(lambda r, x: (r.a, vars(r), type(r).a.name, type(r).a.owner is type(r), names(type(r))))
def descriptor_(x, n):
    class A:
        first = 1
        a = Field()
        last = 2

    made = A()
    made.a = x * 2 + n - 1
    return made


@leaves(lambda r, x: (r.forward(x), r(x), [*r.state_dict()], r.extra))
def module_(x, n):
    class Double(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = n
            self.inner = torch.nn.Identity()

        def forward(self, v):
            return self.inner(v * 2) + self.extra

    made = Double()
    made.extra = made(x).sum() + n
    return made


@leaves(lambda r, x: ([k.all is r[0].all for k in r], [k.__name__ for k in r[0].all], r[-1].i))
def registry_(x, n):
    class Base:
        all = []

    for i in range(3):

        class Made(Base):
            i_th = i

        Made.i = x * i + n - 1
        Base.all.append(Made)
    return Base.all


@leaves(lambda r, x: (raises(r), issubclass(r, abc.ABC), r.__abstractmethods__, isinstance(3, r)))
def abstract_(x, n):
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

        v = x * 2 + n - 1

    return A


@leaves(lambda r, x: (r(1) <= r(2), r(2) >= r(1), r(1) == r(1), r.__le__.__name__))
def ordered_(x, n):
    @functools.total_ordering
    class A:
        def __init__(self, v):
            self.v = v

        def __lt__(self, other):
            return self.v < other.v

        def __eq__(self, other):
            return self.v == other.v

        shown = x * 2 + n - 1

    return A


@leaves(lambda r, x: (r.c, r.c is r.c, r.__dict__, type(r).c.attrname, r.s, type(r).k(x)))
def cached_and_slots_(x, n):
    class A:
        z = x * 2 + n - 1

        @functools.cached_property
        def c(self):
            return self.z + n

        @classmethod
        def k(cls, v):
            return cls.z - v

    class B(A):
        __slots__ = ("s",)

    made = B()
    made.s = x - n
    return made


@leaves(lambda r, x: (raises(lambda: throw(r(3))), str(r(4)), issubclass(r, ValueError)))
def exception_(x, n):
    class Bad(ValueError):
        v = x * 2 + n - 1

        def __str__(self):
            return f"bad {self.args[0]}"

    try:
        raise Bad(n)
    except Bad as error:
        return type(error)


def throw(error):
    raise error


@leaves(lambda r, x: (r[0] is r[1].__dict__, r[0], r[1].v))
def vars_of_an_instance_(x, n):
    class A:
        def __init__(self):
            self.v = x * 2 + n - 1

    made = A()
    return vars(made), made


@leaves(lambda r, x: (r.f(r(), x), hasattr(r, "gone"), r.__doc__, list(vars(r))))
def changed_later_(x, n):
    class A:
        gone = 1

    def f(self, v):
        return v + n

    A.f = f
    A.f2 = A.f
    A.__doc__ = "later"
    A.v = x * 2 + n - 1
    return A


@leaves(lambda r, x: (r[0] is r[1].cell.kind, r[1].cell.other[0] is r[1].cell, r[1].v))
def circles_(x, n):
    class Cell:
        pass

    class A:
        cell = Cell()
        v = x * 2 + n - 1

    A.cell.kind = A
    A.cell.other = [A.cell]
    return A, A


@leaves(lambda r, x: (r[int]().f(2), r.__parameters__[0].__name__, r().f(x)))
def generic_(x, n):
    T = typing.TypeVar("T")

    class G(typing.Generic[T]):
        v = x * 2 + n - 1

        def f(self, a: T) -> T:
            return a

    return G


@leaves(lambda r, x: ([str(k) for k in r[:4]], r[0].__args__[0] is r[4], r[1].__args__[1] is r[4],
                      r[2].__args__[0] is r[4], r[3].__origin__ is r[4]))  # fmt: skip
def types_with_a_class_(x, n):
    T = typing.TypeVar("T")

    class A(typing.Generic[T]):
        v = x * 2 + n - 1

    return list[A], dict[str, A], typing.Optional[A], A[int], A  # noqa: UP045


def test_nothing_is_left_of_the_classes_of_the_capture():
    def program(x, n):
        class A:
            def f(self):
                return A

        return A, x * 2 + 1 - n

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    kinds = [compiled(X, 2)[0] for _ in range(3)]
    assert len(set(kinds)) == 3
    assert all(k().f() is k for k in kinds)
    assert torchweld.statistics()["graphs"] == 1


@pytest.mark.parametrize(("program", "look"), ROWS)
def test_program(program, look):
    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for x, n in itertools.product((X, X + 1), (2, 3)):
        expected, got = look(program(x, n), x), look(compiled(x, n), x)
        Twins().equal(expected, got)
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (0, 0)
    assert counts["graphs"] <= 2, counts
