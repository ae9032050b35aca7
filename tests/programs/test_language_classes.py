# ruff: noqa: F821, B012, B905, C400, PIE800, PIE804, SIM107, UP008, UP028
# The programs are written as users write them.
"""Small programs: matching, exceptions, generators, classes."""

import dataclasses
import functools
import types

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


@dataclasses.dataclass
class Pt:
    x: int
    y: int


class MyErr(Exception):
    def __init__(self, a, b=2):
        super().__init__(a)
        self.b = b

    def __str__(self):
        return f"my{self.b}"


class Base:
    def __init__(s, *a, **k):
        s.a = a
        s.k = k

    def f(s, t):
        return t + 1

    @classmethod
    def c(cls):
        return cls.__name__

    @staticmethod
    def st(q):
        return q

    @property
    def pr(s):
        return 4


class Left(Base):
    def f(s, t):
        return super().f(t) * 2


class Right(Base):
    def f(s, t):
        return super(Right, s).f(t) - 3


class Diamond(Left, Right):
    def __init__(s, *a):
        super().__init__(*a, z=1)

    def f(s, t):
        return super().f(t)

    @classmethod
    def c(cls):
        return "D" + super().c()

    @staticmethod
    def st(q):
        return super(Diamond, Diamond).st(q) + 1

    @property
    def pr(s):
        return super().pr + 1

    def g(s):
        return [super(Diamond, s).f(i) for i in range(2)]


@stateless()
def uses_match(x, y, n):
    def m(v):
        match v:
            case 0:
                return "zero"
            case 1 | 2:
                return "small"
            case int(k) if k > 100:
                return f"big{k}"
            case [a, b]:
                return ("two", a, b)
            case [a, *rest] if len(rest) > 2:
                return ("many", a, rest)
            case {"k": k, **r}:
                return ("map", k, r)
            case Pt(x=0, y=q):
                return ("pt", q)
            case Pt(1, q):
                return ("pt1", q)
            case str() as s:
                return "s" + s
            case None:
                return "none"
            case True:
                return "t"
            case (1.5, *_):
                return "f"
            case types.SimpleNamespace(z=zz):
                return zz
            case _:
                return "other"

    return x + 1, [
        m(v)
        for v in (
            0,
            1,
            n,
            500,
            [1, 2],
            (1, 2, 3, 4),
            {"k": 1, "j": 2},
            Pt(0, 3),
            Pt(1, 4),
            Pt(5, 5),
            "q",
            None,
            True,
            (1.5,),
            3.0,
            types.SimpleNamespace(z=4),
            [],
            {},
        )
    ]


@stateless()
def uses_match_tensor(x, y, n):
    match x.shape:
        case (4,):
            z = x * 2
        case (a, b):
            z = x * a
    match x:
        case torch.Tensor(shape=s):
            z = z + s[0]
    return z


@stateless()
def uses_star(x, y, n):
    a, *b, c = [1, 2, 3, 4]
    (d, *e), f = (5, 6), 7
    [*g] = range(n)

    def fn(*args, k=1, **kw):
        return args, k, kw

    return (
        x + a,
        b,
        c,
        d,
        e,
        f,
        g,
        fn(*[1, 2], *(3,), **{"k": 4}, **{"z": 5}),
        [*b, *g],
        {**{"a": 1}, "b": 2},
        {*b, 9},
        (*g, 1),
    )


@stateless()
def uses_exc_chain(x, y, n):
    z = x + 1
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            raise ValueError("v", n) from e
    except ValueError as e:
        return z, e.args, type(e.__cause__), e.__cause__ is e.__context__, e.__suppress_context__


@stateless()
def uses_exc_context(x, y, n):
    z = x + 1
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            {}["k"]
    except KeyError as e:
        c = type(e.__context__), e.__cause__
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            raise KeyError from None
    except KeyError as e:
        return z, c, e.__suppress_context__, type(e.__context__)


@stateless(2)
def uses_exc_leaves(x, y, n):
    z = x + 1
    raise ValueError(f"bad {n}")


@stateless(1)
def uses_exc_leaves_chain(x, y, n):
    z = x + 1
    try:
        [][1]
    except IndexError as e:
        raise RuntimeError("r") from e


@stateless()
def uses_finally(x, y, n):
    log = []

    def f():
        try:
            return "try"
        finally:
            log.append("f")

    def g():
        for i in range(3):
            try:
                if i == 1:
                    continue
                if i == 2:
                    break
            finally:
                log.append(i)
        else:
            log.append("else")
        return i

    def h():
        try:
            raise ValueError
        except ValueError:
            return 1
        else:
            return 2
        finally:
            return 3

    def k():
        try:
            pass
        except ValueError:
            return 1
        else:
            return 2
        finally:
            log.append("k")

    return x + 1, f(), g(), h(), k(), log


@stateless()
def uses_user_exc(x, y, n):
    z = x + 1
    try:
        raise MyErr(1, b=n)
    except MyErr as e:
        return z, e.b, e.args, str(e), isinstance(e, Exception), repr(e)


@stateless()
def uses_exc_notes(x, y, n):
    z = x + 1
    try:
        e = ValueError("q")
        e.add_note("nn")
        raise e
    except ValueError as er:
        return z, er.__notes__


@stateless()
def uses_reraise(x, y, n):
    z = x + 1
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            raise
    except KeyError as e2:
        r = e2.args
    try:
        e
    except UnboundLocalError as u:
        m = str(u)
    return z, r, m


@stateless()
def uses_gen(x, y, n):
    def g(k):
        got = yield k
        while got:
            got = yield got * 2
        return "done"

    def d():
        r = yield from g(5)
        yield r

    a = g(1)
    o = [next(a), a.send(3), a.send(4)]
    try:
        a.send(0)
    except StopIteration as e:
        o.append(e.value)
    b = d()
    o += [next(b), b.send(7), b.send(None)]
    o.append(list(i * i for i in range(n)))
    o.append(sum(t for t in (1, 2)))
    return x + 1, o


@stateless()
def uses_gen_throw(x, y, n):
    log = []

    def g():
        try:
            try:
                yield 1
            except ValueError:
                log.append("v")
                yield 2
            yield 3
        finally:
            log.append("fin")

    a = g()
    next(a)
    b = a.throw(ValueError("q"))
    a.close()
    c = g()
    next(c)
    try:
        c.throw(KeyError("k"))
    except KeyError as e:
        log.append(str(e))
    d = g()
    next(d)
    del d
    return x + b, log


@stateless()
def uses_gen_class_iter(x, y, n):
    class It:
        def __init__(s, k):
            s.k = k

        def __iter__(s):
            for i in range(s.k):
                yield i

        def __reversed__(s):
            return iter([9])

    class It2:
        def __init__(s):
            s.i = 0

        def __iter__(s):
            return s

        def __next__(s):
            s.i += 1
            if s.i > 3:
                raise StopIteration
            return s.i

    class Old:
        def __getitem__(s, i):
            if i > 2:
                raise IndexError
            return i

    return (
        x + 1,
        list(It(n)),
        list(reversed(It(1))),
        [*It2()],
        list(Old()),
        2 in Old(),
        2 in It(5),
        sum(It2()),
        list(iter(It2().__next__, 2)),
        dict(zip(It(2), It2())),
        max(It(4)),
        sorted(It2()),
    )


@stateless()
def uses_super(x, y, n):
    d = Diamond(n)
    return (
        d.f(x),
        d.a,
        d.k,
        d.c(),
        Diamond.c(),
        d.st(3),
        d.pr,
        d.g(),
        Base.f(d, 1),
        Diamond.__mro__[2].__name__,
    )


@stateless(2)
def uses_decorators(x, y, n):
    def twice(f):
        @functools.wraps(f)
        def w(*a, **k):
            return f(f(*a, **k), **k)

        return w

    def add(k):
        return lambda f: lambda *a: f(*a) + k

    @add(n)
    @twice
    def f(t):
        "d"
        return t * 3

    class Deco:
        def __init__(s, f):
            s.f = f
            functools.update_wrapper(s, f)

        def __call__(s, *a):
            return s.f(*a) + 100

    @Deco
    def g(t):
        return t

    return f(x), g(n), g.__name__


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
