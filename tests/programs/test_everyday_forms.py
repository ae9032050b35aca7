# ruff: noqa: B905, E501, E741, F525, PIE800, PIE804, SIM905, UP031
# The programs are written as users write them.
"""Everyday programs: descriptors, texts, exceptions, calls and iteration."""

import contextlib
import functools
import itertools
import operator
import re
import string

import pytest
import torch
from eager_twin import outcome
from everyday import Everyday, check

EVERYDAY = Everyday()
program, model = EVERYDAY.program, EVERYDAY.model


@program
def ctx_stack():
    log = []

    @contextlib.contextmanager
    def c(name):
        log.append("+" + name)
        try:
            yield name.upper()
        except ValueError as e:
            log.append(str(e))
        finally:
            log.append("-" + name)

    def f(x, y, n):
        with contextlib.ExitStack() as st:
            names = [st.enter_context(c(k)) for k in ("a", "b")]
            st.callback(log.append, "cb")
            x = x + len(names)
            if n == 3:
                raise ValueError("three")
        return x, names

    return lambda *a: (outcome(f, a), list(log))


@program
def gen_send():
    def acc():
        t = 0
        while True:
            v = yield t
            if v is None:
                return "done"
            t = t + v

    def f(x, y, n):
        g = acc()
        next(g)
        a = g.send(x)
        b = g.send(y)
        try:
            g.send(None)
        except StopIteration as e:
            r = e.value
        return a, b, r

    return f


@program
def yield_from():
    def inner(x):
        r = yield x + 1
        return r

    def outer(x):
        a = yield from inner(x)
        yield a

    def f(x, y, n):
        g = outer(x)
        a = next(g)
        b = g.send(y * 2)
        return a + b, list(g)

    return f


@program
def partial_method():
    class A:
        def go(self, x, k, *, s=1):
            return x * k + s

        dbl = functools.partialmethod(go, 2)
        trip = functools.partialmethod(go, k=3, s=0)

    a = A()

    def f(x, y, n):
        p = functools.partial(a.go, k=n)
        return a.dbl(x), a.trip(x), p(x), p.keywords, functools.reduce(operator.mul, [x, y, n])

    return f


@program
def slots_():
    class S:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    class T(S):
        __slots__ = ("c",)

        def __repr__(self):
            return f"T({self.c})"

    t = T(1)
    t.c = 0

    def f(x, y, n):
        t.c += 1
        t.b = n
        s = T(x)
        s.c = y
        return s.a + s.c, hasattr(s, "b"), repr(t), t.b

    return f


@program
def meta_():
    class Meta(type):
        reg = {}

        def __new__(m, n, b, d, **k):
            c = super().__new__(m, n, b, d)
            m.reg[n] = c
            c.tag = k.get("tag", "none")
            return c

        def __call__(cls, *a):
            o = super().__call__(*a)
            o.made = True
            return o

        def __len__(cls):
            return 7

        def __getitem__(cls, k):
            return cls.tag + k

        def __iter__(cls):
            return iter([1, 2])

    class A(metaclass=Meta, tag="x"):
        def __init__(self, v):
            self.v = v

    def f(x, y, n):
        a = A(x)
        return a.v + len(A), a.made, A["q"], list(A), Meta.reg["A"] is A

    return f


@program
def descr():
    class D:
        def __set_name__(self, o, n):
            self.n = "_" + n

        def __get__(self, o, t=None):
            return self if o is None else getattr(o, self.n, 0) * 2

        def __set__(self, o, v):
            setattr(o, self.n, v + 1)

    class A:
        d = D()
        e = D()

    a = A()

    def f(x, y, n):
        a.d = n
        b = A()
        b.e = x
        return b.e + a.d, A.d.n, vars(a)

    return f


@program
def fmt():
    def f(x, y, n):
        s = f"{n:>4}|{3.14159:.2f}|{'a'!r}|{n=}|{x.shape}|{x.dtype}|{[n, 'b']}|{1e6:,.0f}|{n:b}"
        t = "{} {a} {0}".format(n, a=2) if False else "%s %03d %.1f" % ("q", n, 2.5)
        u = string.Template("$a-$b").substitute(a=n, b=2)
        return (
            x + len(s),
            s,
            t,
            u,
            "a,b".split(","),
            " x ".strip().upper().center(5, "*"),
            "abc"[::-1],
        )

    return f


@program
def regex():
    pat = re.compile(r"layer\.(\d+)\.(\w+)")

    def f(x, y, n):
        m = pat.match(f"layer.{n}.weight")
        r = re.sub(r"\d+", lambda k: str(int(k.group()) + 1), "a1b2")
        return x + int(m.group(1)), m.groups(), r, re.findall(r"\w", "a b"), bool(pat.search("zz"))

    return f


@program
def walrus():
    def f(x, y, n):
        if (k := n * 2) > 5:
            x = x + k
        r = [z for i in range(4) if (z := i * n) % 2 == 0]
        while (n := n - 1) > 0:
            x = x * 1.5
        return x, r, k, n

    return f


@program
def unpack():
    def g(a, /, b, *c, d=1, **e):
        return a + b + sum(c) + d + sum(e.values())

    def f(x, y, n):
        a, (b, *c), d = 1, (2, 3, 4), 5
        h, *m, t = x
        return (
            g(x, *[1, 2], *(3,), d=n, **{"p": 1}, q=2),
            h + t,
            len(m),
            [*range(2), *"ab"],
            {**{"a": 1}, "b": 2},
        )

    return f


@program
def glob():
    g = {"CNT": 0, "torch": torch}
    exec(
        "def f(x, y, n):\n    global CNT, LAST\n    CNT += n\n    LAST = x.sum()\n    return x + CNT, LAST",
        g,
    )
    return lambda *a: (g["f"](*a), g["CNT"], g["LAST"])


@program
def nonlocal_():
    def make():
        c = 0
        hist = []

        def step(x):
            nonlocal c
            c += 1
            hist.append(c)
            return x * c

        return step, hist

    s, hist = make()

    def f(x, y, n):
        return s(x) + s(y), list(hist)

    return f


@program
def retry():
    st = {"fail": 2}

    def call(x):
        if st["fail"] > 0:
            st["fail"] -= 1
            raise RuntimeError("flaky")
        return x * 2

    def f(x, y, n):
        for k in range(3):
            try:
                return call(x), k
            except RuntimeError as e:
                last = e
            finally:
                x = x + 1
        raise last

    return f


@program
def chain_exc():
    class MyE(Exception):
        def __init__(self, m, code):
            super().__init__(m)
            self.code = code

    def f(x, y, n):
        try:
            try:
                {}["k"]
            except KeyError as e:
                raise MyE("bad", n) from e
        except MyE as e:
            return x + e.code, e.args, type(e.__cause__).__name__, str(e)

    return f


@program
def finally_order():
    log = []

    def f(x, y, n):
        for i in range(3):
            try:
                if i == 1:
                    continue
                log.append(i)
                if i == 2:
                    break
            finally:
                log.append("f")
        else:
            log.append("e")
        return x + len(log)

    return lambda *a: (f(*a), list(log))


@program
def sorted_key():
    def f(x, y, n):
        l = [("b", 2), ("a", 3), ("c", 1)]
        m = max(l, key=operator.itemgetter(1))
        s = sorted(l, key=lambda t: (-t[1], t[0]))
        g = {k: list(v) for k, v in itertools.groupby([1, 1, 2], key=lambda q: q)}
        return (
            x + m[1],
            s,
            g,
            list(itertools.accumulate([1, 2, 3], operator.mul)),
            list(itertools.pairwise("abc")),
            list(zip(*l)),
            any(i > 2 for i in (1, 3)),
            min([3, 1], default=0),
        )

    return f


@program
def tee_():
    def f(x, y, n):
        a, b = itertools.tee(iter([1, 2, 3]))
        c = list(itertools.islice(itertools.cycle([x, y]), 3))
        d = list(itertools.chain.from_iterable([[1], [2]]))
        p = list(itertools.product("ab", repeat=2))
        q = list(itertools.combinations(range(3), 2))
        z = list(itertools.zip_longest([1], [2, 3], fillvalue=0))
        t = list(itertools.takewhile(lambda k: k < 2, a))
        return (
            sum(c),
            d,
            len(p),
            q,
            z,
            t,
            list(b),
            list(itertools.starmap(pow, [(2, 3)])),
            list(itertools.repeat(1, 2)),
            list(itertools.compress("ab", [0, 1])),
        )

    return f


@pytest.mark.parametrize("make", EVERYDAY.rows)
def test_everyday(make):
    check(make)
