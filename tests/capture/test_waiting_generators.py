"""Generators that wait in a frame while it is broken: the rest of the frame goes on with them."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import pickle
import sys
import types
import weakref

import pytest
import torch
from break_twin import X, check, opaque
from torch import nn

import torchweld


@contextlib.contextmanager
def noted(log, name="block"):
    log.append(f"{name} in")
    try:
        yield name
    except KeyError as error:
        log.append(f"{name} caught {error}")
    finally:
        log.append(f"{name} out")


@contextlib.contextmanager
def scaled(x, by):
    y = x * by
    box = [y]
    yield box
    box.append(box[0] + y.sin())


def fails(x):
    if x.sum() > 1000:
        return x
    raise KeyError("late")


fails_eagerly = torchweld.disable(fails)


# ----------------------------------------------------------------------------------- with blocks
def test_block_around_a_break_is_two_graphs():
    def f(x, log):
        y = x.sin()
        with noted(log) as name:
            y = y * len(name)
            y = opaque(y).cos()
        return y - 1, log

    seen = check(f, (X, []), graphs=2, breaks=1)
    assert seen.operators() == [2, 2]


def test_tensors_and_cells_of_the_generator_live_over_the_break():
    def f(x, k):
        with scaled(x, k) as box:
            z = opaque(box[0] + 1) * 2
        return z, box

    check(f, (X, 2.0), graphs=2, breaks=1)


def test_closure_of_the_generator():
    def f(x, log):
        count = 0

        @contextlib.contextmanager
        def counted():
            nonlocal count
            count += 1
            yield lambda: count
            count += 10

        with counted() as now:
            x = opaque(x * now()) + now()
        return x + count, now()

    check(f, (X, []), graphs=2, breaks=1)


def test_two_breaks_in_a_block():
    def f(x, log):
        with noted(log):
            x = opaque(x * 2) + 1
            x = opaque(x * 3) + x
        return x * x

    check(f, (X, []), graphs=3, breaks=2)


def test_block_in_a_loop():
    def f(x, log):
        for i in range(4):
            with noted(log):
                x = opaque(x + i) * 2
        return x

    check(f, (X, []), graphs=3)


def test_nested_blocks_and_several_managers():
    def f(x, log):
        with noted(log, "outer") as a, scaled(x, 3) as box, torch.no_grad():
            with noted(log, "inner") as b:
                y = opaque(box[0] * len(a + b)) + 1
            y = y * 2
        return y, box, torch.is_grad_enabled()

    check(f, (X, []), graphs=2, breaks=1)


def test_block_of_an_inlined_callee():
    def inner(x, log):
        with noted(log):
            return opaque(x.sin()) + 1

    def f(x, log):
        with noted(log, "caller"):
            return inner(x * 2, log) * 3

    check(f, (X, []), graphs=2, breaks=1)


def test_manager_used_as_a_decorator():
    def f(x, log):
        @noted(log)
        def g(x):
            return opaque(x + 1) * 2

        return g(x) + g(x * 2)

    check(f, (X, []), graphs=3, breaks=2)


def test_exit_stack():
    def f(x, log):
        with contextlib.ExitStack() as stack:
            names = [stack.enter_context(noted(log, n)) for n in ("a", "b")]
            x = opaque(x * len(names)) + 1
        return x.relu()

    check(f, (X, []), graphs=2, breaks=1)


def test_method_that_is_a_manager():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.depth = 0
            self.scale = nn.Parameter(torch.ones(8))

        @contextlib.contextmanager
        def deeper(self):
            self.depth += 1
            try:
                yield self.depth
            finally:
                self.depth -= 1

        def forward(self, x):
            with self.deeper() as n:
                x = opaque(x * self.scale * n) + self.depth
            return x * (self.depth + 1)

    with torch.no_grad():
        check(Net(), (X,), graphs=2, breaks=1)


# ------------------------------------------------------------------------------------- exceptions
def test_exception_behind_the_break_is_thrown_into_the_generator():
    def f(x, log, name):
        with noted(log):
            x = opaque(x + 1)
            x = x * {"a": 2}[name]
        return x + 1

    seen = check(f, (X, [], "a"), (X, [], "b"), graphs=3)
    assert max(seen.operators()) == 2


def test_exception_of_the_break_itself():
    def f(x, log):
        y = x * 2
        with noted(log):
            y = fails_eagerly(y)
        return y + x

    check(f, (X, []), graphs=2, breaks=1)


def test_exception_that_the_generator_does_not_catch():
    def f(x, log):
        with noted(log):
            y = opaque(x * 2) + 1
            if log:
                raise ValueError("not caught")
        return y

    check(f, (X, []), graphs=1)


def test_exception_that_is_raised_in_the_exit():
    @contextlib.contextmanager
    def strict(x):
        yield x
        raise RuntimeError("on the way out")

    def f(x):
        try:
            with strict(x) as y:
                y = opaque(y + 1) * 2
        except RuntimeError as error:
            return y, str(error)

    check(f, (X,), graphs=2, breaks=1)


def test_yield_in_a_handler():
    @contextlib.contextmanager
    def recovering(log):
        try:
            raise KeyError("first")
        except KeyError as error:
            log.append(str(error))
            yield str(error)
            log.append(repr(sys.exc_info()[1]))

    def f(x, log):
        with recovering(log) as name:
            x = opaque(x * len(name)) + 1
        return x + 1

    check(f, (X, []), graphs=3)


# ------------------------------------------------------------------------- generators by themselves
def numbers(x):
    total = x * 0
    for k in (1, 2, 3):
        got = yield total
        total = total + x * k + (0 if got is None else got)
    return total


def test_generator_goes_on_behind_a_break():
    def f(x):
        it = numbers(x)
        a = next(it)
        b = opaque(x.sin()) + it.send(a + 1)
        return b, next(it), next(it, None)

    check(f, (X,), graphs=2, breaks=1)


def test_generator_that_has_not_begun():
    def f(x):
        it = numbers(x * 2)
        y = opaque(x.sin())
        return [y * z for z in it]

    check(f, (X,), graphs=2, breaks=1)


def test_generator_that_is_held_by_others_stays_one_object():
    def f(x):
        it = numbers(x)
        box = {"it": it, "first": next(it)}
        y = opaque(x + 1)
        a = next(box["it"])
        y = opaque(y + a)
        return y, next(it), box["it"] is it, next(box["it"], None)

    check(f, (X,), graphs=3, breaks=2)


def test_loop_over_a_generator():
    def steps(x):
        for k in range(20):
            yield x * k

    def f(x):
        for y in steps(x):
            x = opaque(x + y) * 2
        return x

    check(f, (X,), graphs=3)


def test_generator_that_delegates():
    def outer(x):
        got = yield from numbers(x)
        yield got * 2

    def f(x):
        it = outer(x)
        a = next(it) + 1
        a = opaque(a)
        return a, list(it)

    check(f, (X,), graphs=1)


def test_generator_in_the_hands_of_eager_code():
    seen = []

    @torchweld.disable
    def look(it):
        seen.append((isinstance(it, types.GeneratorType), inspect.isgenerator(it), iter(it) is it,
                     it.gi_running, it.gi_code.co_name, it.__name__))  # fmt: skip
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(it)
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.copy(it)
        return it.send(10)

    def f(x):
        it = numbers(x)
        a = next(it)
        b = look(it)
        return a, b, [*it]

    check(f, (X,), graphs=1)
    assert seen[0] == seen[1] == (True, True, True, False, "numbers", "numbers")


@pytest.mark.parametrize("how", ["throw", "close", "class", "dropped"])
def test_generator_that_eager_code_ends(how):
    def guarded(x, log):
        try:
            yield x * 2
        except KeyError as error:
            log.append(repr(error))
            yield x * 3
        finally:
            log.append("closed")

    @torchweld.disable
    def end(box):
        it = box.pop()
        if how == "throw":
            return it.throw(KeyError("given"))
        if how == "class":
            return it.throw(KeyError)
        if how == "close":
            it.close()
        return None

    def f(x, log):
        it = guarded(x, log)
        box, y = [it], next(it)
        del it
        z = end(box)
        log.append("behind")
        return y, z if z is None else z + 1

    if how in ("throw", "class"):  # what nobody refers to is closed before the frame ends
        check(f, (X, []), graphs=2)
    else:
        check(f, (X, []), graphs=1)


def test_fresh_generator_that_eager_code_ends():
    @torchweld.disable
    def end(it):
        with pytest.raises(TypeError, match="just-started"):
            it.send(1)
        with pytest.raises(KeyError):
            it.throw(KeyError("given"))
        return list(it)

    def f(x):
        it = numbers(x)
        return end(it), x + 1

    check(f, (X,), graphs=1)


def test_dropped_generator_is_closed_at_the_break():
    def guarded(x, log):
        try:
            yield x * 2
        finally:
            log.append("closed")

    def f(x, log):
        y = next(guarded(x, log))
        log.append("behind") if opaque(log) is None else None
        return y + 1, len(log)

    check(f, (X, []), graphs=2, breaks=1)


# ----------------------------------------------------------------------------- guards and lifetimes
def test_what_the_generator_holds_is_guarded():
    @contextlib.contextmanager
    def factor(k):
        yield k
        k.append(1)

    def f(x, k):
        with factor([k]) as ks:
            x = opaque(x + 1) * ks[0]
        return x, ks

    check(f, (X, 2), (X, 3), (X, 4), graphs=4)


def test_rest_is_compiled_once_for_all_calls():
    torchweld.reset()
    log = []

    @torchweld.compile
    def f(x):
        with noted(log):
            x = opaque(x * 2) + 1
        return x + 1

    for _ in range(20):
        log.clear()
        f(X)
        assert log == ["block in", "block out"]
    assert torchweld.statistics()["captures"] == 2


def test_nothing_is_left_of_the_generator():
    @torchweld.compile
    def f(x):
        with scaled(x, 2) as box:
            y = opaque(box[0]) + 1
        return y + 1

    f(X)
    x = X.clone()
    dead = weakref.ref(x)
    gc.disable()
    try:
        f(x)
        del x
        assert dead() is None
    finally:
        gc.enable()


def test_trainable_parameters_around_the_block():
    net = nn.Linear(8, 8)

    def f(x, log):
        with noted(log):
            y = net(x).relu()
            y = opaque(y) * 2
        return y.sum()

    torchweld.reset()
    compiled = torchweld.compile(f)
    f(X, []).backward()
    want = net.weight.grad.clone()
    net.weight.grad = None
    compiled(X, []).backward()
    torch.testing.assert_close(net.weight.grad, want)
    assert torchweld.statistics()["breaks"] == 1
