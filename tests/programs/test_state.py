# ruff: noqa: B006, E741, RUF005
# The programs are written as users write them.
"""Programs that keep state between calls: eager's results and state each time they are called."""

import collections
import dataclasses
import enum
import functools

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
program = PROGRAMS.program


@program(2)
def counter_state():
    class S:
        pass

    s = S()
    s.n = 0
    s.hist = []
    s.d = {}

    def f(x, y, n):
        s.n += 1
        s.hist.append(n)
        s.d[n] = s.d.get(n, 0) + 1
        return x * s.n, list(s.hist), dict(s.d)

    return f


@program(1)
def closure_state():
    k = 0
    seen = []

    def f(x, y, n):
        nonlocal k
        k += n
        seen.append(k)
        return x + k, tuple(seen)

    return f


@program(1)
def mutable_default():
    def f(x, y, n, acc=[]):
        acc.append(n)
        return x + len(acc), sum(acc)

    return f


@program()
def class_level_counter():
    class C:
        count = 0

        def __init__(self):
            type(self).count += 1

    def f(x, y, n):
        c = C()
        return x * C.count, c.count

    return f


@program(2)
def lru_state():
    calls = []

    @functools.lru_cache
    def g(n):
        calls.append(n)
        return n * 2

    def f(x, y, n):
        return x * g(n), len(calls)

    return f


@program()
def iter_state():
    it = iter(range(100))

    def f(x, y, n):
        return x + next(it), next(it)

    return f


@program(1)
def gen_state():
    def g():
        i = 0
        while True:
            i += 1
            yield i

    it = g()

    def f(x, y, n):
        return x * next(it)

    return f


@program()
def dict_order_state():
    d = {"a": 1, "b": 2}

    def f(x, y, n):
        d["a"] = d.pop("a") + n
        return x * d["a"], list(d)

    return f


@program()
def swap_fn():
    class M:
        pass

    m = M()
    m.f = torch.sin

    def f(x, y, n):
        r = m.f(x)
        m.f = torch.cos if m.f is torch.sin else torch.sin
        return r

    return f


@program()
def flag_toggle():
    class M:
        training = True

    m = M()

    def f(x, y, n):
        m.training = not m.training
        return x * 2 if m.training else x + 1

    return f


@program()
def tensor_attr():
    class M:
        pass

    m = M()
    m.buf = torch.zeros(4)

    def f(x, y, n):
        m.buf = m.buf + x
        m.buf.mul_(2)
        return m.buf * n

    return f


@program()
def list_of_tensors():
    buf = []

    def f(x, y, n):
        buf.append(x * n)
        if len(buf) > 2:
            buf.pop(0)
        return torch.stack(buf).sum(0), len(buf)

    return f


@program(2)
def del_attr_state():
    class M:
        pass

    m = M()

    def f(x, y, n):
        if hasattr(m, "v"):
            r = x * m.v
            del m.v
        else:
            m.v = n
            r = x
        return r, hasattr(m, "v")

    return f


@program()
def set_state():
    s = set()

    def f(x, y, n):
        new = n not in s
        s.add(n)
        return x + len(s), new

    return f


@program()
def defaultdict_state():
    d = collections.defaultdict(list)

    def f(x, y, n):
        d[n].append(len(d))
        return x + len(d[n]), dict(d)

    return f


@program()
def counter_obj_state():
    c = collections.Counter()

    def f(x, y, n):
        c[n] += 1
        c.update([n, n])
        return x * c[n], dict(c)

    return f


@program(1)  # after four keys
def ordered_state():
    d = collections.OrderedDict()

    def f(x, y, n):
        d[n] = len(d)
        d.move_to_end(n, last=False)
        return x + d[n], list(d)

    return f


@program()
def enum_state():
    E = enum.Enum("E", "A B")

    class M:
        mode = E.A

    m = M()

    def f(x, y, n):
        m.mode = E.B if m.mode is E.A else E.A
        return (x * 2 if m.mode is E.B else x - 1), m.mode.name

    return f


@program()
def property_state():
    class P:
        def __init__(s):
            s._x = 1

        @property
        def x(s):
            s._x += 1
            return s._x

    p = P()

    def f(x, y, n):
        return x * p.x + p.x

    return f


@program()
def cached_property_state():
    class P:
        k = 0

        @functools.cached_property
        def x(s):
            P.k += 1
            return P.k

    p = P()

    def f(x, y, n):
        r = x * p.x
        if n == 3:
            del p.x
        return r

    return f


@program()
def slots_state():
    class P:
        __slots__ = ("a",)

    p = P()
    p.a = 1

    def f(x, y, n):
        p.a += n
        return x * p.a

    return f


@program(2)
def frozen_dc():
    @dataclasses.dataclass(frozen=True)
    class C:
        a: int
        b: tuple = ()

    box = [C(1)]

    def f(x, y, n):
        box[0] = dataclasses.replace(box[0], a=box[0].a + n, b=box[0].b + (n,))
        return x * box[0].a, box[0].b, hash(box[0]) == hash(C(box[0].a, box[0].b)), box[0] == C(1)

    return f


@program(1)
def alias_args():
    def f(x, y, n):
        l = [x]
        m = l
        m.append(y)
        l += [x]
        return l is m, len(l), l[0] is l[2], l

    return f


@program(4)
def own_variables():
    def f(x, y, n):
        a = n + 1
        if x.sum() > y.sum():
            b = x + a
        else:
            b = y - a
        names = sorted(dict(locals()))
        return names, b * 2, [a, len(locals())]

    return f


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
