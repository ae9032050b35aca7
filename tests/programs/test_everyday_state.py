# ruff: noqa: B904, RET504, RUF059, UP045
# The programs are written as users write them.
"""Everyday programs: state, containers, registries and classes."""

import bisect
import collections
import dataclasses
import enum
import functools
import heapq
import typing

import pytest
import torch
from everyday import Everyday, check
from torch import nn
from torch.nn import functional as F

EVERYDAY = Everyday()
program, model = EVERYDAY.program, EVERYDAY.model


@program
def identity_flow():
    def f(x, y, n):
        a = [1]
        b = a
        c = list(a)
        b.append(2)
        if a is b and a is not c:
            x = x + 1
        d = {"k": a}
        if d["k"] is b:
            x = x * 2
        return x, a, c, d

    return f


@program
def grow_iter():
    def f(x, y, n):
        vals = [x.sum()]

        def g():
            for item in vals:
                if len(vals) < 3:
                    vals.append(item + 1)
                yield item

        return torch.stack(list(g())).sum(), len(vals)

    return f


@program
def class_list():
    class M(nn.Module):
        items = []

        def forward(self, x, y, n):
            M.items.append(x * n)
            return x + len(M.items)

    m = M()
    return lambda *a: (m(*a), list(M.items))


@program
def rev_part():
    def f(x, y, n):
        it = reversed([1, 2, 3, 4])
        next(it)
        rest = list(iter(it))
        return x + sum(rest), rest, list(it)

    return f


@program
def local_class_closure():
    log = []
    st = {"n": 0}

    def f(x, y, n):
        class H:
            def touch(self, v):
                log.append(v)
                st["n"] += 1

            def __enter__(self):
                self.touch("in")
                return self

            def __exit__(self, *e):
                self.touch("out")

        with H() as h:
            h.touch(n)
            x = x + 1
        return x

    return lambda *a: (f(*a), list(log), dict(st))


@program
def zero_div():
    def f(x, y, n):
        try:
            r = 1 // (x.long() - 0)
        except (ZeroDivisionError, RuntimeError) as e:
            return x + 2, type(e).__name__
        return r

    return f


@program
def frozen_dict():
    class FD(collections.OrderedDict):
        def __init__(self, *a, **k):
            super().__init__(*a, **k)
            for kk, v in self.items():
                setattr(self, kk, v)
            self.__frozen = True

        def __setitem__(self, k, v):
            if hasattr(self, "__frozen") and self.__frozen:
                raise Exception("no")
            super().__setitem__(k, v)

        def __setattr__(self, k, v):
            if hasattr(self, "__frozen") and self.__frozen:
                raise Exception("no")
            super().__setattr__(k, v)

    cfg = FD(scale=2.0, act="silu", dims=(4, 4))

    def f(x, y, n):
        z = F.silu(x) if cfg.act == "silu" else x
        return (
            z * cfg["scale"] + cfg.dims[0],
            cfg.get("nope", 3),
            {**cfg}["act"],
            isinstance(cfg, dict),
        )

    return f


@program
def set_update_map():
    s = set()

    def f(x, y, n):
        s.update(map(int, ["1", "2", str(n)]))
        return x + len(s), sorted(s)

    return lambda *a: (f(*a), sorted(s))


@program
def prop_set():
    class P:
        def __init__(self):
            self._v = 0
            self.log = []

        @property
        def v(self):
            self.log.append("g")
            return self._v

        @v.setter
        def v(self, k):
            self.log.append("s")
            self._v = max(0, k)

        @v.deleter
        def v(self):
            self._v = -1

    p = P()

    def f(x, y, n):
        p.v = n - 3
        p.v += 1
        r = x + p.v
        del p.v
        return r, p.log[-3:], len(p.log)

    return f


@program
def registry():
    R = {}

    def reg(name):
        def d(fn):
            R[name] = fn

            @functools.wraps(fn)
            def w(*a, **k):
                return fn(*a, **k) * 2

            return w

        return d

    @reg("a")
    def a(x):
        return x + 1

    @reg("b")
    def b(x):
        return x - 1

    def f(x, y, n):
        return R["a" if n % 2 else "b"](x), a(x), b.__name__

    return f


@program
def nested_dc():
    @dataclasses.dataclass
    class In:
        w: torch.Tensor
        k: int = 1
        tags: list = dataclasses.field(default_factory=list)

    @dataclasses.dataclass
    class Out:
        a: In
        extra: typing.Optional[torch.Tensor] = None

    def f(x, y, n):
        o = Out(In(x * 2, n))
        o.a.tags.append("t")
        o2 = dataclasses.replace(o, extra=y + 1)
        d = dataclasses.asdict(In(x, 3))
        return (
            o2.a.w + o2.extra,
            o2.a.tags,
            sorted(d),
            dataclasses.astuple(In(1, 2)),
            o == o,
            repr(In(1, 2)),
        )

    return f


@program
def named():
    class Pt(typing.NamedTuple):
        a: torch.Tensor
        b: int = 2

        def s(self):
            return self.a * self.b

    def f(x, y, n):
        p = Pt(x)
        q = p._replace(b=n)
        a, *r = q
        return q.s(), p, q._asdict()["b"], r, Pt._fields, p[-1]

    return f


@program
def enum_flow():
    class K(enum.Enum):
        A = "a"
        B = "b"

        @property
        def fn(self):
            return {"a": torch.sin, "b": torch.cos}[self.value]

        @classmethod
        def of(cls, n):
            return cls.A if n % 2 else cls("b")

    class Fl(enum.IntFlag):
        X = 1
        Y = 2
        Z = 4

    def f(x, y, n):
        k = K.of(n)
        fl = Fl.X | Fl.Z
        match k:
            case K.A:
                z = x + 1
            case K.B:
                z = x + 2
        return k.fn(z), k.name, [e.value for e in K], Fl.Y in fl, int(fl), K["A"] is K.A

    return f


@program
def attr_dict():
    class AD(dict):
        def __getattr__(self, k):
            try:
                return self[k]
            except KeyError:
                raise AttributeError(k)

        def __setattr__(self, k, v):
            self[k] = v

    c = AD(lr=0.1, net=AD(h=2))

    def f(x, y, n):
        c.step = c.get("step", 0) + 1
        z = x * c.lr + c.net.h
        return z, getattr(c, "zz", None), hasattr(c, "lr"), c.step

    return lambda *a: (f(*a), dict(c))


@program
def chainmap():
    def f(x, y, n):
        c = collections.ChainMap({"a": n}, {"a": 1, "b": 2})
        cnt = collections.Counter("hello")
        cnt.update("l")
        return x + c["a"] + c["b"], cnt.most_common(1), c.maps[1]["a"], sorted(c)

    return f


@program
def heap():
    def f(x, y, n):
        h = []
        for i, v in enumerate([5, 1, 4]):
            heapq.heappush(h, (v, i))
        out = [heapq.heappop(h)[1] for _ in range(2)]
        bisect.insort(out, 1)
        return x + out[0], out, heapq.nlargest(2, [1, 3, 2]), bisect.bisect_left([1, 2, 4], 3)

    return f


@program
def single_disp():
    @functools.singledispatch
    def g(v):
        return v

    @g.register
    def _(v: int):
        return v + 1

    @g.register(list)
    def _(v):
        return [g(i) for i in v]

    @g.register
    def _(v: torch.Tensor):
        return v * 2

    def f(x, y, n):
        return g(x), g([1, x]), g("s")

    return f


@pytest.mark.parametrize("make", EVERYDAY.rows)
def test_everyday(make):
    check(make)
