# ruff: noqa: B905, C409, C416, RUF005, RUF017, RUF060, SIM222, SIM905, UP031
# The programs are written as users write them.
"""Corners of the built-in types, and of what users define like them."""

import dataclasses
import functools
import math
import operator
import typing

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


@stateless()
def uses_tuple_aug(x, y, n):
    t = ([1],)
    try:
        t[0] += [2]
    except TypeError as e:
        return x + 1, t, str(e)


@stateless()
def uses_int_str_limits(x, y, n):
    return (
        x + 1,
        int("1" * 30),
        str(10**25),
        float("1e5"),
        int("  12 "),
        int("1_0"),
        complex("1j"),
        bool("False"),
        round(0.5),
        round(1.5),
        round(-2.567, 1),
        7 // -2,
        7 % -2,
        -7 // 2.0,
        2**0.5,
        0.1 + 0.2 == 0.3,
    )


@stateless()
def uses_nan_ops(x, y, n):
    nan = float("nan")
    return (
        x + 1,
        nan == nan,
        nan in [nan],
        [nan] == [nan],
        max([nan, 1.0]),
        min([1.0, nan]),
        sorted([3, 1, 2])[0],
        math.isnan(nan),
        nan is nan,
        {nan: 1}.get(nan),
    )


@stateless()
def uses_str_edge(x, y, n):
    return (
        x + 1,
        "".join([]),
        "a,b,,".split(","),
        " a b ".split(),
        "aXbX".rsplit("X", 1),
        "%5.2f|%-5d|%+d" % (1.234, 3, 4),
        "{:>{w}}".format("a", w=5),
        "{!r:^10}".format("a"),
        f"{'nested ' + f'{n}'}",
        "ß".upper(),
        "ab".center(5),
        "abc".find("z"),
        "ab",
        "\N{BULLET}",
        "abc" > "abd",
        "a" in "",
        "" in "a",
        "x".join("abc"),
        repr("it's"),
        ascii("é"),
        "abc".translate({97: "z"}),
        "aa".replace("a", "b", 1),
        "A".isupper(),
        "1".isnumeric(),
        "Title Case".istitle(),
        "a\n".splitlines(True),
        "a".ljust(3, "."),
        "tEST".capitalize(),
    )


@stateless()
def uses_list_edge(x, y, n):
    a = [1, 2, 3, 4, 5]
    a[1:3] = [9]
    b = a[-2:]
    c = a[::-2]
    a.insert(-1, 7)
    a.insert(100, 8)
    d = a.index(9, 0, 3)
    del a[-1]
    a[len(a) :] = [1]
    e = [[0] * 2] * 2
    e[0][0] = 1
    return (
        x + 1,
        a,
        b,
        c,
        d,
        e,
        [1, 2] * 0,
        [] or "e",
        [None] * 2,
        list("ab") + ["c"],
        [3, 1] < [3, 2],
        sorted([[2], [1, 5]]),
        a.copy() == a,
        2 in (1, 2),
        (1,) + (2,),
        (1, 2)[::-1],
        tuple([1]) == (1,),
        [*range(3)][1:],
        sum([[1], [2]], []),
    )


@stateless()
def uses_typed_dict(x, y, n):
    class TD(typing.TypedDict):
        a: int

    t = TD(a=n)
    return x * t["a"], t


@stateless()
def uses_protocol(x, y, n):
    @typing.runtime_checkable
    class P(typing.Protocol):
        def f(self): ...

    class C:
        def f(self):
            return 1

    return x + 1, isinstance(C(), P), isinstance(3, P)


@stateless()
def uses_partial_kw(x, y, n):
    p = functools.partial(torch.add, alpha=n)
    q = functools.partial(p, x)
    r = functools.partial(sorted, key=lambda t: -t)
    return p(x, y), q(y), r([1, 3, 2])


@stateless()
def uses_method_partial(x, y, n):
    ms = [x.add, x.mul, torch.Tensor.sub]
    return ms[0](y), ms[1](n), ms[2](x, y), list(map(x.add, [1, 2]))


@stateless()
def uses_reduce_tensor(x, y, n):
    return (
        functools.reduce(lambda a, b: a * b, [x, y, n]),
        sum((x, y), start=torch.zeros(4)),
        max([1, 5, 2], key=lambda i: -i),
        functools.reduce(torch.add, [x, y, x]),
    )


@stateless()
def uses_sorted_stable(x, y, n):
    items = [(1, "b"), (0, "c"), (1, "a")]
    return (
        x + 1,
        sorted(items, key=lambda t: t[0]),
        sorted(items, key=operator.itemgetter(1), reverse=True),
        sorted("bA", key=str.lower),
        sorted({3: 1, 1: 2}.items()),
    )


@stateless()
def uses_zip_dict(x, y, n):
    keys, vals = zip(*[("a", x), ("b", y)])
    d = dict(zip(keys, vals))
    return d["a"] + d["b"], keys, {v: k for k, v in {"a": 1}.items()}, [*zip([1, 2], [3, 4])]


@stateless()
def uses_enumerate_mod(x, y, n):
    r = x
    for i, (a, b) in enumerate(zip([1, 2, 3], [x, y, x]), start=1):
        if i == n:
            continue
        r = r + a * b
    return r


@stateless()
def uses_recursion_list(x, y, n):
    def flat(t):
        return [t] if not isinstance(t, (list, tuple)) else [v for s in t for v in flat(s)]

    def tmap(f, t):
        return type(t)(tmap(f, v) for v in t) if isinstance(t, (list, tuple)) else f(t)

    return flat([x, [y, (x,)]]), tmap(lambda v: v + 1, [x, (y, [x])])


@stateless()
def uses_getattr_chain(x, y, n):
    class A:
        pass

    a = A()
    a.b = A()
    a.b.c = A()
    a.b.c.w = x
    return functools.reduce(getattr, "b.c.w".split("."), a) + 1


@stateless()
def uses_setattr_loop(x, y, n):
    class A:
        pass

    a = A()
    for i, k in enumerate("pqr"):
        setattr(a, k, x * i)
    return [getattr(a, k) for k in sorted(vars(a))], {k: v for k, v in vars(a).items()}


@stateless()
def uses_multi_inherit_init(x, y, n):
    class A:
        def __init__(s, **k):
            s.a = k.get("a")

    class B:
        def __init__(s, b=0, **k):
            super().__init__(**k)
            s.b = b

    class C(B, A):
        pass

    c = C(a=x, b=n)
    return c.a * c.b, [k.__name__ for k in C.__mro__]


@stateless()
def uses_abstract(x, y, n):
    import abc

    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class B(A):
        def f(self):
            return 3

    try:
        A()
    except TypeError as e:
        m = str(e)[:30]
    return x * B().f(), m


@stateless()
def uses_eq_hash(x, y, n):
    class K:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return isinstance(o, K) and s.v == o.v

        def __hash__(s):
            return hash(s.v)

    d = {K(1): "a", K(2): "b"}
    d[K(1)] = "c"
    return (
        x + len(d),
        d[K(1)],
        K(2) in d,
        len({K(1), K(1), K(3)}),
        K(1) == K(1),
        K(1) != K(2),
        [K(1), K(2)].index(K(2)),
    )


@stateless()
def uses_dataclass_key(x, y, n):
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int

    d = {K(1): x, K(n): y}
    return d[K(1)] + 1, K(n) in d, len(d)


@stateless()
def uses_contains_custom(x, y, n):
    class R:
        def __init__(s, a, b):
            s.a, s.b = a, b

        def __contains__(s, v):
            return s.a <= v < s.b

        def __len__(s):
            return s.b - s.a

        def __iter__(s):
            return iter(range(s.a, s.b))

        def __bool__(s):
            return False

    r = R(1, 4)
    return (
        x * len(r),
        2 in r,
        4 in r,
        list(r),
        bool(r),
        not r,
        [1 for _ in r],
        sum(r),
        max(r),
        1 if r else 2,
    )


@stateless(1)
def uses_iadd_ret(x, y, n):
    class A:
        def __init__(s):
            s.v = []

        def __iadd__(s, o):
            s.v.append(o)
            return s

    a = b = A()
    a += 1
    a += x
    return a is b, a.v


@stateless()
def uses_getitem_tuple(x, y, n):
    class G:
        def __getitem__(s, k):
            return k

    g = G()
    return x + 1, g[1, 2], g[1:2, ::3], g[...], g[(1,)], g["a"], g[n, None]


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
