# ruff: noqa: B905, C416, E741, UP028
# The programs are written as users write them.
"""Small programs: objects with methods of their own, generators, blocks, exceptions."""

import contextlib
import dataclasses
import enum
import functools

import pytest
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Color(enum.Flag):
    R = 1
    G = 2
    B = 4


class Perm(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass(order=True)
class Ver:
    major: int
    minor: int = 0


@dataclasses.dataclass(frozen=True)
class FP:
    x: int
    y: int

    def __add__(s, o):
        return FP(s.x + o.x, s.y + o.y)


class Node:
    def __init__(s, v, nxt=None):
        s.v, s.nxt = v, nxt

    def __iter__(s):
        n = s
        while n is not None:
            yield n.v
            n = n.nxt


class Stack(list):
    def push(s, v):
        s.append(v)
        return s

    @property
    def top(s):
        return s[-1]


class Matrix:
    def __init__(s, rows):
        s.rows = rows

    def __matmul__(s, o):
        return Matrix([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in s.rows])

    def __getitem__(s, ij):
        return s.rows[ij[0]][ij[1]]

    def __eq__(s, o):
        return s.rows == o.rows

    __hash__ = None


class Temp:
    def __init__(s):
        s._c = 0

    @property
    def f(s):
        return s._c * 9 / 5 + 32

    @f.setter
    def f(s, v):
        s._c = (v - 32) * 5 / 9

    @f.deleter
    def f(s):
        s._c = None


class Lazy:
    def __init__(s, fn):
        s.fn = fn

    def __set_name__(s, o, n):
        s.n = n

    def __get__(s, o, t):
        if o is None:
            return s
        v = o.__dict__[s.n] = s.fn(o)
        return v


class UseLazy:
    calls = 0

    @Lazy
    def val(self):
        return 41 + 1


class Poly:
    def __init__(s, *c):
        s.c = c

    def __call__(s, x):
        return functools.reduce(lambda a, b: a * x + b, s.c)

    def __len__(s):
        return len(s.c)

    def __bool__(s):
        return any(s.c)

    def __contains__(s, v):
        return v in s.c

    def __repr__(s):
        return f"Poly{s.c}"

    def __neg__(s):
        return Poly(*(-a for a in s.c))

    def __format__(s, spec):
        return spec + repr(s)


LOGS = []


@stateless()
def flag_(x, y, n):
    c = Color.R | Color.B
    return (
        x + c.value,
        Color.R in c,
        c & Color.R,
        ~Color.R,
        bool(c & Color.G),
        c ^ Color.R,
        (Perm.A | Perm.B) + 1,
        Perm(3),
        repr(c),
        [f for f in c] if hasattr(c, "__iter__") else None,
    )


@stateless()
def dc_order_(x, y, n):
    a, b = Ver(1, n), Ver(1, 2)
    return x + 1, a < b, a == b, sorted([b, a]), max(a, b), repr(a), dataclasses.replace(a, major=9)


@stateless()
def dc_frozen_(x, y, n):
    p = FP(1, n) + FP(2, 3)
    try:
        p.x = 3
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    return x + p.x, m, {p: 1}[FP(3, n + 3)], hash(p) == hash(FP(3, n + 3))


@stateless()
def linked_(x, y, n):
    l = Node(1, Node(n, Node(3)))
    a, *b = l
    return x + sum(l), list(l), a, b, 3 in l, max(l), dict(zip(l, "abc"))


@stateless()
def stack_(x, y, n):
    s = Stack().push(1).push(n)
    t = s.top
    s.pop()
    return x + t, s, len(s), s.top, type(s).__name__, s == [1]


@stateless()
def matrix_(x, y, n):
    m = Matrix([[1, n], [0, 1]])
    k = m @ m
    return x + k[0, 1], k == Matrix([[1, 2 * n], [0, 1]]), k != m


@stateless()
def temp_(x, y, n):
    t = Temp()
    t.f = 212
    a = t._c
    del t.f
    return x + a, t._c


@stateless()
def lazy_(x, y, n):
    u = UseLazy()
    return x + u.val, u.val, "val" in vars(u)


@stateless()
def poly_(x, y, n):
    q = Poly(1, n, 3)
    return q(x), len(q), bool(Poly(0)), n in q, repr(-q), f"{q:>>}", str(q)


@stateless()
def star_(x, y, n):
    def f(a, *b, c=1, **d):
        return a, b, c, d

    return (
        x + 1,
        f(*[1, 2], *(3,), c=n, e=5),
        [*range(n), *"ab"],
        {"a": 1, "b": 2},
        (lambda *a, **k: (a, k))(1, z=2),
    )


@stateless()
def walrus_(x, y, n):
    out = []
    while (k := len(out)) < n:
        out.append(k)
    return x + (m := 3) + m, out, [z for v in out if (z := v * 2) > 1], z if n > 2 else 0


@stateless()
def nested_closure_(x, y, n):
    def counter():
        c = 0

        def inc(by=1):
            nonlocal c
            c += by
            return c

        return inc, lambda: c

    inc, get = counter()
    inc()
    inc(n)
    return x + get(), inc.__closure__[0].cell_contents


@stateless()
def gen_send_(x, y, n):
    def g():
        t = 0
        while True:
            v = yield t
            if v is None:
                return t * 10
            t += v

    def outer():
        r = yield from g()
        yield ("done", r)

    it = outer()
    next(it)
    it.send(3)
    it.send(n)
    return x + 1, it.send(None), list(it)


@stateless()
def gen_close_(x, y, n):
    log = []

    def g():
        try:
            for i in range(5):
                yield i
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("fin")

    it = g()
    next(it)
    it.close()
    return x + 1, log


@stateless()
def match_(x, y, n):
    def m(v):
        match v:
            case {"k": [a, *_], **rest}:
                return a, rest
            case FP(x=0) | FP(y=0):
                return "axis"
            case FP(x=a, y=b) if a == b:
                return "diag"
            case str() | bytes():
                return "text"
            case [1, [2, c]]:
                return c
            case int(i) if i > 100:
                return "big"
            case None | True:
                return "nt"
            case _:
                return "other"

    return x + 1, [
        m(v)
        for v in (
            {"k": [1, 2], "z": n},
            FP(0, 1),
            FP(2, 2),
            "a",
            [1, [2, n]],
            101,
            None,
            True,
            5,
            b"q",
        )
    ]


@stateless()
def ctx_(x, y, n):
    log = []

    @contextlib.contextmanager
    def cm(k):
        log.append(("in", k))
        try:
            yield k * 2
        except ValueError as e:
            log.append(str(e))
        finally:
            log.append(("out", k))

    with cm(1) as a, cm(n) as b:
        log.append(a + b)
        raise ValueError("v")
    return x + 1, log


@stateless()
def exitstack_(x, y, n):
    log = []

    class R:
        def __init__(s, k):
            s.k = k

        def __enter__(s):
            log.append(s.k)
            return s

        def __exit__(s, *a):
            log.append(-s.k)
            return s.k == 2

    with contextlib.ExitStack() as st:
        rs = [st.enter_context(R(k)) for k in (1, 2, 3)]
        if n > 2:
            raise KeyError("q")
    return x + 1, log


@stateless()
def try_flow_(x, y, n):
    out = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            out.append(i)
        except Exception:
            pass
        else:
            out.append("else")
        finally:
            out.append("f")
    else:
        out.append("never")
    return x + len(out), out


@stateless()
def exc_chain_(x, y, n):
    try:
        try:
            {}["k"]
        except KeyError as e:
            raise ValueError("v") from e
    except ValueError as e:
        return (
            x + 1,
            type(e.__cause__).__name__,
            e.__cause__.args,
            e.__suppress_context__,
            e.__context__ is e.__cause__,
        )


@stateless()
def exc_custom_(x, y, n):
    class E(Exception):
        def __init__(s, code, msg="m"):
            super().__init__(msg)
            s.code = code

        def __str__(s):
            return f"{s.code}:{s.args[0]}"

    try:
        raise E(n)
    except E as e:
        return x + e.code, str(e), e.args, repr(e)


@stateless()
def decor_(x, y, n):
    def deco(k):
        def wrap(f):
            @functools.wraps(f)
            def inner(*a, **kw):
                return f(*a, **kw) * k

            inner.k = k
            return inner

        return wrap

    @deco(n)
    def g(v):
        "doc"
        return v + 1

    return g(x), g.__name__, g.__doc__, g.k, g.__wrapped__(1)


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
