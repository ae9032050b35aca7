"""Breaks in the code of a generator that the frame consumes: both sides are compiled."""

from __future__ import annotations

import contextlib

import pytest
import torch
from break_twin import X, check, opaque

import torchweld


def fails(x):
    if x.sum() > 1000:
        return x
    raise KeyError("late")


fails_eagerly = torchweld.disable(fails)


def halves(x, n=3):
    for k in range(n):
        x = opaque(x * 2) + k
        yield x


@pytest.mark.parametrize("n", [3, 20])
def test_break_in_the_generator_itself(n):
    def f(x):
        total = x.sin()
        for y in halves(x, n):
            total = total + y.cos()
        return total

    seen = check(f, (X,), graphs=3, breaks=3)
    assert seen.operators() == [2, 3, 1]  # the loop, its body and the generator's are one graph


def test_break_in_what_the_generator_calls():
    def deep(x, k):
        return opaque(x * k) + 1

    def pieces(x):
        yield deep(x, 2) * 3
        yield deep(x, 3) * 4

    def f(x):
        return [y + 1 for y in pieces(x)]

    check(f, (X,), graphs=3, breaks=2)


def test_break_in_a_generator_of_a_generator():
    def outer(x):
        for y in halves(x, 2):
            yield y * 3

    def f(x):
        total = x * 0
        for y in outer(x):
            total = total + y
        return total

    check(f, (X,), graphs=3)


def test_break_in_the_enter_and_the_exit_of_a_manager():
    @contextlib.contextmanager
    def around(x, log):
        y = opaque(x + 1) * 2
        log.append("in")
        try:
            yield y
        finally:
            log.append(opaque(y * 3).sum().item() > 0)

    def f(x, log):
        with around(x, log) as y:
            y = y + x
        return y * 2, log

    check(f, (X, []), (X + 2, []), graphs=2)


def test_break_in_an_inlined_callee_that_loops():
    def total(x):
        out = x * 0
        for y in halves(x):
            out = out + y
        return out

    def f(x):
        return total(x + 1) * total(x - 1)

    check(f, (X,), graphs=7)


def test_next_of_a_generator_with_a_break():
    def f(x):
        it = halves(x)
        a = next(it)
        b = next(it) + a
        return a, b, next(it, None), next(it, None)

    check(f, (X,), graphs=3)


@pytest.mark.parametrize("where", ["generator", "loop", "nowhere"])
def test_exception_of_a_break_in_the_generator(where):
    def pieces(x, log):
        for k in range(3):
            try:
                x = fails_eagerly(x * 2) if k == 1 else x + 1
            except KeyError as error:
                log.append(repr(error))
                if where != "generator":
                    raise
            yield x

    def f(x, log):
        total = x * 0
        try:
            for y in pieces(x, log):
                total = total + y
        except KeyError as error:
            if where != "loop":
                raise
            log.append(f"outside {error}")
        finally:
            log.append("end")
        return total * 2, len(log)

    torchweld.reset()
    compiled, seen = torchweld.compile(f), []
    for fn in (f, compiled, compiled):
        log = []
        try:
            out = fn(X, log)
        except KeyError as error:
            out = repr(error)
        seen.append((out, log))
    assert torchweld.statistics()["internal_errors"] == 0
    for out, log in seen[1:]:
        assert log == seen[0][1]
        torch.testing.assert_close(out, seen[0][0]) if where != "nowhere" else None
        assert type(out) is type(seen[0][0])


def test_stop_iteration_of_a_break_in_the_generator():
    @torchweld.disable
    def stops(x):
        raise StopIteration("early")

    def pieces(x):
        yield x * 2
        yield stops(x)

    def f(x):
        total = x * 0
        for y in pieces(x):
            total = total + y
        return total

    check(f, (X,), graphs=1)


def test_result_of_a_generator_with_a_break():
    def pieces(x):
        y = opaque(x * 2)
        yield y + 1
        return opaque(y) * 3

    def f(x):
        it = pieces(x)
        a = next(it)
        try:
            next(it)
        except StopIteration as end:
            return a, end.value + 1

    check(f, (X,), graphs=3)


def test_modes_and_cells_of_a_generator_with_a_break():
    def f(x, w):
        seen = 0

        def pieces():
            nonlocal seen
            for k in range(2):
                with torch.no_grad():
                    y = opaque(w * k) + 1
                seen += 1
                yield y * w

        total = x * w
        for y in pieces():
            total = total + y * seen
        return total, seen, torch.is_grad_enabled()

    check(f, (X, torch.ones(8, requires_grad=True)), graphs=4)


def test_loop_that_is_left_early():
    def guarded(x, log):
        try:
            for k in range(5):
                x = opaque(x + k) * 2
                yield x
        finally:
            log.append("closed")

    def f(x, log):
        i = 0
        for y in guarded(x, log):
            i += 1
            last = y + 1
            if i == 2:
                break
        return last, i

    check(f, (X, []), graphs=4)


def test_generators_that_built_ins_run():
    def f(x):
        total = sum(halves(x, 2))
        pairs = list(zip(halves(x, 2), halves(x + 1, 2), strict=True))
        best = max(float(y.sum()) for y in halves(x, 2))
        return total, pairs, best, [*halves(x, 1)]

    torchweld.reset()
    want, compiled = f(X), torchweld.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), want)
    assert torchweld.statistics()["internal_errors"] == 0
