# ruff: noqa: C408, F821
# The programs are written as users write them.
"""Class statements that run the user's code: metaclasses, `__init_subclass__`, `__set_name__`."""

import abc
import typing

import pytest
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Meta(type):
    def __new__(m, name, bases, ns, **kw):
        ns["added"] = kw.get("q", 1)
        return super().__new__(m, name, bases, ns)

    def __init__(c, name, bases, ns, **kw):
        super().__init__(name, bases, ns)
        c.inited = True

    def __call__(c, *a):
        r = super().__call__(*a)
        r.called = True
        return r

    def hello(c):
        return c.__name__

    @property
    def prop(c):
        return c.added + 1

    def __len__(c):
        return 42

    def __contains__(c, v):
        return v == 3

    def __iter__(c):
        return iter([1, 2])

    def __getitem__(c, k):
        return k * 2


class Base:
    subs = []

    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = tag


class RegBase:
    subs = []

    def __init_subclass__(cls, **kw):
        RegBase.subs.append(cls.__name__)


class Desc:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, o, t=None):
        return self if o is None else getattr(o, self.name, 0)

    def __set__(self, o, v):
        setattr(o, self.name, v * 2)


class UseDesc:
    d = Desc()


class CG:
    def __class_getitem__(cls, k):
        return (cls.__name__, k)


class Reg(type):
    reg = {}

    def __new__(m, name, bases, ns):
        c = super().__new__(m, name, bases, ns)
        m.reg[name] = 1
        return c


@stateless()
def meta_(x, y, n):
    class A(metaclass=Meta, q=5):
        def f(self):
            return n

    a = A()
    return x + a.f(), A.added, A.inited, a.called, A.hello(), A.prop, len(A), 3 in A, list(A), A[4]


@stateless()
def initsub_(x, y, n):
    class A(Base, tag=n):
        pass

    return x + A.tag, A().tag, Base.__dict__.get("tag", "none")


@stateless()
def initsub_reg_(x, y, n):
    class A(RegBase):
        pass

    r = list(RegBase.subs)
    RegBase.subs.clear()
    return x + 1, r


@stateless()
def setname_(x, y, n):
    class A:
        d = Desc()

    a = A()
    a.d = n
    return x + a.d, A.d.name, vars(a)


@stateless()
def setname_out_(x, y, n):
    a = UseDesc()
    a.d = n
    return x + a.d, a.__dict__


@stateless()
def classgetitem_(x, y, n):
    class B:
        def __class_getitem__(cls, k):
            return k + 1

    return x + B[n], CG[n]


@stateless()
def type3_(x, y, n):
    A = type("A", (), {"v": n, "f": lambda self: self.v + 1})
    B = type("B", (A,), {})
    return x + A().f(), B().v, A.__name__, issubclass(B, A), B.__mro__[1].__name__


@stateless()
def typenew_(x, y, n):
    A = Meta("A", (), {"v": n})
    return x + A.v, A.added, type(A).__name__


@stateless()
def meta_reg_(x, y, n):
    class Q(metaclass=Reg):
        pass

    r = list(Reg.reg)
    return x + 1, r


@stateless()
def abc_(x, y, n):
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class B(A):
        def f(self):
            return n

    try:
        A()
    except TypeError as e:
        m = str(e)
    return x + B().f(), isinstance(B(), A), "abstract" in m


@stateless()
def prepare_(x, y, n):
    class M(type):
        @classmethod
        def __prepare__(m, name, bases):
            return {"pre": 7}

    class A(metaclass=M):
        z = pre + 1

    return x + A.z, A.pre


@stateless()
def generic_(x, y, n):
    T = typing.TypeVar("T")

    class G(typing.Generic[T]):
        def f(self, a: T) -> T:
            return a

    return x + G[int]().f(n), G().f(1)


@stateless()
def meta_inherited_(x, y, n):
    class A(metaclass=Meta):
        pass

    class B(A, q=n):
        def f(self):
            return self.added

    return x + B().f(), type(B) is Meta, B.inited, [k.__name__ for k in B.__mro__]


@stateless()
def initsub_chain_(x, y, n):
    seen = []

    class A:
        def __init_subclass__(cls, **kw):
            seen.append((cls.__name__, sorted(kw)))
            super().__init_subclass__()

    class B(A, flag=n):
        pass

    class C(B):
        z = 1

    return x + C.z, seen, B.__bases__ == (A,), C.__mro__[1] is B


@stateless()
def meta_error_(x, y, n):
    class M(type):
        def __new__(m, name, bases, ns):
            if "bad" in ns:
                raise TypeError("no " + name)
            return super().__new__(m, name, bases, ns)

    class A(metaclass=M):
        pass

    try:

        class B(A):
            bad = 1
    except TypeError as e:
        return x + 1, str(e)


@stateless()
def meta_setattr_(x, y, n):
    class M(type):
        def __setattr__(c, k, v):
            super().__setattr__(k, v * 2)

    class A(metaclass=M):
        pass

    A.v = n
    return x + A.v, A().v


@stateless()
def class_attr_write_(x, y, n):
    class A:
        count = 0

        def __init__(self):
            A.count += 1

    A()
    A()
    A.t = x
    return A.t + A.count


@stateless()
def setname_many_(x, y, n):
    order = []

    class D:
        def __set_name__(self, owner, name):
            order.append((owner.__name__, name))
            self.key = name

        def __get__(self, o, t):
            return self if o is None else self.key + "!"

    class A:
        first = D()
        second = D()

    class B(A):
        third = D()

    return x + 1, order, A().first, B().second, B.third.key


@stateless()
def type3_kw_(x, y, n):
    def init(self, v):
        self.v = v

    A = type("A", (Base,), dict(__init__=init, twice=lambda self: self.v * 2), tag=n)
    return x + A(n).twice(), A.tag, A.__module__ == __name__, A.__qualname__


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
