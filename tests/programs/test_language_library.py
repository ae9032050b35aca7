# ruff: noqa: B905, C416, RUF017, UP030, UP031, UP032
# The programs are written as users write them.
"""Small programs: iteration, functools, operator, math, copies, context managers."""

import collections
import contextlib
import copy
import functools
import itertools
import math
import operator

import pytest
from language_classes import Prop
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


@functools.singledispatch
def sd(a):
    return "obj"


@functools.total_ordering
class TO:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return self.v == o.v

    def __lt__(self, o):
        return self.v < o.v


@contextlib.contextmanager
def cm(log, v):
    log.append("in")
    try:
        yield v
    except ValueError:
        log.append("caught")
    finally:
        log.append("out")


@cm.__wrapped__ if False else contextlib.contextmanager
def dec_cm():
    yield


class UCM:
    def __init__(s, log, sw):
        s.log, s.sw = log, sw

    def __enter__(s):
        s.log.append("e")
        return s

    def __exit__(s, t, v, tb):
        s.log.append((t and t.__name__, str(v), tb is None))
        return s.sw


@stateless()
def uses_sets(x, y, n):
    s = {1, 2, n}
    t = frozenset([2, 3])
    s.add(7)
    s.discard(99)
    s |= {8}
    return (
        x + len(s),
        s & t,
        s | t,
        s - t,
        s ^ t,
        t <= s,
        s.isdisjoint({99}),
        {k: v for k, v in zip("ab", [1, 2])},
        s.union([4], [5]),
        t.issubset(s),
        hash(t) == hash(frozenset([3, 2])),
        sorted(s),
    )


@stateless()
def uses_set_more(x, y, n):
    s = {1, 2, 3}
    s.intersection_update({2, 3, n})
    s.difference_update([3])
    s.symmetric_difference_update([9])
    a = s.copy()
    s.clear()
    return x + 1, a, s, {1} < {1, 2}, {1} == frozenset([1]), a.pop() in (2, 9), bool(s)


@stateless()
def uses_format(x, y, n):
    v = 3.14159
    w = 6
    d = {"k": 1}
    return (
        x + 1,
        f"{v:.2f}",
        f"{v:{w}.{n}f}",
        f"{n:>5}",
        f"{n!r}",
        f"{v=}",
        f"{'a'!s:<4}|",
        "{} {a}".format(1, a=n),
        "{0[1]} {1.real}".format([1, 2], 3),
        "%s %05d %r %x" % ("a", n, "q", 255),
        f"{n:08b}",
        f"{1234567:,}",
        f"{0.5:%}",
        f"{d['k']}",
        format(n, "x"),
        "{k}".format_map(d),
        f"{True}",
        f"{None}",
        f"{[1, 2]}",
        f"{n:+d} {n:e}",
    )


@stateless()
def uses_format_tensor_shape(x, y, n):
    return (
        x + 1,
        f"{x.shape} {tuple(x.shape)} {x.dtype} {x.device} {x.dim()}",
        str(x.dtype),
        "%s" % (x.shape,),
    )


@stateless()
def uses_sorted(x, y, n):
    a = [3, 1, 2, n]
    return (
        x + 1,
        sorted(a),
        sorted(a, reverse=True),
        sorted(a, key=lambda t: -t),
        min(a),
        max(a, key=lambda t: -t),
        max([], default=4),
        min(1, 2),
        sum(a),
        sum([[1], [2]], []),
        any(a),
        all([]),
        sorted({"b": 1, "a": 2}),
        sorted("ba", key=str.upper),
        min("abc", key=ord),
        sorted([(1, "b"), (1, "a")]),
        sum([x, y]),
        max(1, 2.5),
    )


@stateless()
def uses_sort_tensors_by_key(x, y, n):
    ts = [(2, x), (1, y), (n, x + 1)]
    return sorted(ts, key=lambda p: p[0]), sorted(ts, key=operator.itemgetter(0), reverse=True)


@stateless()
def uses_zip_strict(x, y, n):
    z = x + 1
    try:
        list(zip([1, 2], [1, 2, 3], strict=True))
    except ValueError as e:
        m = str(e)
    return z, m, list(zip([1], [2], strict=True)), list(zip()), list(zip("ab", [1, 2], x.unbind()))


@stateless()
def uses_map_filter(x, y, n):
    return (
        x + 1,
        list(map(lambda a, b: a + b, [1, 2], [3, 4])),
        list(filter(None, [0, 1, 2])),
        list(filter(lambda t: t > n, range(9))),
        list(enumerate("ab", 5)),
        list(reversed([1, 2])),
        list(range(1, 10, n)),
        range(10)[2:5],
        3 in range(5),
        len(range(0, 9, 2)),
        range(5).index(3),
        list(range(5, 0, -1)),
        range(3) == range(3),
        range(n).stop,
        next(iter([4])),
        next(iter([]), 8),
    )


@stateless()
def uses_itertools(x, y, n):
    i = itertools
    return (
        x + 1,
        list(i.chain([1], [2])),
        list(i.chain.from_iterable([[1], [2]])),
        list(i.islice(i.count(2, 3), 4)),
        list(i.product([1, 2], repeat=2)),
        list(i.permutations([1, 2, 3], 2)),
        list(i.combinations("abc", 2)),
        list(i.accumulate([1, 2, 3])),
        list(i.accumulate([1, 2], operator.mul, initial=5)),
        [(k, list(g)) for k, g in i.groupby([1, 1, 2])],
        list(i.zip_longest([1], [2, 3], fillvalue=0)),
        list(i.starmap(pow, [(2, 3)])),
        list(i.takewhile(lambda t: t < 2, [1, 2, 1])),
        list(i.dropwhile(lambda t: t < 2, [1, 2, 1])),
        list(i.compress("abc", [1, 0, 1])),
        list(i.pairwise([1, 2, 3])),
        list(i.repeat(7, 2)),
        list(i.filterfalse(lambda t: t % 2, [1, 2])),
        list(i.islice(i.cycle([1, 2]), 5)),
        [list(t) for t in i.tee([1, 2])],
        list(i.combinations_with_replacement([1, 2], 2)),
    )


@stateless()
def uses_functools(x, y, n):
    p = functools.partial(lambda a, b, c=3: a + b * c, n, c=2)

    @functools.wraps(uses_sorted)
    def w(a):
        return a

    r = functools.reduce(lambda a, b: a + b, [x, y, x])
    return (
        r,
        p(4),
        p.func.__name__,
        p.args,
        p.keywords,
        w.__name__,
        w(3),
        functools.reduce(operator.add, [1, 2], 10),
        sorted([3, 1], key=functools.cmp_to_key(lambda a, b: a - b)),
    )


@stateless()
def uses_total_ordering(x, y, n):
    return (
        x + 1,
        TO(1) <= TO(n),
        TO(5) > TO(3),
        TO(1) >= TO(2),
        max(TO(1), TO(4)).v,
        sorted([TO(3), TO(1)])[0].v,
    )


@stateless()
def uses_math(x, y, n):
    m = math
    return (
        x * m.pi,
        m.sqrt(n),
        m.floor(2.5),
        m.ceil(2.1),
        m.log2(8),
        m.log(n),
        m.exp(1),
        m.isnan(m.nan),
        m.inf,
        m.gcd(12, 18),
        m.factorial(5),
        m.comb(5, 2),
        m.prod([1, 2, 3]),
        m.fsum([0.1] * 3),
        m.hypot(3, 4),
        m.isclose(1, 1 + 1e-12),
        m.trunc(2.7),
        m.copysign(1, -2),
        m.modf(2.5),
        m.frexp(8),
        m.fmod(7, 3),
        m.degrees(1),
        m.lcm(4, 6),
        m.isqrt(17),
        m.dist([0], [3]),
        m.erf(0.5),
        m.atan2(1, 2),
        m.perm(4, 2),
    )


@stateless()
def uses_copy(x, y, n):
    a = [1, [x]]
    b = copy.copy(a)
    c = copy.deepcopy([1, [2, {"k": n}]])
    b[1].append(2)
    p = Prop(3)
    q = copy.copy(p)
    q._v = 4
    return x + 1, a, b, c, p._v, q._v, copy.deepcopy(p)._v, copy.copy({1: 2}), copy.deepcopy({1, 2})


@stateless(2)
def uses_copy_hooks(x, y, n):
    class C:
        def __init__(s, v):
            s.v = v

        def __copy__(s):
            return C(s.v + 1)

        def __deepcopy__(s, memo):
            return C(s.v + 2)

    return x + copy.copy(C(n)).v, copy.deepcopy(C(1)).v, copy.deepcopy([C(1)])[0].v


@stateless()
def uses_contextmanager(x, y, n):
    log = []
    with cm(log, n) as v:
        z = x * v
    with cm(log, 1):
        raise ValueError("q")
    return z, log


@stateless()
def uses_cm_passes(x, y, n):
    log = []
    z = x + 1
    try:
        with cm(log, 1):
            raise KeyError("k")
    except KeyError as e:
        log.append(str(e))
    return z, log


@stateless()
def uses_exitstack(x, y, n):
    log = []
    with contextlib.ExitStack() as st:
        a = st.enter_context(cm(log, n))
        st.callback(log.append, "cb")
        st.push(lambda *e: log.append(e[0]))
        z = x * a
    with contextlib.ExitStack() as st:
        st.enter_context(cm(log, 1))
        k = st.pop_all()
    k.close()
    return z, log


@stateless()
def uses_suppress(x, y, n):
    z = x + 1
    with contextlib.suppress(KeyError, ValueError):
        {}["a"]
    with contextlib.nullcontext(5) as q:
        pass

    class Cl:
        closed = False

        def close(self):
            self.closed = True

    c = Cl()
    with contextlib.closing(c):
        pass
    return z * q, c.closed


@stateless()
def uses_cm_decorator(x, y, n):
    @dec_cm()
    def f(a):
        return a + 1

    return f(x)


@stateless()
def uses_user_cm(x, y, n):
    log = []
    with UCM(log, True) as a, UCM(log, False):
        z = x + 1
        raise ValueError("v")
    with UCM(log, False):
        pass
    for i in range(3):
        with UCM(log, False):
            if i == 1:
                continue
            if i == 2:
                break
            z = z + i

    def r():
        with UCM(log, False):
            return 5

    return z, log, r()


@stateless()
def uses_abc(x, y, n):
    a = collections.abc

    class S(a.Sequence):
        def __getitem__(s, i):
            return [1, 2, 3][i]

        def __len__(s):
            return 3

    class M(a.MutableMapping):
        def __init__(s):
            s.d = {}

        def __getitem__(s, k):
            return s.d[k]

        def __setitem__(s, k, v):
            s.d[k] = v

        def __delitem__(s, k):
            del s.d[k]

        def __iter__(s):
            return iter(s.d)

        def __len__(s):
            return len(s.d)

    m = M()
    m["a"] = n
    m.update(b=2)
    m.setdefault("c", 3)
    return (
        x + 1,
        list(S()),
        S().index(2),
        3 in S(),
        list(reversed(S())),
        S().count(1),
        dict(m),
        m.pop("a"),
        list(m.items()),
        isinstance([], a.Sequence),
        isinstance({}, a.Mapping),
        isinstance(3, a.Hashable),
        isinstance(iter([]), a.Iterator),
        issubclass(list, a.Iterable),
        callable(len),
        isinstance(x, a.Iterable),
    )


@stateless()
def uses_nonlocal(x, y, n):
    c = 0

    def inc(k=1):
        nonlocal c
        c += k
        return c

    a = inc(), inc(n)
    return x * c, a


@stateless()
def uses_walrus(x, y, n):
    if (k := n + 1) > 2:
        z = x * k
    else:
        z = x
    return z, [w for i in range(5) if (w := i * 2) > 4], w


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
