# ruff: noqa: F821, B007, C400, C416, E741, E742, RUF021
# The programs are written as users write them.
"""Small programs: operators, numbers, texts, slices."""

import collections
import types

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Sub0:
    reg = []

    def __init_subclass__(cls, tag=None, **k):
        super().__init_subclass__(**k)
        cls.tag = tag

    def __class_getitem__(cls, k):
        return (cls.__name__, k)


class Ops:
    def __init__(s, v):
        s.v = v

    def __add__(s, o):
        return ("add", s.v, o)

    def __radd__(s, o):
        return ("radd", o, s.v)

    def __iadd__(s, o):
        s.v += o
        return s

    def __sub__(s, o):
        return NotImplemented

    def __mul__(s, o):
        return ("mul", s.v)

    def __rmul__(s, o):
        return ("rmul", s.v)

    def __matmul__(s, o):
        return "mm"

    def __truediv__(s, o):
        return "div"

    def __rtruediv__(s, o):
        return "rdiv"

    def __floordiv__(s, o):
        return "fd"

    def __mod__(s, o):
        return "mod"

    def __pow__(s, o, m=None):
        return ("pow", m)

    def __rpow__(s, o):
        return "rpow"

    def __neg__(s):
        return "neg"

    def __pos__(s):
        return "pos"

    def __abs__(s):
        return "abs"

    def __invert__(s):
        return "inv"

    def __and__(s, o):
        return "and"

    def __ror__(s, o):
        return "ror"

    def __lshift__(s, o):
        return "ls"

    def __eq__(s, o):
        return isinstance(o, Ops) and s.v == o.v

    def __hash__(s):
        return hash(s.v)

    def __lt__(s, o):
        return "lt"

    def __ge__(s, o):
        return "ge"

    def __int__(s):
        return 5

    def __float__(s):
        return 2.5

    def __index__(s):
        return 1

    def __complex__(s):
        return 1j

    def __round__(s, k=0):
        return ("r", k)

    def __trunc__(s):
        return 3

    def __floor__(s):
        return 4

    def __ceil__(s):
        return 6

    def __divmod__(s, o):
        return "dm"

    def __contains__(s, k):
        return k == 1

    def __len__(s):
        return 2

    def __bool__(s):
        return s.v > 2

    def __getitem__(s, k):
        return ("gi", k)

    def __setitem__(s, k, v):
        s.v = (k, v)

    def __delitem__(s, k):
        s.v = ("del", k)

    def __call__(s, *a, **k):
        return ("call", a, k)

    def __str__(s):
        return "STR"

    def __repr__(s):
        return "REPR"

    def __format__(s, sp):
        return "F" + sp

    def __bytes__(s):
        return b"B"

    def __missing__(s, k):
        return k

    def __length_hint__(s):
        return 3

    def __sizeof__(s):
        return 1


class Sub(Ops):
    def __radd__(s, o):
        return "subradd"


class ListSub(list):
    def total(s):
        return sum(s)

    def append(s, v):
        super().append(v * 10)


class TupSub(tuple):
    def __new__(c, *a):
        return super().__new__(c, a)

    @property
    def first(s):
        return s[0]


class StrSub(str):
    def shout(s):
        return s.upper() + "!"


@stateless()
def uses_recursion(x, y, n):
    def f(t, k):
        return t if k == 0 else f(t + k, k - 1)

    def ack(a, b):
        return b + 1 if a == 0 else ack(a - 1, 1) if b == 0 else ack(a - 1, ack(a, b - 1))

    return f(x, n), ack(2, 2)


@stateless()
def uses_init_subclass(x, y, n):
    class A(Sub0, tag=n):
        pass

    return x + A.tag, Sub0[3], A["q"]


@stateless()
def uses_reflected_sub(x, y, n):
    return x + 1, Ops(1) + Sub(2), Sub(1) + Ops(2)


@stateless()
def uses_tensor_reflected(x, y, n):
    class R:
        def __radd__(s, t):
            return t * 5

        def __rmul__(s, t):
            return t + 100

        def __rmatmul__(s, t):
            return t - 7

    return x + R(), x * R(), x @ R()


@stateless(1)
def uses_index_tensor(x, y, n):
    class I:
        def __index__(s):
            return 1

    return x[I()], x[I() :], torch.zeros(I()), x.view(2, 2).select(I(), 0)


@stateless()
def uses_ints(x, y, n):
    big = 2**100 + n
    return (
        x + 1,
        big,
        big % 97,
        big >> 90,
        n.bit_length(),
        (255).bit_count(),
        -7 // 2,
        -7 % 3,
        divmod(-7, 2),
        7 & 3,
        7 | 8,
        5 ^ 1,
        ~n,
        1 << n,
        int("ff", 16),
        int("0b11", 0),
        hex(255),
        oct(8),
        bin(n),
        round(2.5),
        round(-1.5),
        round(1234, -2),
        pow(3, 4, 5),
        pow(3, -1, 7),
        n**2,
        int(2.9),
        int(-2.9),
        abs(-3),
        True + 1,
        isinstance(True, int),
        10**20 == 1e20,
        float(2**60),
        1_000,
        big.__add__(1),
        (5).__rsub__(3),
        int.__mul__(2, 3),
        str(big),
    )


@stateless()
def uses_floats(x, y, n):
    f = 2.5 * n
    return (
        x * f,
        f.is_integer(),
        (0.5).as_integer_ratio(),
        f.hex(),
        float.fromhex("0x1p3"),
        float("inf"),
        float("nan") != float("nan"),
        -0.0,
        1e300 * 1e10,
        0.1 + 0.2,
        round(2.675, 2),
        f // 1,
        f % 1,
        divmod(7.5, 2),
        f.__floor__(),
        int(f),
        complex(1, 2),
        str(1e16),
        repr(0.1),
        5 / 2,
        2**0.5,
        (-8) ** (1 / 3),
    )


@stateless()
def uses_complex(x, y, n):
    c = 1 + 2j * n
    return (
        x * abs(c),
        c.real,
        c.imag,
        c.conjugate(),
        c * c,
        c == 1,
        complex("1+2j"),
        1j**2,
        -c,
        c / 2,
    )


@stateless()
def uses_slices(x, y, n):
    s = slice(1, None, n)
    l = list(range(10))
    l[s] = [0] * len(l[s])
    del l[::3]
    return (
        x[s],
        l,
        s.start,
        s.indices(7),
        [1, 2, 3][slice(None)],
        "abc"[s],
        (1, 2, 3)[-1:],
        x[slice(0, 2)],
        x[[0, 1]],
        x[None, ..., :2],
        s == slice(1, None, n),
    )


@stateless()
def uses_del(x, y, n):
    a = 1
    del a
    try:
        a
    except UnboundLocalError as e:
        m = str(e)
    d = {"a": 1, "b": 2}
    del d["a"]

    class O:
        pass

    o = O()
    o.q = 1
    del o.q
    try:
        o.q
    except AttributeError as e:
        m2 = str(e)
    try:
        del d["zz"]
    except KeyError as e:
        m3 = str(e)
    return x + 1, m, d, m2, m3, hasattr(o, "q")


@stateless()
def uses_comps(x, y, n):
    a = [(i, j) for i in range(3) if i != 1 for j in range(i) if j < n]
    b = {i: {j for j in range(i)} for i in range(3)}
    c = [[k * n for k in r] for r in [[1], [2, 3]]]
    fs = [lambda i=i: i for i in range(3)]
    gs = [lambda: i for i in range(3)]
    return (
        x + 1,
        a,
        b,
        c,
        [f() for f in fs],
        [g() for g in gs],
        [x * i for i in range(2)],
        {k: x + v for k, v in {"a": 1}.items()},
        list((i, n) for i in "ab"),
        [i for i in [1, 2, 3] if i % 2 if i > 1],
    )


@stateless()
def uses_loops(x, y, n):
    out = []
    for i in range(5):
        if i == n:
            break
        out.append(i)
    else:
        out.append("none")
    while n > 0:
        n -= 1
    else:
        out.append("we")
    for a, (b, *c) in [(1, (2, 3, 4))]:
        out += [a, b, c]
    for out2 in [1]:
        pass
    return x + 1, out, n, out2


@stateless()
def uses_chain_cmp(x, y, n):
    return (
        x + 1,
        1 < n < 3,
        1 < n > 0 != 5,
        n is n,
        n is not None,
        "a" < "b" <= "b",
        (1, 2) < (1, 3),
        [1] == [1.0],
        None == 0,
        {1: 2} == {1: 2.0},
        not n,
        n and 0 or "z",
        3 if n > 2 else 4,
    )


@stateless()
def uses_userdict(x, y, n):
    class UD(collections.UserDict):
        def __setitem__(s, k, v):
            super().__setitem__(k, v * 2)

    class UL(collections.UserList):
        pass

    class DD(dict):
        def __missing__(s, k):
            return k + "!"

        def __getattr__(s, k):
            return s[k]

        def __setitem__(s, k, v):
            super().__setitem__(k, (v, 1))

    u = UD(a=n)
    l = UL([1, 2])
    l.append(3)
    d = DD(q=1)
    d["w"] = 2
    return (
        x + 1,
        u["a"],
        dict(u),
        list(l),
        d["zz"],
        d.q,
        d["w"],
        d.get("no"),
        isinstance(d, dict),
        len(u),
    )


@stateless()
def uses_builtin_subs(x, y, n):
    l = ListSub([1, 2])
    l.append(n)
    t = TupSub(1, 2)
    return x + 1, l.total(), list(l), t.first, len(t), tuple(t)


@stateless()
def uses_str_sub(x, y, n):
    return x + 1, StrSub("ab").shout(), StrSub("q") + "w"


@stateless()
def uses_simplenamespace(x, y, n):
    s = types.SimpleNamespace(a=n, b=x)
    s.c = s.a + 1
    return s.b * s.c, sorted(vars(s)), s == types.SimpleNamespace(a=n, b=x, c=s.c) if False else 1


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
