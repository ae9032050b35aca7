# ruff: noqa: RUF005, RUF015
# The programs are written as users write them.
"""Small programs: heaps, files in memory, texts, patterns, counters and other containers."""

import bisect
import collections
import contextlib
import copy
import functools
import heapq
import io
import itertools
import json
import math
import operator
import re
import statistics
import string
import textwrap
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, deque

import pytest
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless

RECENT = deque([1, 2, 3], maxlen=5)
COUNTED = Counter("abca")
DOTTED = re.compile(r"(\w+)\.(\d+)")
GREETING = string.Template("$a and ${b}")


class Upper(UserDict):
    def __setitem__(self, k, v):
        super().__setitem__(k.upper(), v)


class Totals(UserList):
    def total(self):
        return sum(self.data)


@stateless()
def heap_(x, y, n):
    h = []
    for v in (5, 1, n, 4):
        heapq.heappush(h, v)
    a = heapq.heappop(h)
    heapq.heapify(h)
    b = heapq.heappushpop(h, 0)
    c = heapq.heapreplace(h, 9)
    return (
        x + a,
        h,
        b,
        c,
        heapq.nlargest(2, h),
        heapq.nsmallest(2, [3, 1, n]),
        list(heapq.merge([1, 4], [2, n])),
    )


@stateless()
def heap_tensors_(x, y, n):
    h = []
    heapq.heappush(h, (n, 0, x))
    heapq.heappush(h, (1, 1, y))
    return heapq.heappop(h)[2] + 1, h


@stateless()
def heap_key_(x, y, n):
    return x + 1, heapq.nlargest(2, [1, -5, n], key=abs)


@stateless()
def bisect_(x, y, n):
    a = [1, 3, 5]
    bisect.insort(a, n)
    return (
        x + bisect.bisect(a, n),
        bisect.bisect_left(a, 3),
        bisect.bisect_right(a, 3, 0, 2),
        a,
        bisect.bisect_left(a, 3, key=lambda v: v),
    )


@stateless()
def stringio_(x, y, n):
    s = io.StringIO()
    s.write("a")
    s.write(str(n))
    print("hey", n, file=s)
    return x + len(s.getvalue()), s.getvalue()


@stateless()
def stringio_read_(x, y, n):
    s = io.StringIO("one\ntwo\nthree")
    a = s.readline()
    rest = [line.strip() for line in s]
    return x + len(a), rest, s.tell()


@stateless()
def stringio_seek_(x, y, n):
    with io.StringIO() as s:
        s.write("hello")
        s.seek(0)
        t = s.read(2)
    return x + 1, t, s.closed


@stateless()
def template_(x, y, n):
    return x + 1, string.Template("$a-$b").substitute(a=n, b="q"), GREETING.safe_substitute(a=1)


@stateless()
def textwrap_(x, y, n):
    return (
        x + 1,
        textwrap.dedent("  a\n  b"),
        textwrap.indent("a\nb", "> "),
        textwrap.fill("aa bb cc dd", 5),
        textwrap.shorten("hello world foo", 10),
    )


@stateless()
def json_(x, y, n):
    return (
        x + 1,
        json.dumps({"a": n, "b": [1, 2.5, None, True]}),
        json.dumps([1], indent=2),
        json.dumps({"b": 1, "a": 2}, sort_keys=True),
    )


@stateless()
def json_loads_(x, y, n):
    return x + json.loads('{"a": [1, 2]}')["a"][1]


@stateless()
def re_(x, y, n):
    m = re.match(r"layer\.(\d+)", f"layer.{n}")
    return (
        x + int(m.group(1)),
        m.groups(),
        m.span(),
        bool(re.search("z", "abc")),
        re.sub("a", "b", "aba"),
        re.split(",", "a,b"),
        re.findall(r"\d", "1a2"),
        re.fullmatch("a", "b"),
    )


@stateless()
def re_pat_(x, y, n):
    m = DOTTED.match(f"foo.{n}")
    return (
        x + int(m[2]),
        m.groupdict(),
        [q.group(0) for q in DOTTED.finditer("a.1 b.2")],
        DOTTED.sub(lambda m: m.group(1), "a.1"),
        DOTTED.pattern,
    )


@stateless()
def re_sub_fn_(x, y, n):
    return x + 1, re.sub(r"\d", lambda m: str(int(m.group()) + n), "a1b2")


@stateless()
def re_compile_(x, y, n):
    return (
        x + 1,
        re.compile("a+").findall("aaba"),
        re.escape("a.b"),
        re.IGNORECASE,
        re.match("A", "a", re.I) is not None,
    )


@stateless()
def itertools_(x, y, n):
    return (
        x + 1,
        list(itertools.chain([1], [n])),
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.islice(itertools.count(n), 3)),
        list(itertools.groupby([1, 1, 2]))[0][0],
        list(itertools.repeat(n, 2)),
        list(itertools.starmap(pow, [(2, n)])),
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
        list(itertools.accumulate([1, 2, n], operator.mul)),
        list(itertools.product([1, 2], repeat=2)),
        list(itertools.permutations([1, 2, 3], 2)),
        list(itertools.combinations("abc", 2)),
        list(itertools.pairwise([1, 2, n])),
        list(itertools.takewhile(lambda v: v < n, [1, 2, 3])),
    )


@stateless()
def itertools_ret_(x, y, n):
    return x + 1, next(itertools.count(n)), list(itertools.islice(itertools.cycle([1, 2]), 5))


@stateless()
def it_types_(x, y, n):
    return (
        x + 1,
        type(zip([1])).__name__,
        type(map(str, [])).__name__,
        type(enumerate([])).__name__,
        type(reversed([1])).__name__,
        type(filter(None, [])).__name__,
        type(itertools.count()).__name__,
        type(iter({1: 2}.items())).__name__,
        type(iter({1: 2}.values())).__name__,
        type(itertools.chain()).__name__,
    )


@stateless()
def it_isinstance_(x, y, n):
    return (
        x + 1,
        isinstance(reversed([1]), collections.abc.Iterator),
        isinstance(zip([1]), zip),
        isinstance(map(str, [1]), map),
        isinstance(reversed([1]), reversed),
        isinstance(enumerate([1]), collections.abc.Generator),
    )


@stateless()
def operator_(x, y, n):
    items = [1, 2]
    return (
        operator.add(x, 1),
        operator.concat([1], [n]),
        operator.indexOf([1, 2, n], n),
        operator.countOf([1, 1], 1),
        operator.itemgetter(1)([3, n]),
        operator.attrgetter("real")(n),
        operator.methodcaller("upper")("a"),
        operator.length_hint([1, 2]),
        operator.index(n),
        operator.floordiv(7, n),
        operator.iadd(items, [3]),
        items,
        operator.iconcat(items, [4]),
        operator.xor(1, n),
        operator.matmul(x, y),
        operator.call(len, "abc"),
        operator.abs(-n),
        operator.inv(n),
        operator.pos(n),
    )


@stateless()
def statistics_(x, y, n):
    return (
        x + statistics.mean([1, 2, n]),
        statistics.median([1, n]),
        statistics.pstdev([1, 2, n]),
        statistics.stdev([1.0, 2.0]),
        statistics.mode([1, 1, n]),
        statistics.fmean([1, n]),
        statistics.variance([1, 2, n]),
    )


@stateless()
def counter_(x, y, n):
    c = Counter("abca")
    c.update("bb")
    c["z"] += n
    return (
        x + c["a"],
        c.most_common(2),
        c.total(),
        sorted(c.elements()),
        c - Counter("a"),
        c + Counter("q"),
        c & Counter("aab"),
        c | Counter("zz"),
        dict(c),
        c["missing"],
        len(c),
    )


@stateless()
def counter_out_(x, y, n):
    return x + COUNTED["a"], COUNTED.most_common(1), COUNTED["q"]


@stateless()
def counter_kw_(x, y, n):
    c = Counter(a=1, b=n)
    c.subtract({"a": 3})
    return x + 1, c, +c, -c, c.copy(), Counter(c)


@stateless()
def chainmap_(x, y, n):
    m = ChainMap({"a": 1}, {"a": 2, "b": n})
    m["c"] = 5
    k = m.new_child({"a": 9})
    return (
        x + m["b"],
        m["a"],
        list(m),
        len(m),
        k["a"],
        m.parents["a"],
        "c" in m,
        dict(m),
        m.get("zz"),
        m.maps,
    )


@stateless()
def userdict_(x, y, n):
    class U(UserDict):
        def __missing__(self, k):
            return n

    u = U(a=1)
    u["b"] = 2
    return x + u["q"], len(u), list(u), dict(u), u.get("a"), "a" in u


@stateless()
def userdict2_(x, y, n):
    u = Upper({"a": n})
    u.update(b=3)
    return x + u["A"], u, u.pop("B"), u.data


@stateless()
def userlist_(x, y, n):
    u = Totals([1, 2])
    u.append(n)
    u += [7]
    v = u + [1]
    return x + u.total(), u, v, u[0], u[:2], len(u), 2 in u, type(v).__name__


@stateless()
def userstring_(x, y, n):
    s = UserString("abc")
    return x + len(s), s.upper(), s + "d", str(s)


@stateless()
def deque_arg_(x, y, n):
    d = deque([1, n], 3)
    d.appendleft(0)
    d.extend([8, 9])
    return (
        x + d[0],
        d,
        d.count(9),
        d.index(8),
        list(reversed(d)),
        d.copy(),
        d == deque([1]),
        d.maxlen,
        d + deque([1]),
        deque([1]) * 2,
    )


@stateless()
def deque_iter_(x, y, n):
    t = 0
    for v in RECENT:
        t += v
    return x + t, 2 in RECENT, bool(RECENT), repr(deque([1], 2))


@stateless()
def od_(x, y, n):
    o = OrderedDict(a=1, b=n)
    o.move_to_end("a")
    return x + 1, o, list(reversed(o)), o.popitem(last=False), o == OrderedDict(a=1)


@stateless()
def math_(x, y, n):
    return (
        x * math.prod([1, n]),
        math.isclose(1, 1.0),
        math.gcd(4, n),
        math.comb(5, 2),
        math.hypot(3, 4),
        math.fsum([0.1, 0.2]),
        math.dist([1], [2]),
        math.lcm(4, n),
        math.perm(4, 2),
        math.isqrt(17),
        math.trunc(2.5),
        math.copysign(1, -2),
        math.modf(2.5),
        math.frexp(8.0),
        math.inf,
    )


@stateless()
def functools_(x, y, n):
    f = functools.partial(pow, n)
    g = functools.reduce(operator.mul, [1, 2, n])
    return (
        x + f(2),
        g,
        f.args,
        f.func,
        f.keywords,
        sorted([3, 1, n], key=functools.cmp_to_key(lambda a, b: a - b)),
    )


@stateless()
def copy_(x, y, n):
    a = [1, [n]]
    b = copy.copy(a)
    c = copy.deepcopy(a)
    b[1].append(5)
    return x + 1, a, b, c


@stateless()
def copy_deque_(x, y, n):
    d = deque([1, n], 4)
    return x + 1, copy.copy(d), copy.deepcopy(d)


@stateless()
def contextlib_(x, y, n):
    out = []
    with contextlib.ExitStack() as st:
        st.callback(out.append, n)
        st.enter_context(contextlib.nullcontext(3))
    with contextlib.suppress(ValueError):
        raise ValueError
    b = io.StringIO()
    return x + 1, out


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
