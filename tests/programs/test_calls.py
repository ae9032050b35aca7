# ruff: noqa: PIE804
# The programs are written as users write them.
"""Inlined calls: argument binding, methods, partials, recursion, decorators."""

import functools
import operator

import pytest
import torch
from eager_twin import check, check_made

X = torch.arange(4.0)
Y = torch.ones(4)


def scaled(x, by=2, *, shift=1):
    return x * by + shift


def gathers(x, *args, **kwargs):
    return x + len(args) + sum(kwargs.values()), args, kwargs


def positional_only(x, y=3, /, z=4):
    return x * y - z


class Maths:
    factor = 3

    def __init__(self, bias):
        self.bias = bias

    def method(self, x):
        return x * self.factor + self.bias

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @staticmethod
    def of_none(x):
        return x - 1

    def __call__(self, x, again=False):
        y = self.method(x)
        return self(y) if again else y


class Heir(Maths):
    factor = 5

    def method(self, x):
        return super().method(x) + super().of_none(x)

    @classmethod
    def of_class(cls, x):
        return super().of_class(x) + 1


def test_defaults_and_keyword_only():
    check(lambda x: (scaled(x), scaled(x, 3), scaled(x, shift=5), scaled(by=7, x=x)), (X,), (Y,))


def test_star_arguments():
    check(lambda x: gathers(x, 1, 2, a=3, b=4), (X,), (Y,))


def test_star_call():
    args, kwargs = (4,), {"shift": 7}
    check(lambda x: scaled(x, *args, **kwargs), (X,), (Y,))


def test_merged_stars():
    check(lambda x: gathers(x, *[1], *(2, 3), a=1, b=2), (X,))


def test_star_call_of_generator():
    check(lambda x: gathers(*(x + i for i in range(3))), (X,), (Y,))


def test_positional_only():
    check(lambda x: (positional_only(x), positional_only(x, 2), positional_only(x, 2, z=1)), (X,))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: scaled(),
        lambda x: scaled(x, 1, 2),
        lambda x: scaled(x, by=1, b=2),
        lambda x: scaled(x, 2, by=1),
        lambda x: positional_only(x=x),
        lambda x: Maths(),
        lambda x: gathers(x, **{"a": 1}, **{"a": 2}),
        lambda x: Maths.factor(x),
    ],
)
def test_wrong_arguments_raise_type_error(call):
    def program(x):
        y = x + 1
        try:
            return call(x)
        except TypeError as error:
            return y, type(error).__name__

    check(program, (X,), (Y,))


def test_bound_static_and_class_methods():
    def program(x, m):
        f = m.method
        return (
            f(x),
            m.of_class(x),
            m.of_none(x),
            Maths.of_class(x),
            Maths.of_none(x),
            Maths.method(m, x),
        )

    check(program, (X, Maths(2)), (Y, Maths(2)))


def test_super_in_methods_and_class_methods():
    check(lambda x, h: (h.method(x), h.of_class(x), Heir.of_class(x)), (X, Heir(1)), (Y, Heir(1)))


def test_callable_object_and_its_recursion():
    check(lambda x, m: m(x, again=True), (X, Maths(2)))


def test_object_made_in_the_frame():
    check(lambda x: Heir(2.5).method(x), (X,), (Y,))


def test_closure_reads_and_nonlocal_writes():
    def make():
        count = 0

        def program(x):
            nonlocal count
            count += 1

            def add(y):
                return x + y

            return add(1) * add(2)

        return program, lambda: count

    check_made(make, (X,), graphs=2)


def test_counter_in_closure_made_in_the_frame():
    def program(x):
        total = 0

        def bump(by):
            nonlocal total
            total += by
            return total

        bump(2)
        bump(3)
        return x * total

    check(program, (X,), (Y,))


def test_lambda_defaults_capture_loop_variable():
    def program(x):
        fs = [lambda y, i=i: y * i for i in range(3)]
        gs = [lambda y: y * i for i in range(3)]
        return [f(x) for f in fs], [g(x) for g in gs]

    check(program, (X,))


def test_partial():
    def program(x):
        p = functools.partial(scaled, by=3)
        q = functools.partial(p, shift=4)
        return p(x), q(x), q(x, by=1), q.func is scaled, q.keywords, q.args

    check(program, (X,), (Y,))


def test_partial_from_outside():
    p = functools.partial(scaled, by=3)
    check(lambda x: p(x, shift=2), (X,), (Y,))


def test_partialmethod():
    class A:
        def f(self, x, by):
            return x * by

        twice = functools.partialmethod(f, by=2)

    a = A()
    check(lambda x: a.twice(x), (X,), (Y,))


def test_recursion():
    def power(x, n):
        return x if n == 0 else power(x, n - 1) * x

    check(lambda x: power(x, 5), (X,), (Y,))


def test_mutual_recursion():
    def even(x, n):
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return x if n == 0 else even(x * 2, n - 1)

    check(lambda x: even(x, 7), (X,))


def doubled(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        """wrapper doc"""
        return fn(*args, **kwargs) * 2

    return wrapper


@doubled
def decorated(x, y=1):
    """decorated doc"""
    return x + y


def test_decorator_outside():
    check(lambda x: (decorated(x, y=3), decorated.__name__, decorated.__wrapped__(x)), (X,), (Y,))


def test_decorator_applied_inside():
    def program(x):
        @doubled
        def inner(y):
            """inner doc"""
            return y + 1

        return inner(x), inner.__name__, inner.__doc__, inner.__qualname__, inner.__wrapped__(x)

    check(program, (X,), (Y,))


def test_wrapped_function_returned_keeps_its_name():
    def program(x):
        @doubled
        def inner(y):
            return y + 1

        return x + 1, inner.__name__

    check(program, (X,))


def test_lru_cached_function():
    @functools.lru_cache
    def factor(n):
        return n * 2 + 1

    check(lambda x: x * factor(3), (X,), (Y,))


def test_functions_in_tables():
    table = {"relu": torch.relu, "double": lambda x: x * 2}

    def program(x, name):
        return table[name](x)

    check(program, (X, "relu"), (X, "double"), graphs=2)


def test_operator_module():
    def program(x):
        item, attr = operator.itemgetter(1), operator.attrgetter("shape")
        both, call = operator.itemgetter(0, 2), operator.methodcaller("sum", 0)
        return operator.add(x, 1), item([x, x + 1]), attr(x), both([x, 2, 3]), call(x)

    check(program, (X,), (Y,))


def test_returned_function_is_usable():
    def program(x):
        y = x + 1

        def later(z):
            return y + z

        return y, later

    import torchweld

    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    _, later = compiled(X)
    assert torch.equal(later(X), program(X)[1](X))


def test_generic_reduce_with_method_reference():
    check(lambda x: functools.reduce(torch.Tensor.add, [x, x + 1, x + 2]), (X,))


def test_method_of_tensor_by_class():
    check(lambda x: torch.Tensor.mul(x, 2) + torch.Tensor.sum(x), (X,))


def test_default_list_is_shared_between_calls():
    def make():
        def remember(x, seen=[]):  # noqa: B006
            seen.append(x.shape[0])
            return x + len(seen)

        return (lambda x: remember(x)), remember.__defaults__

    check_made(make, (X,), graphs=2)


def test_cached_property_is_computed_once():
    class A:
        calls = 0

        @functools.cached_property
        def weight(self):
            self.calls += 1
            return 3

    check(lambda x, a: x * a.weight + a.weight, (X, A()))


def test_keyword_named_self():
    def f(**kw):
        return kw["self"] + 1

    check(lambda x: f(self=x), (X,))


def test_total_ordering():
    @functools.total_ordering
    class V:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

    check(lambda x: x + 1 if V(3) >= V(2) else x, (X,))


def test_cmp_to_key():
    check(
        lambda x: x * sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))[0],
        (X,),
    )


def test_super_in_the_compiled_method_itself():
    import torchweld

    compiled = torchweld.compile(Heir(1).method, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), Heir(1).method(X))


def test_stacked_decorators_with_arguments():
    def times(n):
        def decorate(fn):
            @functools.wraps(fn)
            def wrapper(*args, **kwargs):
                return fn(*args, **kwargs) * n

            return wrapper

        return decorate

    def program(x):
        @times(2)
        @times(3)
        def inner(y, z=1):
            """doc"""
            return y + z

        return inner(x), inner(x, z=2), inner.__name__, inner.__doc__

    check(program, (X,), (Y,))
