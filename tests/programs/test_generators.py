"""Generators that are compiled: eager's values, exceptions and clean-up, and a graph for each
stretch between two places where they are suspended."""

import contextlib
import gc
import inspect
import weakref

import pytest
import torch
from eager_twin import Twins
from tests.capture.kept_graphs import Graphs

import torchweld
from torchweld.base.errors import FullGraphError

X = torch.arange(4.0)


def drive(gen, *acts):
    """What a generator gives, act by act: `next`, ("send", x), ("throw", error), "close"."""
    out = []
    for act in acts:
        how, *given = act if isinstance(act, tuple) else (act,)
        try:
            out.append(next(gen) if how == "next" else getattr(gen, how)(*given))
        except StopIteration as end:
            out.append(("end", end.value))
        except Exception as error:
            out.append((type(error), str(error), type(error.__cause__)))
        out.append((gen.gi_frame is None, gen.gi_running))
    return out


def check(make, *acts, graphs, breaks=0, args=(X,), calls=2):
    """The generator function that `make` makes behaves as in eager, in so many graphs."""
    torchweld.reset()
    eager, eager_log = make()
    plain, log = make()
    backend = Graphs()
    compiled = torchweld.compile(plain, backend=backend)
    for _ in range(calls):
        del eager_log[:], log[:]
        expected, got = drive(eager(*args), *acts), drive(compiled(*args), *acts)
        Twins().equal((expected, eager_log), (got, log))
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    assert (backend.n, counts["breaks"]) == (graphs, breaks), counts


NEXT4 = ("next",) * 4


def test_each_stretch_is_a_graph():
    def make():
        def gen(x):
            y = x * 2 + 1
            yield y.sin()
            z = y.exp()
            yield z
            return z.cos() + 1

        return gen, []

    check(make, *NEXT4, graphs=3)


def test_send():
    def make():
        def gen(x):
            got = yield x + 1
            while got is not None:
                x = x * got + 1
                got = yield x.sin()
            return x.cos()

        return gen, []

    check(make, "next", ("send", 2.0), ("send", 3.0), ("send", 4.0), "next", "next", graphs=5)


def test_a_loop_over_what_is_given_is_one_graph():
    def make():
        def gen(x, batches):
            total = x * 0
            for batch in batches:
                total = total + batch.sin() * 2
                yield total
            return total

        return gen, []

    batches = [X + i for i in range(6)]
    check(make, *("next",) * 8, graphs=2, args=(X, batches))


def test_a_loop_with_a_counter():
    def make():
        def gen(x, batches):
            for i, (batch, name) in enumerate(zip(batches, "abcdef", strict=True)):
                yield batch.sin() * i + x, name

        return gen, []

    check(make, *("next",) * 8, graphs=2, args=(X, [X + i for i in range(6)]))


def test_an_endless_loop_is_not_compiled_for_each_number():
    def make():
        def gen(x):
            i = 0
            while True:
                yield x.sin() * i
                i += 1

        return gen, []

    check(make, *("next",) * 12, graphs=3)


def test_nothing_runs_before_the_first_next():
    def make():
        log = []

        def gen(x):
            log.append("begun")
            yield x + 1

        return gen, log

    check(make, graphs=0)
    check(make, "close", "next", graphs=0)
    check(make, ("throw", KeyError("k")), "next", graphs=0)


def test_throw_is_handled_where_it_is_suspended():
    def make():
        log = []

        def gen(x):
            try:
                yield x.sin() + 1
            except ValueError as error:
                log.append(str(error))
                x = x + 10
                yield x.cos()
            finally:
                log.append("finally")
            yield x.exp()

        return gen, log

    check(make, "next", ("throw", ValueError("v")), "next", "next", graphs=1)
    check(make, "next", ("throw", KeyError("k")), "next", graphs=1)
    check(make, *NEXT4, graphs=2)


def test_close_runs_finally_and_with_blocks():
    def make():
        log = []

        @contextlib.contextmanager
        def block(name):
            log.append(name)
            try:
                yield
            finally:
                log.append(f"end of {name}")

        def gen(x):
            with block("a"):
                try:
                    yield x.sin() * 2
                    yield x.cos() * 3
                finally:
                    log.append("finally")

        return gen, log

    check(make, "next", "close", "next", graphs=1, breaks=2)
    check(make, "next", "next", "close", "close", graphs=2, breaks=2)


def test_ignored_exit():
    def make():
        def gen(x):
            try:
                yield x.sin() * 2
            except GeneratorExit:
                yield x + 1

        return gen, []

    check(make, "next", "close", graphs=1)


def test_exceptions_leave_the_generator():
    def make():
        def gen(x):
            yield x.sin() * 2
            y = x.cos() * 2
            try:
                raise KeyError("k")
            except KeyError as error:
                raise ValueError("v", y.shape[0]) from error

        return gen, []

    check(make, *NEXT4, graphs=1, breaks=1)


def test_stop_iteration_becomes_an_error():
    def make():
        def gen(x):
            yield x.sin() * 2
            next(iter(()))

        return gen, []

    check(make, *NEXT4, graphs=1, breaks=1)


def test_yield_from():
    def make():
        log = []

        def inner(x):
            try:
                got = yield x.sin() * 2
                yield got
            finally:
                log.append("inner")
            return x.cos()

        def gen(x):
            y = x.exp() + 1
            z = yield from inner(y)
            yield z.tanh() * 2
            yield from [1, 2]

        return gen, log

    torchweld.reset()
    (eager, eager_log), (plain, log) = make(), make()
    for acts in (
        ("next", ("send", 5), *("next",) * 5),
        ("next", ("throw", ValueError("v")), "next"),
        ("next", "next", "close"),
    ):
        for _ in range(2):
            expected = drive(eager(X), *acts)
            Twins().equal((expected, eager_log), (drive(torchweld.compile(plain)(X), *acts), log))


def test_yield_inside_of_a_handler():
    def make():
        def gen(x):
            try:
                raise ValueError("v")
            except ValueError as error:
                yield x.sin() * 2
                yield str(error)
            yield x.cos() * 2

        return gen, []

    torchweld.reset()
    eager, compiled = make()[0], torchweld.compile(make()[0], backend="eager")
    for _ in range(2):
        Twins().equal(drive(eager(X), *NEXT4), drive(compiled(X), *NEXT4))


def test_arguments_cells_and_defaults():
    def make():
        log = []

        def gen(x, a, /, b=2, *rest, c=3, **named):
            def bump(k):
                nonlocal a
                a += k

            bump(b)
            yield x.sin() * a + b
            bump(c)
            yield x.cos() * a + len(rest), named, lambda: a + c

        return lambda x: gen(x, 1, 5, 6, 7, c=2, z=x), log

    torchweld.reset()
    eager = drive(make()[0](X), "next")
    inner = make()[0].__closure__[0].cell_contents
    compiled = torchweld.compile(inner, backend="eager")
    for _ in range(2):
        (got,) = drive(compiled(X, 1, 5, 6, 7, c=2, z=X), "next")[:1]
        assert torch.equal(got, eager[0])
    made = compiled(X, 1)
    next(made)
    value, named, later = next(made)
    assert torch.equal(value, X.cos() * 6)
    assert (named, later()) == ({}, 9)


def test_methods_and_names():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(4, 4)

        @torchweld.compile(backend="eager")
        def steps(self, x, n):
            for _ in range(n):
                x = self.lin(x).relu()
                yield x

    model = Model()
    x, got = X, []
    made = model.steps(X, 3)
    assert made.__name__ == "steps"
    assert made.__qualname__.endswith("Model.steps")
    assert inspect.isgenerator(made)
    for y in made:
        x = model.lin(x).relu()
        got.append(torch.equal(x, y))
    assert got == [True] * 3


def test_breaks_between_yields():
    def make():
        log = []

        def gen(x):
            y = x.sin() * 2 + 1
            if y.sum() > 0:
                y = y.cos() * 3 + 2
            yield y
            y = y.exp() * 2 + 3
            if y.sum() < 0:
                log.append("no")
            yield y.tanh() * 4 + 1

        return gen, log

    check(make, *NEXT4, graphs=4, breaks=2)


def test_a_break_in_what_it_calls():
    def make():
        def inner(x):
            x = x.sin() * 2
            return x + 1 if x.sum() > 0 else x - 1

        def gen(x):
            y = inner(x).exp()
            yield y
            yield inner(y).tanh()

        return gen, []

    torchweld.reset()
    compiled = torchweld.compile(make()[0], backend="eager")
    for _ in range(2):
        Twins().equal(drive(make()[0](X), *NEXT4), drive(compiled(X), *NEXT4))


def test_what_runs_eagerly_calls_compiled_functions():
    def helper(x):
        return x.sin() * 2 + x.cos()

    def gen(x):
        try:
            yield x.sin() * 2
        except ValueError:
            yield helper(x)

    torchweld.reset()
    compiled = torchweld.compile(gen, backend=(backend := Graphs()))
    made = compiled(X)
    next(made)
    graphs = backend.n
    assert torch.equal(made.throw(ValueError()), helper(X))
    assert backend.n == graphs + 1


def test_changes_of_arguments_are_seen_between_yields():
    def make():
        log = []

        def gen(x):
            log.append(1)
            yield x.add_(1) * 2
            log.append(2)
            yield x.mul_(2) * 2

        return gen, log

    torchweld.reset()
    (eager, eager_log), (plain, log) = make(), make()
    compiled = torchweld.compile(plain, backend="eager")
    for _ in range(2):
        a, b = X.clone(), X.clone()
        for p, q in zip(eager(a), compiled(b), strict=True):
            assert torch.equal(p, q)
            assert torch.equal(a, b)
            assert log == eager_log
            a += 1
            b += 1


def test_fullgraph_raises_where_a_stretch_cannot_be_captured():
    @torchweld.compile(fullgraph=True, backend="eager")
    def gen(x):
        yield x.sin() * 2
        if x.sum() > 0:
            yield x

    made = gen(X)
    assert torch.equal(next(made), X.sin() * 2)
    with pytest.raises(FullGraphError):
        next(made)


def test_a_generator_that_is_dropped_is_closed():
    log = []

    @torchweld.compile(backend="eager")
    def gen(x):
        try:
            yield x.sin() * 2
        finally:
            log.append("closed")

    made = gen(X)
    next(made)
    del made
    assert log == ["closed"]


def test_what_it_held_is_freed():
    @torchweld.compile(backend="eager")
    def gen(x):
        y = x.sin() * 2
        yield y
        yield x.cos()

    held = X.clone()
    ref = weakref.ref(held)
    made = gen(held)
    next(made)
    next(made)
    del held
    assert list(made) == []
    del made
    gc.collect()
    assert ref() is None


def test_two_at_once():
    def gen(x):
        for i in range(3):
            x = x.sin() + i
            yield x

    compiled = torchweld.compile(gen, backend="eager")
    pairs = [list(zip(g(X), g(X + 1), strict=True)) for g in (gen, compiled)]
    Twins().equal(*pairs)


def walk(log, k, q):
    try:
        for i in range(k):
            got = yield q + i
            q = q if got is None else q * got
    finally:
        log.append("closed")


def chain(log, q):
    yield from walk(log, 3, q)


def dropped(x, log):
    gen = chain(log, x)
    y = next(gen)
    if y.sum() > 100:
        log.append("large")
    return y * 2


def closed(x, log):
    gen = chain(log, x)
    y = gen.send(None)
    gen.close()
    log.append("then")
    return y


@pytest.mark.parametrize(("fn", "breaks"), [(dropped, True), (closed, False)])
def test_a_generator_that_is_not_exhausted_cleans_up_by_the_end_of_the_frame(fn, breaks):
    """Also behind a break, and if another generator delegates to it."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            eager_log, log = [], []
            Twins().equal((fn(X, eager_log), eager_log), (compiled(X, log), log))
    finally:
        gc.enable()
    assert bool(torchweld.statistics()["breaks"]) is breaks
