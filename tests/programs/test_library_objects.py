"""Counters, thread-local values, filters of warnings, types of `typing`, copies by state."""

import copy
import functools
import itertools
import math
import random
import statistics
import threading
import types
import typing
import warnings

import pytest
import torch
from break_twin import check as check_printed
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
program, stateless = PROGRAMS.program, PROGRAMS.stateless
X = torch.arange(4.0)
OWN = threading.local()
OWN.scale = 3
Id = typing.NewType("Id", int)


class Place:
    def __init__(self, at):
        self.at = at

    def __index__(self):
        return self.at

    def __rdivmod__(self, other):
        return other, self.at

    def __divmod__(self, other):
        return NotImplemented


class Kept:
    def __init__(self, v):
        self.v = v

    def __getstate__(self):
        return {"v": self.v}

    def __setstate__(self, state):
        self.v = state["v"] * 2


class Later:
    def __await__(self):
        got = yield 3
        return got


class Scope:
    async def __aenter__(self):
        return 2

    async def __aexit__(self, *exc):
        return True


@program()
def counter_of_an_object():
    class Numbered:
        def __init__(self):
            self.numbers = itertools.count(5, 2)

    held = Numbered()
    return lambda x, y, n: (x + next(held.numbers) * next(held.numbers), held)


@stateless()
def counter_that_leaves(x, y, n):
    made = itertools.count(n, 2)
    first = next(made)
    doubled = map(str, [1, 2])
    next(doubled)
    return x + first, next(made), list(itertools.islice(made, 2)), list(doubled)


@stateless()
def own_of_the_thread(x, y, n):
    return x * OWN.scale, hasattr(OWN, "missing"), getattr(OWN, "missing", 4)


@program()
def written_of_the_thread():
    own = threading.local()
    own.n = 0

    def run(x, y, n):
        own.n += n
        return x + own.n, own.n

    return run


@stateless()
def places(x, y, n):
    at = Place(1)
    return x[at], [5, 6][at], "ab"[at], (1, 2)[at], divmod(7, at), {at: 1}[at]


@stateless()
def types_of_typing(x, y, n):
    return (
        x + Id(n),
        typing.Optional[int] == typing.Union[int, None],  # noqa: UP007, UP045
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        typing.List[int].__args__,  # noqa: UP006
        typing.Counter([1, n, n]),
    )


@stateless()
def views_of_dicts(x, y, n):
    d, e = {"a": 1, "b": n}, {"b": 2, "c": 3}
    return (
        x + len(d.keys() | e),
        list(d.keys() | e),
        list(d.keys() - ["a"]),
        list(d.keys() ^ e.keys()),
        d.keys().isdisjoint(["z"]),
    )


@stateless()
def copies_by_state(x, y, n):
    return x + copy.copy(Kept(n)).v, copy.deepcopy(Kept(n)).v


@stateless()
def wrapped_names(x, y, n):
    def decorate(f):
        @functools.wraps(f, assigned=("__name__",))
        def g(*args):
            return f(*args) + 1

        return g

    @decorate
    def h(v):
        return v * 2

    return h(x), h.__name__, h.__qualname__


@stateless()
def shuffled(x, y, n):
    r, items = random.Random(n), [x, y, n]
    r.shuffle(items)
    return items[0] + r.random(), items, r.choices("ab", k=2)


@stateless()
def sums_of_generators(x, y, n):
    line = statistics.linear_regression([1, 2], [2, n])
    return x + statistics.correlation([1, 2, 3], [1, 2, 4]), line


if hasattr(math, "sumprod"):  # from Python 3.12 on

    @stateless()
    def sums_of_products(x, y, n):
        try:
            math.sumprod([x], [1, 2])
        except ValueError as error:
            return math.sumprod([x, 2, n], [y, x, 2]), math.sumprod((n, 0.1), [2, 0.3]), str(error)

    @stateless(breaks=1)  # the float of two floats has digits that only C keeps
    def sums_of_products_of_floats_and_tensors(x, y, n):
        return math.sumprod([0.1, x], [0.3, y]) + 1


if hasattr(itertools, "batched"):  # from Python 3.12 on

    @stateless()
    def batches(x, y, n):
        try:
            itertools.batched([x], 0)
        except ValueError as error:
            return [sum(b) for b in itertools.batched([x, 1, y, n, 3], 2)], str(error)


@stateless()
def type_parameters_of_functions(x, y, n):
    def scale(v):
        return v * n

    kept = getattr(scale, "__type_params__", "none before Python 3.12")
    return scale(x), kept, getattr(places, "__type_params__", 3)


@stateless()
def getters_of_properties(x, y, n):
    class C:
        v = property(lambda self: n)

    return x + C.v.fget(C())


@stateless()
def driven(x, y, n):
    async def run():
        async with Scope() as k:
            got = await Later()
            raise ValueError(got)
        return x + k

    made = run()
    made.send(None)
    try:
        made.send(n)
    except StopIteration as end:
        return end.value, n


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_filters_of_warnings_hold_for_what_is_warned_of_inside():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.warn("hidden", stacklevel=1)
        warnings.warn("shown", stacklevel=1)
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(f, fullgraph=True, backend="eager")
    seen = []
    for call in (f, compiled, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(X)
        seen.append([(str(w.message), w.filename, w.lineno) for w in caught])
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 1


def test_warnings_that_the_frame_records_are_there_when_it_looks():
    def f(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("q", stacklevel=1)
        return x + len(caught), str(caught[0].message)

    check_printed(f, (X,), graphs=1)


def test_another_thread_has_another_value():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * getattr(OWN, "scale", 7), backend="eager")
    assert torch.equal(compiled(X), X * 3)
    found = []
    thread = threading.Thread(target=lambda: found.append(compiled(X)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], X * 7)


def test_a_proxy_of_a_dict_of_the_frame_leaves_it():
    def f(x):
        table = {"a": x.shape[0]}
        view = types.MappingProxyType(table)
        table["b"] = 2
        return x + 1, table, view

    torchweld.reset()
    _, table, view = torchweld.compile(f, fullgraph=True, backend="eager")(X)
    table["c"] = 3
    assert dict(view) == {"a": 4, "b": 2, "c": 3}
