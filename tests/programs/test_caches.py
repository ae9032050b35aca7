"""Functions that remember: lru_cache, cached properties, singledispatch; what they count."""

import functools

import pytest
import torch
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
program, stateless = PROGRAMS.program, PROGRAMS.stateless
X = torch.arange(4.0)


@functools.singledispatch
def weigh(v):
    return 1


@weigh.register
def _(v: int):
    return v + 1


@program(2)
def counted():
    @functools.lru_cache(maxsize=4)
    def f(n):
        return n * 2

    def run(x, y, n):
        return x + f(n) + f(n) + f(n + 1), f.cache_info()

    return run


@program(2)
def forgets_the_oldest():
    @functools.lru_cache(maxsize=2)
    def f(n, k=1):
        return n * k

    def run(x, y, n):
        total = f(1) + f(n) + f(3, k=2) + f(n)
        return x * total, f.cache_info()

    return run


@program(1)
def keeps_a_tensor():
    @functools.lru_cache
    def mask(size):
        return torch.ones(size, size).triu(1)

    return lambda x, y, n: (x + mask(4), mask(4) is mask(4))


@program(1)
def keeps_a_list():
    @functools.cache
    def f(k):
        return [k]

    def run(x, y, n):
        f(1).append(n)
        return x + len(f(1)), f(1)

    return run


@program(1)
def changes_something():
    log = []

    @functools.cache
    def f(k):
        log.append(k)
        return k

    return lambda x, y, n: (x + f(1), list(log))


@program()
def of_a_module():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.width = 3

        @functools.lru_cache  # noqa: B019
        def size(self, n):
            return self.width * n

        def forward(self, x, y, n):
            self.width = 5  # which the cached method has read already
            return x * self.size(2)

    return M()


@stateless()
def made_in_the_frame(x, y, n):
    @functools.cache
    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    @functools.cache
    def power(k):
        return x**k

    @functools.lru_cache(maxsize=2)
    def few(k):
        return k

    found = [few(k) for k in (1, 2, 1, 3, 2, n)]
    before = few.cache_info()
    few.cache_clear()
    same = power(2) is power(2)
    return power(2) + power(n), same, fib(10 + n), fib.cache_info(), found, before, few.cache_info()


@stateless()
def dispatched_in_the_frame(x, y, n):
    @functools.singledispatch
    def f(v):
        return 0

    @f.register(int)
    def _(v):
        return v

    @f.register(torch.Tensor)
    def _(v):
        return v + 1

    return f(x) + f(n) + f("s") + f(True), f.dispatch(bool) is f.dispatch(int), len(f.registry)


@program()
def dispatched_methods():
    class C:
        @functools.singledispatchmethod
        def f(self, v):
            return 1

        @f.register
        def _(self, v: int):
            return v * 2

        @f.register
        def _(self, v: torch.Tensor):
            return v * 3

    c = C()
    return lambda x, y, n: c.f(x) + c.f(n) + c.f("a")


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_a_tensor_that_is_remembered_is_part_of_the_graph_from_the_second_call_on():
    @functools.cache
    def table():
        return torch.ones(4).cumsum(0)

    torchweld.reset()
    compiled = torchweld.compile(lambda x: (x * table()).sin() + 1, backend="eager")
    results = [compiled(X) for _ in range(3)]
    assert all(torch.equal(r, (X * table()).sin() + 1) for r in results)
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["captures"]) == (1, 3)  # the last one of the whole function


def test_what_is_forgotten_is_computed_anew():
    scale = [2.0]

    @functools.cache
    def factor():
        return scale[0]

    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * factor(), backend="eager")
    assert torch.equal(compiled(X), X * 2)
    scale[0] = 3.0
    assert torch.equal(compiled(X), X * 2)
    factor.cache_clear()
    assert torch.equal(compiled(X), X * 3)


def test_a_function_registered_later_is_chosen():
    torchweld.reset()
    compiled = torchweld.compile(lambda x, v: x * weigh(v), backend="eager")
    assert torch.equal(compiled(X, 1.5), X)
    weigh.register(float, lambda v: 7)
    assert torch.equal(compiled(X, 1.5), X * 7)


def test_a_number_that_changes_costs_no_compilation_each():
    @functools.cache
    def width(n):
        return n * 7 + 1

    torchweld.reset()
    compiled = torchweld.compile(lambda x, n: x * width(n), backend="eager")
    for n in range(2, 14):
        assert torch.equal(compiled(X, n), X * (n * 7 + 1))
    assert torchweld.statistics()["captures"] == 2
    assert width.cache_info().misses == 12
