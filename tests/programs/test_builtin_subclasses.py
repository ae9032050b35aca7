# ruff: noqa: RUF005, UP031, UP032, UP042
# The programs are written as users write them.
"""Subclasses of str, int, float, tuple, list, dict and set with methods of their own."""

import enum
import math
import typing

import pytest
import torch
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class MyStr(str):
    def shout(self):
        return self.upper() + "!"

    def __add__(self, o):
        return MyStr(str.__add__(self, o))


class MyInt(int):
    def double(self):
        return self * 2

    def __add__(self, o):
        return MyInt(int(self) + o + 100)


class MyFloat(float):
    def half(self):
        return self / 2


class MyTuple(tuple):
    def first(self):
        return self[0]


class MyList(list):
    def second(self):
        return self[1]

    def append(self, v):
        super().append(v * 2)


class MyDict(dict):
    def __missing__(self, k):
        return k

    def __getattr__(self, k):
        return self[k]


class MySet(set):
    def total(self):
        return sum(self)


class MyBytes(bytes):
    def n(self):
        return len(self)


class NewInt(int):
    def __new__(cls, v, tag):
        s = super().__new__(cls, v)
        s.tag = tag
        return s


class Str2(str):
    def __new__(cls, a, b):
        return super().__new__(cls, a + b)


class IE(enum.IntEnum):
    A = 1
    B = 2


class SE(str, enum.Enum):
    A = "a"


class NT(typing.NamedTuple):
    a: int
    b: int = 3

    def s(self):
        return self.a + self.b


class NT2(NT):
    def d(self):
        return self.s() * 2


class Shout(str):
    def __str__(self):
        return "SHOUT"


class EqInt(int):
    def __eq__(self, o):
        return True

    def __hash__(self):
        return 1

    def __index__(self):
        return 2


class Fz(frozenset):
    def big(self):
        return len(self) > 1


class Deg(float):
    def __new__(cls, v, unit="c"):
        s = float.__new__(cls, v)
        s.unit = unit
        return s

    def __repr__(self):
        return f"{float(self)}{self.unit}"


GS, GI, GF, GT, GL, GD, GSet, GN = (
    MyStr("ab"),
    MyInt(3),
    MyFloat(1.5),
    MyTuple((1, 2)),
    MyList([1, 2]),
    MyDict(a=1),
    MySet([1, 2]),
    NewInt(4, "t"),
)
GDEG = Deg(3.5, "f")


@stateless()
def str_(x, y, n):
    s = MyStr("ab")
    return (
        x + len(s),
        s.shout(),
        (s + "c").shout(),
        s[0],
        s == "ab",
        isinstance(s, str),
        type(s).__name__,
        s,
        f"{s}",
        {s: 1}["ab"],
    )


@stateless()
def str_out_(x, y, n):
    return x + len(GS), GS.shout(), GS + "q", GS


@stateless()
def int_(x, y, n):
    i = MyInt(n)
    return (
        x + i.double(),
        i + 1,
        i * 2,
        i,
        int(i),
        x * i,
        list(range(i)),
        i == n,
        type(i + 1).__name__,
        [5, 6, 7, 8, 9, 10][i],
    )


@stateless()
def int_out_(x, y, n):
    return x + GI.double(), GI + 1, GI, x * GI


@stateless()
def float_(x, y, n):
    f = MyFloat(2.5)
    return x * f.half(), f + 1, f, x * f, GF.half(), GF


@stateless()
def tuple_(x, y, n):
    t = MyTuple((n, 2))
    return (
        x + t.first(),
        t,
        t + (1,),
        len(t),
        [*t],
        t[1:],
        hash(t) == hash((n, 2)),
        GT.first(),
        t == (n, 2),
        GT,
    )


@stateless()
def list_(x, y, n):
    m = MyList([1, n])
    m.append(3)
    return x + m.second(), m, m[2], len(m), m + [1], GL.second(), sorted(m)


@stateless()
def list_out_(x, y, n):
    GL.append(n)
    r = GL[-1]
    GL.pop()
    return x + r, list(GL)


@stateless()
def dict_(x, y, n):
    d = MyDict(b=n)
    d["c"] = 3
    return x + d.b, d["q"], len(d), d, GD.a, {**d}, "z" in d, d.get("z")


@stateless()
def set_(x, y, n):
    s = MySet([1, n])
    s.add(7)
    return x + s.total(), 7 in s, GSet.total(), len(s), type(s | {1}).__name__


@stateless()
def bytes_(x, y, n):
    return x + MyBytes(b"abc").n()


@stateless()
def newint_(x, y, n):
    i = NewInt(n, "z")
    return x + i, i.tag, GN.tag, x * GN


@stateless()
def str2_(x, y, n):
    s = Str2("a", "b")
    return x + 1, s, s.upper(), len(s), repr(s), hash(s) == hash("ab")


@stateless()
def ienum_(x, y, n):
    return (
        x + IE.A,
        IE.A + 1,
        IE(2),
        SE.A == "a",
        SE.A.upper(),
        SE("a"),
        IE["B"],
        [e.value for e in IE],
        SE.A + "b",
        f"{SE.A.value}",
    )


@stateless()
def nt_(x, y, n):
    t = NT(n)
    u = NT2(n, 4)
    return x + t.s(), t._replace(a=9), t._asdict(), u.d(), u, NT._fields, NT._make([1, 2])


@stateless()
def strover_(x, y, n):
    s = Shout("a")
    return (
        x + 1,
        str(s),
        "%s" % s,
        f"{s}",
        "{}".format(s),
        "-".join([s, "b"]),
        s + "c",
        [s] == ["a"],
    )


@stateless()
def fz_(x, y, n):
    f = Fz([1, n, 2])
    return (
        x + 1,
        f.big(),
        f | {9},
        f == {1, 2, n},
        hash(f) == hash(frozenset([1, 2, n])),
        f,
        {f: 1}[frozenset([1, 2, n])],
    )


@stateless()
def strkey_(x, y, n):
    d = {MyStr("a"): n, "b": 1}
    return x + d["a"], d[MyStr("b")], list(d), d


@stateless()
def intsize_(x, y, n):
    return (
        torch.zeros(MyInt(n)),
        x.reshape(MyInt(2), 2),
        x[MyInt(1)],
        x.sum(MyInt(0)),
        x[: MyInt(2)],
        torch.zeros([MyInt(n), 1]),
    )


@stateless()
def setret_(x, y, n):
    s = MySet([3, n])
    s |= {9}
    return x + 1, s, s - {9}, MySet(), MySet(s) == s


@stateless()
def join_(x, y, n):
    return x + 1, "-".join([SE.A, MyStr("q")]), SE.A + "b", MyStr("x") * 2, "%s" % MyStr("z")


@stateless()
def deg_(x, y, n):
    d = Deg(n)
    return (
        x * d,
        repr(d),
        str(d),
        f"{d:.2f}",
        GDEG.unit,
        repr(GDEG),
        x + GDEG,
        d + 1,
        max(d, 1.0),
        round(d),
        [d],
        math.floor(d.real),
    )


@stateless()
def mutattr_(x, y, n):
    GN.tag = "u"
    r = GN.tag
    GN.tag = "t"
    return x + GN, r


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


class Keyed(dict):
    def __iter__(self):
        return iter(["q"])

    def keys(self):
        return ["q"]

    def __getitem__(self, key):
        return "got " + key


def test_c_asks_a_dict_whose_class_says_what_its_keys_are():
    def merged(x, given):
        mine = Keyed(a=2)
        return {"z": 1} | mine, mine | {"z": 1}, {"z": 1} | given, mine.copy(), given.copy(), x + 1

    given, x = Keyed(b=3), torch.ones(2)
    compiled = torchweld.compile(merged, fullgraph=True)
    for _ in range(2):
        assert compiled(x, given)[:5] == merged(x, given)[:5]
    assert merged(x, given)[0] == {"z": 1, "q": "got q"}
