# ruff: noqa: B006, B905, C401, C402, E741, RUF005, RUF059, UP003
# The programs are written as users write them.
"""Small programs: containers and functions as values."""

import functools
import numbers
import types
import typing

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


@stateless()
def uses_methodtype(x, y, n):
    class C:
        pass

    c = C()
    c.f = types.MethodType(lambda s, t: t + n, c)
    return c.f(x), c.f.__self__ is c, c.f.__func__.__name__


@stateless()
def uses_isinstance(x, y, n):
    return (
        x + 1,
        isinstance(n, (str, int)),
        isinstance(x, torch.Tensor),
        isinstance([], typing.Sequence),
        issubclass(bool, int),
        type(n) is int,
        type(x) is torch.Tensor,
        isinstance(n, numbers.Number),
        isinstance(print, types.BuiltinFunctionType),
        isinstance(lambda: 0, types.FunctionType),
        isinstance(None, type(None)),
        isinstance(x, object),
    )


@stateless()
def uses_dict_changed(x, y, n):
    d = {1: 2}
    z = x + 1
    try:
        for k in d:
            d[k + 1] = 1
    except RuntimeError as e:
        m = str(e)
    return z, m


@stateless()
def uses_list_changed(x, y, n):
    l = [1, 2, 3]
    o = []
    for i in l:
        o.append(i)
        if i == 1:
            l.append(9)
        if i == 2:
            l.remove(3)
    return x + 1, o, l


@stateless(1)
def uses_try_tensor_err(x, y, n):
    try:
        return x @ torch.ones(7)
    except RuntimeError as e:
        return x + 1, str(e)[:30]


@stateless()
def uses_tensor_iter(x, y, n):
    a, b, c, d = x
    s = [t * 2 for t in x]
    q = list(zip(x, y))
    e = [(i, t) for i, t in enumerate(x.view(2, 2))]
    return a + b, s, q, e, len(x), x.tolist() if False else 0, *x.split(2)


@stateless()
def uses_tensor_in_dictkey(x, y, n):
    d = {x: 1}
    d[y] = 2
    return x + d[x] + d[y], len(d), x in d


@stateless()
def uses_shape_ints(x, y, n):
    (b,) = x.shape
    s = x.size()
    h = x.size(0)
    return (
        x.view(b // 2, -1) * s[0] + h,
        s.numel(),
        x.numel(),
        s + (1,),
        torch.Size([1, 2]) == (1, 2),
        s[-1],
        s == (4,),
        len(s),
        x.ndim,
        x.element_size(),
        list(s),
        tuple(s),
    )


@stateless()
def uses_setdefault_cache(x, y, n):
    cache = {}

    def get(k):
        if k not in cache:
            cache[k] = x + k
        return cache[k]

    return get(1) + get(1) + get(n), len(cache)


@stateless()
def uses_callable_class(x, y, n):
    class F:
        def __init__(s):
            s.n = 0

        def __call__(s, t):
            s.n += 1
            return t * s.n

    f = F()
    return f(f(x)), f.n, list(map(f, [1, 2]))


@stateless(1)
def uses_partialmethod(x, y, n):
    class C:
        def f(s, a, b):
            return a + b

        g = functools.partialmethod(f, 10)

    return x + C().g(n)


@stateless()
def uses_mutable_default(x, y, n):
    def f(a, l=[]):
        l.append(a)
        return l

    return x + 1, f(1), f(2), f(3, [])


@stateless()
def uses_intern_bool(x, y, n):
    return (
        x + (n > 2),
        bool(n),
        int(n > 2),
        sum([n > 1, n > 2]),
        (n > 2) * 3,
        True & False,
        True ^ True,
        not (n > 2),
    )


@stateless()
def uses_nested_func_default(x, y, n):
    def outer(a):
        def mid(b):
            def inner(c):
                return a + b + c + n

            return inner

        return mid

    return outer(x)(y)(1)


@stateless()
def uses_class_attr_write(x, y, n):
    class C:
        k = 0

    C.k += n
    c = C()
    c.k += 1
    C.f = lambda s: s.k
    return x + c.f(), C.k


@stateless(1)
def uses_type_of(x, y, n):
    return (
        x + 1,
        type(x)(),
        type([])((1, 2)),
        type("a")(3),
        type(n)("4"),
        x.__class__ is torch.Tensor,
        type(None),
        type(type),
    )


@stateless()
def uses_iter_protocol(x, y, n):
    it = iter([1, 2, 3])
    a = next(it)
    b = list(it)
    c = next(it, "end")
    it2 = iter({"a": 1}.items())
    d = next(it2)
    z = zip([1, 2], "ab")
    e = next(z)
    f = list(z)
    return x + a, b, c, d, e, f, iter(it) is it


@stateless()
def uses_sum_generators(x, y, n):
    return (
        sum(x * i for i in range(n)),
        max((t for t in [1, 3, 2]), key=lambda t: -t),
        any(i > 1 for i in range(3)),
        all(isinstance(t, torch.Tensor) for t in (x, y)),
        ",".join(str(i) for i in range(3)),
        dict((i, i) for i in range(2)),
        set(i for i in "aa"),
        tuple(i for i in range(2)),
        sorted(i for i in (2, 1)),
        torch.stack([x for _ in range(2)]),
    )


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
