# ruff: noqa: UP042
# The programs are written as users write them.
"""Dataclasses, named tuples, enums, dict-like outputs, configurations."""

import collections
import dataclasses
import enum
import typing

import torch
from eager_twin import check, check_made

X = torch.arange(4.0)
Y = torch.ones(4)


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    n: int = 2
    tags: list = dataclasses.field(default_factory=list)

    def scaled(self):
        return self.x * self.n


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: int = dataclasses.field(default=3, compare=False)
    c: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "c", self.a + self.b)


@dataclasses.dataclass(order=True, slots=True)
class Ordered:
    k: int
    v: str = "v"


@dataclasses.dataclass(kw_only=True)
class KwOnly(Point):
    extra: int = 1
    start: dataclasses.InitVar[int] = 5

    def __post_init__(self, start):
        self.extra += start


def test_dataclass_made_and_returned():
    check(lambda x: Point(x + 1, tags=[1]), (X,), (Y,))


def test_dataclass_argument():
    def program(p):
        p.n = 5
        p.tags.append("t")
        return p.scaled()

    check(program, (Point(X),), (Point(Y),))


def test_frozen_dataclass():
    def program(x):
        f = Frozen(1, b=4)
        y = x * f.c
        try:
            f.a = 3
        except dataclasses.FrozenInstanceError as error:
            return y, str(error), f == Frozen(1, 9), hash(f) == hash(Frozen(1)), f

    check(program, (X,))


def test_frozen_dataclass_as_key():
    table = {Frozen(1): 5}
    check(lambda x, f: x * table[f], (X, Frozen(1)), (Y, Frozen(1)))


def test_replace_fields_asdict():
    def program(x):
        p = dataclasses.replace(Point(x), n=7)
        names = [f.name for f in dataclasses.fields(p)]
        return p, names, p.x + 1, dataclasses.asdict(Frozen(2)), dataclasses.is_dataclass(p)

    check(program, (X,), (Y,))


def test_ordered_and_repr():
    def program(x):
        a, b = Ordered(1), Ordered(2)
        return x + a.k, a < b, a == Ordered(1), max(a, b).k, repr(a), f"{b}", sorted([b, a])[0] is a

    check(program, (X,))


def test_kw_only_and_init_var():
    check(lambda x: (x * KwOnly(x=x, extra=2).extra, KwOnly(x=x, start=1)), (X,))


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: int = 4

    def total(self):
        return self.left + self.right


Plain = collections.namedtuple("Plain", "a b")


def test_named_tuples():
    def program(x, p):
        a, b = p
        q = Pair(x * 2)
        r = p._replace(right=9)
        return (
            p.total() + a,
            b,
            q,
            r,
            q.right,
            Plain(1, b=x),
            p[0],
            p._fields,
            p._asdict(),
            Plain._make([1, 2]),
            isinstance(q, tuple),
            len(q),
        )

    check(program, (X, Pair(X, 1)), (Y, Pair(Y, 1)))


def test_torch_return_types():
    def program(x):
        r = torch.max(x, 0)
        s = x.sort()
        return r.values + s.indices[0], r.indices, r, s[0]

    check(program, (X,), (Y,))


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    @property
    def double(self):
        return self.value * 2

    def scale(self, x):
        return x * self.double if self is Color.RED else x

    @classmethod
    def pick(cls, name):
        return cls[name]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Bits(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Word(str, enum.Enum):
    GO = "go"
    STOP = "stop"


def test_enums():
    def program(x, c):
        return (
            c.scale(x + 1),
            c.name,
            c.value,
            Color("b") is Color.BLUE,
            Color.pick("RED").name,
            [m.name for m in Color],
            c == Color.RED,
            c in (Color.BLUE,),
            Level.HIGH + 1,
            Level.LOW < Level.HIGH,
            Word.GO == "go",
            Word.GO.upper(),
            {Color.RED: 4}[Color.RED],
            len(Color),
            Color.RED.double,
            isinstance(c, Color),
            Bits.A | Bits.B,
            Bits.A in (Bits.A | Bits.B),
            Color["BLUE"],
            f"{Level.HIGH}",
            str(Color.RED),
            repr(Color.RED),
            hash(c) == hash(c),
            Level(3),
            "RED" in Color.__members__,
        )

    check(program, (X, Color.RED), (X, Color.BLUE), graphs=2)


def test_unknown_enum_value_raises():
    def program(x):
        y = x + 1
        try:
            return Color(99)
        except ValueError as error:
            return y, str(error)

    check(program, (X,))


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A dict whose items are attributes too, as model libraries return."""

    logits: torch.Tensor = None
    hidden: tuple = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            v = getattr(self, field.name)
            if v is not None:
                super().__setitem__(field.name, v)

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


def test_dict_like_output():
    def program(x):
        o = Output(logits=x + 1)
        o["hidden"] = (x,)
        o.logits = o.logits * 2
        return o, o[0], o["hidden"], list(o.keys()), len(o), "logits" in o

    check(program, (X,), (Y,))


def test_dict_like_argument():
    def program(o):
        return o.logits + o["logits"] + o[0], o.hidden is None

    check(program, (Output(logits=X),), (Output(logits=Y),))


class Config:
    defaults = {"act": "relu"}

    def __init__(self, **kw):
        for k, v in {**self.defaults, **kw}.items():
            setattr(self, k, v)

    def __getattr__(self, name):
        if name.startswith("n_"):
            return 0
        raise AttributeError(name)

    def to_dict(self):
        return dict(self.__dict__)


def test_config_object():
    def program(x, c):
        y = x * c.width + c.n_heads if c.act == "relu" else x - 1
        return y, getattr(c, "missing", None), c.to_dict(), [k for k, v in vars(c).items()]

    check(program, (X, Config(width=3)), (X, Config(width=3, act="gelu")), graphs=2)


def test_config_changed_inside():
    def program(x, c):
        c.width = c.width + 1
        c.sizes.append(2)
        return x * c.width

    check(program, (X, Config(width=3, sizes=[1])))


def test_typed_dict_and_generic():
    class T(typing.TypedDict):
        a: int

    class G(typing.Generic[typing.TypeVar("V")]):
        def __init__(self, v):
            self.v = v

    check(lambda x: (x * T(a=2)["a"], G[int](3).v, typing.cast(int, 4)), (X,))


def test_protocol_isinstance():
    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class A:
        def go(self):
            return 3

    check(lambda x: (x * A().go(), isinstance(A(), P), isinstance(3, P)), (X,))


def test_attribute_dict():
    class AttrDict(dict):
        def __getattr__(self, k):
            try:
                return self[k]
            except KeyError:
                raise AttributeError(k) from None

        def __setattr__(self, k, v):
            self[k] = v

    def program(x, d):
        d.b = x + d.a
        return d.b, hasattr(d, "zz"), d

    check(program, (X, AttrDict(a=1)), (Y, AttrDict(a=1)))


def test_instance_shared_by_two_results():
    def program(x):
        p = Point(x + 1)
        return {"a": p, "b": [p, p.x]}

    check(program, (X,))


def test_class_attribute_of_dataclass_changes():
    def make():
        box = Point(torch.ones(4), 2)

        def program(x):
            box.n += 1
            return x * box.n

        return program, box

    check_made(make, (X,), graphs=2)
