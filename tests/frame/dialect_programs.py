"""Functions with much of the language in them, and arguments for each.

Odd code on purpose, so it is not linted; not a test module, so pytest leaves its asserts alone.
"""
# ruff: noqa

from __future__ import annotations

COUNT = 10


class Context:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(("exit", kind))
        return self.swallow


class Base:
    def name(self, x):
        return f"base {x}"

    @property
    def size(self):
        return 7


class Point(Base):
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def name(self, x):
        return super().name(x) + "!" + str(super().size)

    def kin(self):
        up = super()
        return up.name(1)

    def __repr__(self):
        return f"Point({self.x}, {self.y})"


def spread(a, b=2, *rest, c=3, **more):
    return a, b, rest, c, sorted(more.items())


def calls(xs, d):
    p = Point(1, 2)
    return (
        spread(1), spread(1, 2, 3, c=4, e=5), spread(*xs), spread(*xs, c=1, **d), spread(0, **d),
        Point.name(p, 3), p.name(x=4), p.kin(), spread(spread(1), p.name(2), c=p.name(3)),
        (lambda x, *, y: (x, y))(1, y=2), "a,b".split(",", maxsplit=1), sorted(xs, key=lambda x: -x),
        spread([x for x in xs], *[x for x in xs if x], c={x: p for x in ()}, z={x for x in xs}),
    )  # fmt: skip


def loops(n):
    out = []
    for i in range(n):
        if i == 2:
            continue
        for j in range(3):
            if j == i:
                break
            out.append((i, j))
        else:
            out.append("else")
        if i == 4:
            return out, "early"
    k = 0
    while k < 5:
        k += 2
        if k == 4 and out:
            break
    else:
        out.append("never")
    return out, k


def contexts(swallow, fail):
    log = []
    with Context(log, swallow) as a, Context(log) as b:
        log.append(a is b)
        if fail == 1:
            raise KeyError("x")
        for _ in range(2):
            with Context(log):
                if fail == 2:
                    continue
                if fail == 3:
                    return log
    log.append("after")
    return log


def tries(kind):
    log = []
    for i in range(3):
        try:
            try:
                if kind == i:
                    raise [ValueError, KeyError, OSError][i](i)
                if kind == 5:
                    return log
                log.append(i)
            except (ValueError, KeyError) as error:
                log.append(repr(error))
                if kind == 1:
                    raise TypeError("new") from error
            else:
                log.append("else")
            finally:
                log.append("finally")
        except TypeError as error:
            log.append(repr(error.__cause__))
            try:
                raise
            except TypeError:
                log.append("again")
        except OSError:
            break
        finally:
            log.append("outer")
    return log


def uncaught(x):
    try:
        assert x, f"no {x}"
        return spread()
    finally:
        x = 3


def unbound(flag):
    if flag:
        y = 1
        del y
    return y


def comprehensions(xs):
    x = "kept"
    squares = [x * x for x in xs if x != 2]
    pairs = {(x, y) for x in xs for y in range(x)}
    table = {x: [y for y in range(x)] for x in xs}
    lambdas = [lambda: x for x in xs]
    total = sum(x for x in xs)
    last = [z := x for x in xs]
    return x, squares, sorted(pairs), table, [f() for f in lambdas], total, last, z


def failing_comprehension(xs):
    x = "kept"
    try:
        return spread(0, [1 // x for x in xs])
    except ZeroDivisionError:
        return x


def strings(x, width):
    return f"{x}|{x!r}|{x!s:>{width}}|{x!a}|{width:04d}|{x:>8}|{x!r:>8}|{{}}{width=}"


def matching(subject):
    match subject:
        case 0 | 1:
            return "small"
        case [a, b, *rest] if rest:
            return a, b, rest
        case (a, [b, c]):
            return a, b, c
        case {"k": v, "j": w, **rest}:
            return v, w, rest
        case Point(x=0, y=y):
            return "axis", y
        case Point(x, y) as p:
            return x, y, p.x
        case None:
            return "none"
        case str():
            return "text"
    return "other"


def operators(a, b):
    c = a
    c += b
    c -= 1
    c *= 2
    c //= 3
    c **= 2
    c %= 1000
    c <<= 2
    c |= 1
    c &= 255
    c ^= 3
    c >>= 1
    return (
        c, -a, +a, ~a, not a, a < b, a <= b, a == b, a != b, a > b, a >= b, a < b < c, a is b,
        a is not None, a in (1, 2), b not in [3], a and b, a or b, a if b else c, a / b, bool(a),
        a < b or c, not a < b, [a < b], (a and b) or c, not (a or b),
    )  # fmt: skip


def containers(xs):
    a, b, *c = xs
    *d, e = xs
    (f, g), h = (a, b), [*xs, *c]
    table = {"a": a, **{"b": b}, "c": {1: 2}}
    table["d"] = h[1:], h[:-1], h[::2], h[slice(0, 1)]
    h[0:1] = [9, 9]
    h[-1] += 5
    del h[1], table["a"]
    p = Point(1, 2)
    p.x += 4
    del p.y
    return a, b, c, d, e, f, g, h, table, {*xs, 4}, (*xs, 5), p.x, vars(p), (1, 2, 3), [1, 2, 3]


def closures(n):
    total = 0

    def add(k, scale=n, *, twice: bool = False):
        nonlocal total
        total += k * scale * (1 + twice)
        return add, total

    add(1)
    n = 100
    again, seen = add(2, twice=True)
    return seen, total, again is add, add.__annotations__, n, (lambda: n)()


def deleted_cell(n):
    def get():
        return n

    del n
    try:
        return get()
    except NameError as error:
        return type(error)


def definitions():
    import os.path as p
    from collections import OrderedDict, deque

    def mark(f):
        f.mark = True
        return f

    @mark
    @mark
    def f(x, y=1):
        return x, y

    class A(Base, metaclass=type):
        field = COUNT

        def get(self):
            return __class__.field

    return p.sep, OrderedDict, deque, f.mark, f(1), A().get(), A().name(1), isinstance(A(), A)


def global_names():
    global made
    made = COUNT + 1
    seen = made
    del made
    return seen


def walrus(xs):
    if (n := len(xs)) > 2 and (m := n * 2):
        return n, m
    return n


def nones(x, y):
    return 0 if x is None else 1 if y is not None else 2


def many_jumps(x):
    # longer than 255 words, so that jumps have prefixes
    for i in range(2):
        if x:
            x = [[x, i, i, i, i, i, i, i], [x, i, i, i, i, i, i, i], [x, i + 1, i + 2, i + 3]]
            x = (x, x[0] + x[1] + x[2], x[0][0], x[1][0], i + i + i + i + i + i + i + i + i + i)
            x = (x, x[0] + [i + i + i + i + i + i + i + i + i + i + i + i + i + i + i + i + i])
            x = (x, x[0], x[1], x[0][0], x[0][1], f"{i}{i}{i}{i}{i}{i}{i}{i}{i}{i}{i}{i}{i}")
            x = spread(x, x[0], x[1], a1=i, a2=i, a3=i, a4=i, a5=i, a6=i, a7=i, a8=i, a9=i, b=i)
        else:
            x = i
    return x


def countdown(n):
    got = yield n
    while n:
        try:
            got = yield n, got
        except ValueError as error:
            got = str(error)
        n -= 1
    return "done"


def delegate(n):
    result = yield from countdown(n)
    yield from countdown(1)
    yield result


PROGRAMS = [
    (calls, [3, 1, 2], {"k": 1}),
    *[(loops, n) for n in (0, 2, 4, 6)],
    *[(contexts, s, f) for s in (False, True) for f in range(4)],
    *[(tries, k) for k in (0, 1, 2, 3, 5)],
    (uncaught, 0),
    (uncaught, 1),
    (unbound, True),
    (unbound, False),
    (comprehensions, [1, 2, 3]),
    (failing_comprehension, [1, 0]),
    (failing_comprehension, [1]),
    (strings, "é", 7),
    *[
        (matching, s)
        for s in (0, 1, [1, 2, 3], (1, [2, 3]), {"k": 1, "j": 2, "l": 3}, Point(0, 5), Point(3, 4),
                  None, "s", 2.5, [1], {"k": 1})
    ],  # fmt: skip
    (operators, 3, 5),
    (operators, 5, 3),
    (operators, 1, 7),
    (operators, 0, 0),
    (containers, [1, 2, 3, 4]),
    (containers, [1]),
    (closures, 3),
    (deleted_cell, 3),
    (definitions,),
    (global_names,),
    (walrus, [1, 2, 3]),
    (walrus, []),
    *[(nones, x, y) for x in (None, 1) for y in (None, 1)],
    (many_jumps, 0),
    (many_jumps, 5),
    (Point.name, Point(1, 2), 5),
    (Point.kin, Point(1, 2)),
    (spread, 1, 2, 3, 4),
]  # fmt: skip


def outcome(run, args):
    try:
        return "value", repr(run(*args))
    except Exception as error:
        return "error", type(error)


def traced(rows, lock, limit):
    total = 0
    for row in rows:
        if not row or row is lock:
            continue
        try:
            with lock() as held:
                total += 12 // row * limit
        except (KeyError, TypeError) as error:
            held.append(f"{row!r} {limit:>3} {error}")
        while total > limit > 0:
            total -= limit
    match rows:
        case [first, *_] if first:
            return max(first, total, key=lambda x: -x)
    return total


LISTED = """
def listed(x, table, f, *, flag=None):
    try:
        table[x] = f(f"<{x}>", key=(x, None))
    finally:
        x.done -= lambda: flag
"""


parameters = [
    lambda: 0,
    lambda a, b=1: 0,
    lambda a, /, b, *, c: 0,
    lambda a, /: 0,
    lambda a, /, *b, **c: 0,
    lambda *a, b: 0,
    lambda *, a, **b: 0,
]
