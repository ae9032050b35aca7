# ruff: noqa: B905, C400, C416, E741, F821, RUF005, RUF015, SIM222, UP031
# The programs are written as users write them.
"""Small programs: functions, protocols, containers, texts and numbers."""

import collections
import copy
import functools
import math
import operator
import types

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


LOGS = []


@stateless()
def partial_(x, y, n):
    f = functools.partial(lambda a, b, c=0: (a, b, c), 1, c=n)
    g = functools.partial(f, 2)
    return x + 1, g(), f(5), f.args, g.keywords


@stateless()
def mro_(x, y, n):
    class A:
        def f(s):
            return ["A"]

    class B(A):
        def f(s):
            return ["B"] + super().f()

    class C(A):
        def f(s):
            return ["C"] + super().f()

    class D(B, C):
        def f(s):
            return ["D"] + super().f()

    return x + 1, D().f(), [k.__name__ for k in D.mro()]


@stateless()
def getattr_dyn_(x, y, n):
    class P:
        def __init__(s):
            s.__dict__["d"] = {"a": n}

        def __getattr__(s, k):
            try:
                return s.d[k]
            except KeyError:
                raise AttributeError(k) from None

        def __setattr__(s, k, v):
            s.d[k] = v * 2

        def __delattr__(s, k):
            del s.d[k]

    p = P()
    p.b = 3
    del p.a
    return x + p.b, hasattr(p, "a"), getattr(p, "zz", None), p.d


@stateless()
def iter_proto_(x, y, n):
    class It:
        def __init__(s):
            s.i = 0

        def __iter__(s):
            return s

        def __next__(s):
            s.i += 1
            if s.i > n:
                raise StopIteration
            return s.i

        def __length_hint__(s):
            return 3

    return (
        x + sum(It()),
        list(It()),
        list(zip(It(), It())),
        dict(enumerate(It())),
        next(It(), None),
        list(map(str, It())),
        tuple(reversed(list(It()))),
    )


@stateless()
def slices_(x, y, n):
    l = list(range(10))
    l[2:5] = "ab"
    del l[::3]
    l[-1:] = [n]
    s = slice(1, None, 2)
    return x + 1, l, l[s], s.indices(5), "abcdef"[s], l[::-1], (1, 2, 3)[-2:]


@stateless()
def sorting_(x, y, n):
    d = {"b": 2, "a": n, "c": 1}
    return (
        x + 1,
        sorted(d.items(), key=operator.itemgetter(1)),
        sorted(d, reverse=True),
        sorted([3, 1, 2], key=lambda v: -v),
        min(d, key=d.get),
        max([[1, 2], [1, n]]),
        sorted(["b", "A"], key=str.lower),
        sorted({3, 1}),
    )


@stateless()
def fmt_(x, y, n):
    return (
        x + 1,
        f"{n:>5}|{n:<5}|{n:^5}|{n:+d}|{n:05d}|{3.14159:.{n}f}|{1e10:g}|{255:#x}|{'s'!r:>6}|{n=}",
        "{:*^9}".format("mid"),
        "{0!r:>5}{k[a]}".format("q", k={"a": n}),
        "%-5s|%5.1f|%x" % ("a", 2.55, 255),
        "%(a)s" % {"a": n},
    )


@stateless()
def strs_(x, y, n):
    s = "Hello, World"
    return (
        x + len(s),
        s.split(", "),
        s.find("W"),
        s.replace("l", "L", n),
        s.center(20, "*"),
        s.partition(","),
        s.lower().count("o"),
        s.startswith(("He", "x")),
        s[::2],
        ",".join(sorted(set("cab"))),
        s.encode()[:3],
        "\n".join(["a", "b"]).splitlines(),
        "a1".isalnum(),
        ord("a"),
        chr(98),
        "x" * n,
    )


@stateless()
def sets_(x, y, n):
    a, b = {1, 2, n}, frozenset([2, 3])
    a -= {1}
    a |= b
    return (
        x + len(a),
        a & b,
        a ^ {9},
        a >= b,
        b.isdisjoint({7}),
        sorted(a),
        {i % 3 for i in range(5)},
    )


@stateless()
def numbers_(x, y, n):
    return (
        x + 1,
        divmod(-7, n),
        -7 // n,
        -7 % n,
        round(2.5),
        round(-1.567, 2),
        int("ff", 16),
        float("inf") > n,
        (n).bit_length(),
        0.1 + 0.2,
        2**-1,
        complex(1, n) * 1j,
        abs(-n),
        pow(3, n, 5),
        int(-2.7),
        bool([]),
        n.__index__(),
        (7).to_bytes(2, "big"),
        1_000,
        True + True,
        math.floor(-2.5),
    )


@stateless()
def class_vars_(x, y, n):
    class A:
        items = []
        count = 0

        def add(s, v):
            s.items.append(v)
            s.count += 1
            return s

        @classmethod
        def make(cls):
            return cls().add(1)

        @staticmethod
        def st(v):
            return v + 1

    a = A.make().add(n)
    return x + a.count, A.count, A.items, A.st(2), a.st(3)


@stateless()
def getitem_seq_(x, y, n):
    class S:
        def __len__(s):
            return 3

        def __getitem__(s, i):
            if i >= 3:
                raise IndexError
            return i * n

    return x + sum(S()), list(S()), list(reversed(S())), 0 in S(), tuple(S())


@stateless()
def hasattr_chain_(x, y, n):
    o = types.SimpleNamespace(a=types.SimpleNamespace(b=n))
    return x + operator.attrgetter("a.b")(o), hasattr(o, "c"), o.a.b, o


@stateless()
def zip_strict_(x, y, n):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as e:
        return x + 1, str(e)


@stateless()
def assert_(x, y, n):
    try:
        assert n > 100, f"n is {n}"
    except AssertionError as e:
        return x + 1, e.args


@stateless()
def delete_(x, y, n):
    a = [1, 2, 3]
    d = {"k": 1}
    del a[0], d["k"]
    b = a
    del a
    try:
        a
    except UnboundLocalError as e:
        return x + 1, b, d, type(e).__name__


@stateless()
def chained_(x, y, n):
    return (
        x + 1,
        1 < n < 10,
        n == n != 0,
        not n,
        (n and "t") or "f",
        None or 3,
        [] or {},
        0 if n else 1,
        n is None,
        n in (2, 3),
        "a" < "b" <= "b",
    )


@stateless()
def comprehension_(x, y, n):
    return (
        x + 1,
        [i * j for i in range(3) for j in range(i) if j],
        {i: [j for j in range(i)] for i in range(n)},
        list(i for i in range(3)),
        [[r[i] for r in [[1, 2], [3, 4]]] for i in range(2)],
        any(i > 1 for i in range(n)),
        [lambda: i for i in range(2)][0](),
    )


@stateless()
def global_mut_(x, y, n):
    LOGS.append(n)
    r = len(LOGS)
    LOGS.clear()
    return x + r


@stateless()
def tensor_containers_(x, y, n):
    d = collections.OrderedDict(a=x, b=y)
    d.move_to_end("a")
    l = [*d.values()]
    return (
        torch.stack(l).sum(0),
        {k: v + 1 for k, v in d.items()},
        sum(l),
        [t for t in zip(x, y)][0],
        max(len(t) for t in l),
    )


@stateless()
def recursion_(x, y, n):
    def h(k):
        return 1 if k == 0 else k * h(k - 1)

    def walk(t):
        return sum(map(walk, t)) if isinstance(t, list) else t

    return x + h(n), walk([1, [2, [n]]])


@stateless()
def copy_user_(x, y, n):
    class A:
        def __init__(s):
            s.l = [1, n]
            s.me = s

        def __deepcopy__(s, memo):
            r = A()
            r.tag = "dc"
            return r

    a = A()
    b = copy.copy(a)
    c = copy.deepcopy(a)
    return x + 1, b.l is a.l, b.me is a, c.tag, c.l


@stateless()
def property_inherit_(x, y, n):
    class A:
        @property
        def v(s):
            return 1

    class B(A):
        @A.v.getter
        def v(s):
            return super().v + n

    return x + B().v


@stateless()
def memoryview_free_(x, y, n):
    return x + 1, bytes([1, n]), b"ab" + b"c", b"abc"[1], b"a".hex(), bytes(2), b"x,y".split(b",")


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
