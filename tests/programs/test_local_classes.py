"""Class statements in the body of a captured function."""

import abc
import collections
import dataclasses
import enum
import functools
import types
import typing

import pytest
import torch
from eager_twin import check, check_made
from torch import masked

import torchweld
import torchweld.pipeline

X = torch.arange(6.0).reshape(2, 3)
Y = torch.ones(2, 3)


def test_methods_properties_and_closures_over_tensors():
    def program(x):
        class Affine:
            scale = 2

            def __init__(self, shift):
                self.shift = shift

            def __call__(self, y):
                return y * self.scale + self.shift + x

            @property
            def double(self):
                return self.shift * 2

            @double.setter
            def double(self, value):
                self.shift = value / 2

            @staticmethod
            def less(y):
                return y - 1

            @classmethod
            def named(cls, y):
                return y * cls.scale, cls.__name__, cls.__qualname__, cls.__module__

        a = Affine(3)
        a.double = 10
        return a(x), a.double, Affine.less(x), a.named(x), isinstance(a, Affine)

    check(program, (X,), (Y,))


def test_the_body_runs_once_per_call_and_reads_locals():
    def make():
        log = []

        def program(x, k):
            class Table:
                log.append("body")
                rows = [k * i for i in range(3)]
                twice = x * 2
                if k > 1:
                    more = rows[-1]

            return Table.twice + sum(Table.rows) + getattr(Table, "more", 0)

        return program, log

    check_made(make, (X, 1), (X, 2), graphs=2)


def test_super_and_class_cell():
    def program(x):
        class Base:
            def f(self, y):
                return y + 1

        class Derived(Base):
            def f(self, y):
                return super().f(y) * 2

            def name(self):
                return __class__.__name__

        d = Derived()
        return d.f(x), d.name(), issubclass(Derived, Base), [k.__name__ for k in Derived.__mro__]

    check(program, (X,))


def test_mutable_class_attributes_start_anew_in_every_call():
    def program(x):
        class Seen:
            all: typing.ClassVar = []
            by_name: typing.ClassVar = {"one": 1}

        Seen.all.append(x * 2)
        Seen().all.append(len(Seen.by_name))
        return Seen.all

    check(program, (X,))


def test_nonlocal_in_a_method():
    def program(x):
        n = 0

        class Counter:
            def up(self):
                nonlocal n
                n += 1
                return x * n

        c = Counter()
        c.up()
        return c.up(), n

    check(program, (X,))


def test_dataclass():
    def program(x):
        @dataclasses.dataclass
        class Point:
            a: int
            b: float = 2.5
            seen: list = dataclasses.field(default_factory=list)

            def total(self):
                return x * self.a + self.b

        p = Point(2)
        p.seen.append(1)
        return p.total(), p.seen, repr(p)[-25:], p == Point(2, seen=[1]), dataclasses.asdict(p)

    check(program, (X,))


def test_frozen_dataclass_with_a_tensor_as_default():
    def program(x):
        @dataclasses.dataclass(frozen=True)
        class Scaled:
            by: int = 1
            what: torch.Tensor = x * 2

        s = dataclasses.replace(Scaled(), by=4)
        try:
            s.by = 3
        except dataclasses.FrozenInstanceError:
            return s.what * s.by

    check(program, (X,))


def test_enum():
    def program(x):
        class Mode(enum.Enum):
            ONE = 1
            TWO = enum.auto()

            def scale(self, y):
                return y * self.value

        names = [m.name for m in Mode]
        return Mode.TWO.scale(x), names, Mode["ONE"] is Mode.ONE, Mode(2) is Mode.TWO, len(Mode)

    check(program, (X,))


def test_named_tuples():
    def program(x):
        class Pair(typing.NamedTuple):
            a: int
            b: object = x * 3

            def both(self):
                return self.a + self.b

        other = collections.namedtuple("other", "p q")
        p = Pair(1)
        a, b = p
        o = other(x, q=2)
        return p.both(), a, b, p._replace(a=5).a, Pair._fields, o.p * o.q

    check(program, (X,))


def test_module_class():
    def program(x):
        class Scale(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.by = 3

            def forward(self, y):
                return y * self.by

        return torch.nn.Sequential(Scale(), torch.nn.ReLU())(x - 2)

    check(program, (X,))


def test_abstract_class():
    def program(x):
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...

        class Square(Shape):
            def area(self):
                return x * x

        try:
            Shape()
        except TypeError as error:
            return Square().area(), str(error)

    check(program, (X,))


def test_exception_class():
    def program(x):
        class Wrong(ValueError):
            pass

        try:
            raise Wrong("really")
        except Wrong as error:
            return x + 1, str(error), isinstance(error, ValueError)

    check(program, (X,))


def test_context_manager_iterator_and_operators():
    def program(x):
        class Steps:
            def __init__(self, n):
                self.n = n

            def __enter__(self):
                return x * 2

            def __exit__(self, *exc):
                return True

            def __iter__(self):
                yield from range(self.n)

            def __add__(self, other):
                return Steps(self.n + other.n)

        out = []
        with Steps(1) as y:
            out.append(y)
            raise KeyError
        out += [y * i for i in Steps(1) + Steps(2)]
        return out

    check(program, (X,))


def test_total_ordering_cached_property_slots():
    def program(x):
        @functools.total_ordering
        class Size:
            __slots__ = ("n",)

            def __init__(self, n):
                self.n = n

            def __lt__(self, other):
                return self.n < other.n

            def __eq__(self, other):
                return self.n == other.n

        class Lazy:
            @functools.cached_property
            def value(self):
                return x * 2

        lazy = Lazy()
        return lazy.value + lazy.value if Size(1) <= Size(2) else x

    check(program, (X,))


def test_function_of_the_frame_as_method_stays_itself():
    def program(x):
        def f(self):
            return x + 1

        class A:
            g = f

        return A().g(), A.g is f

    check(program, (X,))


def test_masked_operators():
    names = "sum softmax mean var std amax amin prod log_softmax argmin logsumexp median cumsum"

    def program(x, m):
        return [getattr(masked, n)(x, 1, mask=m) for n in names.split()], masked.norm(x, 2, 1)

    check(program, (X, X > 2), (X, X < 4))


def returned(x):
    class A:
        pass

    return A


def instance_returned(x):
    class A:
        pass

    return A()


def method_returned(x):
    class A:
        def f(self):
            return 1

    return A.f


def property_returned(x):
    class A:
        @property
        def f(self):
            return 1

    return A.__dict__["f"]


def tuple_returned(x):
    class P(typing.NamedTuple):
        a: int

    return P(1)


def member_returned(x):
    class Mode(enum.Enum):
        ONE = 1

    return Mode.ONE


@pytest.mark.parametrize(
    "inner",
    [returned, instance_returned, method_returned, property_returned, tuple_returned,
     member_returned],
)  # fmt: skip
def test_what_leaves_the_frame_is_made_anew_in_every_call(inner):
    def program(x):
        return x + 1, inner(x)

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    (y, first), (_, second) = compiled(X), compiled(X)
    assert torch.equal(y, X + 1)
    assert first is not second and (type(first) is type(second)) == (type(first) in SHARED)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (1, 0, 0)


SHARED = (type, property, types.FunctionType)


def stored(x, box):
    class A:
        pass

    box.append(A())
    return x + 1


def test_an_instance_put_into_an_outside_list():
    box = []
    torchweld.reset()
    compiled = torchweld.compile(stored, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(X, box)
    assert len({type(x) for x in box}) == 3
    assert all(type(x).__qualname__ == "stored.<locals>.A" for x in box)


class Registry:
    known: typing.ClassVar[list[str]] = []

    def __init_subclass__(cls):
        Registry.known.append(cls.__name__)


def test_code_of_the_user_that_runs_when_a_class_is_made():
    def program(x):
        class A(Registry):
            pass

        return x + 1

    Registry.known.clear()
    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 1)
    assert Registry.known == ["A"]
