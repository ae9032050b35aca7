"""Functions: parameters, closures, partials, decorators, attributes, recursion."""

import collections
import functools
import itertools
import numbers
import operator
import typing

import torch
from eager_twin import check
from torch import nn

X = torch.arange(6.0).reshape(2, 3)


@functools.lru_cache(None)
def cached(n):
    return n * 2


@functools.singledispatch
def describe(v):
    return "any"


@describe.register
def _(v: int):
    return "int"


def test_every_kind_of_parameter():
    def program(x):
        def f(a, /, b=1, *args, c, d=4, **kw):
            return a * b + sum(args) + c + d + sum(kw.values())

        return f(x, c=3), f(x, 2, 3, 4, c=1, z=9), f(x, *[2], c=1, d=2)

    check(program, (X,))


def test_partials_of_partials():
    def program(x):
        f = functools.partial(torch.add, alpha=2)
        g = functools.partial(f, x)
        h = functools.partial(lambda a, b, c=0: a * b + c, c=x)
        return g(1), h(2, 3), g.func is f.func, g.args[0].shape, g.keywords

    check(program, (X,))


def test_lambdas_with_defaults():
    def program(x):
        return (lambda *a, **k: a[0] * k["s"])(x, s=3), [
            f(x) for f in [lambda v, i=i: v * i for i in range(3)]
        ]

    check(program, (X,))


def test_closures_that_count():
    def program(x):
        def make(k):
            def inc(d=1):
                nonlocal k
                k += d
                return x * k

            return inc

        a, b = make(1), make(10)
        return a(), a(5), b(), a.__closure__[0].cell_contents

    check(program, (X,))


def test_star_arguments_come_through():
    def program(x, *a, **k):
        return x * 2, a, k

    check(program, (X, (1, 2), {"k": 3}))


def test_recursive_functions():
    def program(x):
        def fact(n):
            return 1 if n < 2 else n * fact(n - 1)

        def deep(t, n):
            return t if n == 0 else deep(t + 1, n - 1)

        return x * fact(5), deep(x, 6)

    check(program, (X,))


def test_attributes_of_a_function_of_the_frame():
    def program(x):
        def f(a):
            f.count = getattr(f, "count", 0) + 1
            return a + f.count

        return f(f(x)), f.count, f.__name__, f.__qualname__, callable(f), hasattr(f, "count")

    check(program, (X,))


def test_decorator_with_wraps():
    def program(x):
        def deco(f):
            @functools.wraps(f)
            def g(*a):
                return f(*a) * 2

            return g

        @deco
        def named(v):
            "doc"
            return v + 1

        return named(x), named.__name__, named.__doc__, named.__wrapped__(x)

    check(program, (X,))


def test_singledispatch():
    def program(x):
        return describe(3), describe("s"), x + 1

    check(program, (X,))


def test_lru_cache():
    def program(x):
        return x * cached(3)

    check(program, (X,))


def test_operator_getters_and_isinstance():
    def program(x):
        return (
            operator.itemgetter(1)([1, 2]),
            operator.attrgetter("shape")(x),
            operator.methodcaller("sum")(x),
            x.mul(2),
            getattr(x, "nope", None),
            isinstance(x, torch.Tensor),
            isinstance(3, (int, float)),
            isinstance(True, int),
            issubclass(bool, int),
            callable(x.add),
            type(x) is torch.Tensor,
            isinstance(x, (nn.Module, torch.Tensor)),
            isinstance([1], collections.abc.Sequence),
            isinstance({}, collections.abc.Mapping),
            isinstance(3, numbers.Number),
        )

    check(program, (X,))


def test_tensor_methods_as_functions():
    def program(x):
        return (
            torch.Tensor.add(x, 1),
            torch.nn.functional.linear(x, x),
            torch.sin(x),
            x.__class__.__name__,
            type(x).__name__,
            torch.Tensor.sum(x, dim=0),
            x.size(0),
            x.__len__(),
            torch.add.__name__,
        )

    check(program, (X,))


def test_generators_send_and_return():
    def program(x):
        def g(n):
            got = yield x * 0
            for i in range(n):
                got = yield x * i + (got or 0)
            return "done"

        def h():
            r = yield from g(2)
            yield r

        it = g(2)
        next(it)
        a = it.send(5)
        return list(h()), a, next(iter([1])), next(iter([]), "d")

    check(program, (X,))


def test_generator_expressions():
    def program(x):
        it = (i for i in range(5))
        a = next(it)
        b = list(it)
        g = (x * i for i in b if i % 2)
        return (
            a,
            b,
            list(g),
            dict(zip(*[iter("abcd")] * 2, strict=True)),
            [*map(str, b)],
            max((i for i in b), default=0),
            "".join(c for c in "abc"),
            tuple(x[i] for i in range(2)),
            set(itertools.repeat(1, 3)),
        )

    check(program, (X,))


def test_typing_and_dtype_limits():
    def program(x):
        y: torch.Tensor = x
        return (
            typing.cast(torch.Tensor, y) * 2,
            typing.get_origin(list[int]) is list,
            x.to(torch.float64).dtype.is_floating_point,
            torch.finfo(x.dtype).min,
            torch.iinfo(torch.int8).max,
        )

    check(program, (X,))


def test_typing_forms_are_subscripted():
    def program(x):
        b: list[int] = [1]
        form = typing.Callable[[int], typing.Any]
        return (
            x + b[0],
            form is not None,
            typing.TYPE_CHECKING,
            isinstance(b, list),
        )

    check(program, (X,))
