# ruff: noqa: UP042
# The programs are written as users write them.
"""Small programs: attributes, classes, data classes, enums, containers."""

import collections
import dataclasses
import enum
import typing

import pytest
import torch
from language_classes import Prop
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Desc:
    def __set_name__(self, o, n):
        self.n = "_" + n

    def __get__(self, obj, t=None):
        return self if obj is None else obj.__dict__.get(self.n, 7)

    def __set__(self, obj, v):
        obj.__dict__[self.n] = v

    def __delete__(self, obj):
        del obj.__dict__[self.n]


class HasDesc:
    d = Desc()


class NonData:
    def __get__(self, o, t=None):
        return 5 if o is None else 6


class HasNon:
    nd = NonData()


class GA:
    def __init__(self):
        self.a = 1

    def __getattr__(self, name):
        if name.startswith("z"):
            return len(name)
        raise AttributeError(name)


class GAll:
    def __init__(self):
        self.k = 2

    def __getattribute__(self, name):
        if name == "magic":
            return 11
        return object.__getattribute__(self, name)

    def __setattr__(self, n, v):
        object.__setattr__(self, n, v if n == "k" else v + 1)

    def __delattr__(self, n):
        object.__delattr__(self, n)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Meta(type):
    def __new__(m, name, bases, ns, **kw):
        ns["added"] = kw.get("add", 3)
        return super().__new__(m, name, bases, ns)

    def __init__(c, name, bases, ns, **kw):
        super().__init__(name, bases, ns)

    def __call__(c, *a, **k):
        o = super().__call__(*a, **k)
        o.tag = "t"
        return o

    def __len__(c):
        return 4

    def __getitem__(c, i):
        return i * 2

    @property
    def mp(c):
        return 8

    def __iter__(c):
        return iter([1, 2])

    def __contains__(c, k):
        return k == 1


class WithMeta(metaclass=Meta, add=6):
    pass


@dataclasses.dataclass(frozen=True)
class FD:
    a: torch.Tensor
    b: int = 2

    def __post_init__(self):
        object.__setattr__(self, "extra", self.b + 1)


@dataclasses.dataclass(slots=True, order=True)
class SD:
    a: int
    b: list = dataclasses.field(default_factory=list, compare=False)
    c: int = dataclasses.field(default=1, repr=False)


@dataclasses.dataclass(kw_only=True)
class KD:
    a: int
    b: int = 2
    k: typing.ClassVar[int] = 3
    iv: dataclasses.InitVar[int] = 4

    def __post_init__(self, iv):
        self.s = iv + self.a


class NT(typing.NamedTuple):
    a: int
    b: torch.Tensor = None

    def tot(self):
        return self.a + 1


NT2 = collections.namedtuple("NT2", "p q", defaults=[5])


class Color(enum.Enum):
    R = 1
    G = 2

    def m(self):
        return self.value * 10


class IE(enum.IntEnum):
    A = 1
    B = 2


class FL(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = enum.auto()


class SE(str, enum.Enum):
    U = "u"
    V = "v"


@stateless()
def uses_descriptor(x, y, n):
    h = HasDesc()
    a = h.d
    h.d = n
    b = h.d
    del h.d
    return x * a + b * h.d


@stateless()
def uses_descriptor_class_access(x, y, n):
    return x + 1, HasDesc.d.n


@stateless()
def uses_nondata(x, y, n):
    h = HasNon()
    a = h.nd
    h.nd = 9
    return x * a + h.nd, HasNon.nd


@stateless()
def uses_property(x, y, n):
    p = Prop(n)
    p.v = 3
    a = p.v
    del p.v
    return x * a + p.v, p.c, p.c, Prop.s(n), Prop.k(4).v, p.k(2).v


@stateless()
def uses_property_noset(x, y, n):
    class Q:
        @property
        def r(self):
            return 1

    z = x + 1
    try:
        Q().r = 3
    except AttributeError as e:
        return z, str(e)


@stateless()
def uses_getattr_hook(x, y, n):
    g = GA()
    return x + g.a * g.zzz, getattr(g, "q", 3), hasattr(g, "w"), hasattr(g, "z")


@stateless()
def uses_getattribute(x, y, n):
    g = GAll()
    g.w = 5
    a = g.w
    del g.w
    return x * g.magic + g.k, a, hasattr(g, "w")


@stateless()
def uses_slots(x, y, n):
    s = Slots(x + n)
    try:
        s.b
    except AttributeError as e:
        m = str(e)
    s.b = 2
    try:
        s.c = 1
    except AttributeError as e:
        m2 = str(e)
    return s.a * s.b, m, m2, hasattr(s, "__dict__")


@stateless()
def uses_metaclass(x, y, n):
    w = WithMeta()
    return (
        x * w.added,
        w.tag,
        len(WithMeta),
        WithMeta[n],
        WithMeta.mp,
        list(WithMeta),
        1 in WithMeta,
        3 in WithMeta,
    )


@stateless()
def uses_class_in_forward(x, y, n):
    class A:
        k = n

        def f(self, t):
            return t * self.k

    class B(A):
        def f(self, t):
            return super().f(t) + 1

    return B().f(x), B.__name__, B.__mro__[1].__name__, issubclass(B, A), isinstance(B(), A)


@stateless()
def uses_metaclass_in_forward(x, y, n):
    class B(metaclass=Meta, add=n):
        pass

    return x * B().added


@stateless()
def uses_type3(x, y, n):
    T = type("T", (), {"v": n, "g": lambda self, t: t + self.v})
    return T().g(x), T.__name__


@stateless()
def uses_frozen(x, y, n):
    f = FD(x + 1, n)
    try:
        f.b = 3
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    g = dataclasses.replace(f, b=9)
    return f.a * g.b, f.extra, g.extra, m


@stateless()
def uses_slots_dc(x, y, n):
    s, t = SD(n), SD(3, [1])
    s.b.append(x + 1)
    return (
        s.b[0] * 2,
        s < t,
        s == t,
        repr(t),
        dataclasses.asdict(t),
        dataclasses.astuple(t),
        [f.name for f in dataclasses.fields(s)],
    )


@stateless()
def uses_kw_dc(x, y, n):
    k = KD(a=n)
    return x * k.s + KD.k, dataclasses.is_dataclass(k)


@stateless()
def uses_dc_missing(x, y, n):
    z = x + 1
    try:
        KD()
    except TypeError as e:
        return z, str(e)


@stateless()
def uses_namedtuple(x, y, n):
    t = NT(n, x + 1)
    u = NT2(1)
    a, b = t
    return (
        b * a + t.tot(),
        u,
        u._replace(p=3),
        u._asdict(),
        u._fields,
        NT2._make([1, 2]),
        t._replace(a=4),
        u == (1, 5),
        u[1],
    )


@stateless()
def uses_namedtuple_err(x, y, n):
    z = x + 1
    try:
        NT2()
    except TypeError as e:
        m = str(e)
    try:
        NT2(1)._replace(zz=1)
    except ValueError as e:
        m2 = str(e)
    return z, m, m2


@stateless()
def uses_enum(x, y, n):
    return (
        x * Color.R.m() + Color(2).value,
        Color["G"].name,
        [c.name for c in Color],
        IE.A + 1,
        IE.B > IE.A,
        FL.A | FL.B,
        FL.A in (FL.A | FL.B),
        SE("u") == "u",
        SE.V.upper(),
        len(Color),
        Color.R is Color(1),
        isinstance(Color.R, Color),
        repr(Color.R),
        str(IE.B),
        f"{SE.U}",
        f"{Color.R}",
    )


@stateless()
def uses_enum_err(x, y, n):
    z = x + 1
    try:
        Color(9)
    except ValueError as e:
        m = str(e)
    try:
        Color["Z"]
    except KeyError as e:
        m2 = str(e)
    return z, m, m2


@stateless()
def uses_defaultdict(x, y, n):
    d = collections.defaultdict(list)
    d["a"].append(x + 1)
    d["b"]
    e = collections.defaultdict(lambda: n)
    e["q"] += 1
    return d, dict(e), "z" in d, d.get("z"), len(d), d.default_factory


@stateless()
def uses_chainmap(x, y, n):
    c = collections.ChainMap({"a": 1}, {"a": 2, "b": x + 1})
    c["z"] = n
    return (
        c["a"],
        c["b"],
        list(c),
        c.maps[0],
        len(c),
        c.new_child({"q": 1})["q"],
        c.parents["a"],
        "b" in c,
        c.get("nope", 4),
        dict(c),
    )


@stateless()
def uses_counter(x, y, n):
    c = collections.Counter("abracadabra")
    c.update("aa")
    d = collections.Counter(a=1, z=n)
    return (
        x + c["a"],
        c.most_common(2),
        c + d,
        c - d,
        c & d,
        c | d,
        c["nope"],
        sum(c.values()),
        list(d.elements()),
        c.total(),
    )


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
