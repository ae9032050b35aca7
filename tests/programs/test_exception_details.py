# ruff: noqa: B904
# The programs are written as users write them.
"""What Python checks and remembers of exceptions and of the results of special methods."""

import sys

import pytest
import torch

import torchweld

log = []


def attempt(fn, *args):
    try:
        log.append(repr(fn(*args)))
    except Exception as error:
        log.append(repr(error))


class Odd:
    def __bool__(self):
        return 3

    def __len__(self):
        return -1

    def __str__(self):
        return 3

    def __repr__(self):
        return 4

    def __iter__(self):
        return 5

    def __int__(self):
        return 2.5

    def __float__(self):
        return 3

    def __index__(self):
        return "a"

    def __format__(self, spec):
        return 3


class Short:
    def __len__(self):
        return -2


def special_methods_(x):
    for fn in (bool, len, str, repr, iter, list, int, float, range, [1].__getitem__):
        attempt(fn, Odd())
    attempt(lambda: f"{Odd()}")
    attempt(lambda: 1 if Short() else 2)
    return x + 1


def assigned_(x):
    error = ValueError("a")
    error.args = [1, "b"]
    log.append((error.args, str(error)))
    error.__cause__ = KeyError("k")
    log.append((repr(error.__cause__), error.__suppress_context__))
    for name in ("args", "__cause__", "__context__", "__traceback__"):
        attempt(setattr, error, name, 5)
    return x + 1


def context_kept_(x):
    error = ValueError("a")
    error.__context__ = KeyError("k")
    try:
        raise error
    except ValueError as seen:
        return repr(seen.__context__), x + 1


def no_circle_(x):
    first, second = ValueError("a"), KeyError("b")
    try:
        try:
            try:
                raise first
            except ValueError:
                raise second
        except KeyError:
            raise first
    except ValueError as seen:
        return repr(seen.__context__), seen.__context__.__context__, x + 1


def cause_(x):
    try:
        raise ValueError("a") from 5
    except TypeError as error:
        return str(error), x + 1


def started_(x):
    def values():
        yield x

    made = values()
    attempt(made.send, 5)
    return next(made) + 1


def trace_(x):
    def fail():
        raise ValueError("a")

    try:
        fail()
    except ValueError as error:
        trace = error.__traceback__
    n = 0
    while trace is not None:
        n, trace = n + 1, trace.tb_next
    return n, x + 1


def indexed_(x):
    class Both:
        def __index__(self):
            return 0

        def __getitem__(self, at):
            raise KeyError(at)

    try:
        return x[Both()]
    except Exception as error:
        return type(error), x + 1


ALL = [special_methods_, assigned_, context_kept_, no_circle_, cause_, started_, trace_, indexed_]


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def outcome(fn, x):
    log.clear()
    return repr(fn(x)), repr(log)


@pytest.mark.parametrize("fn", ALL)
def test_a_detail_of_exceptions_is_eagers(fn):
    x = torch.arange(6.0).reshape(2, 3)
    compiled = torchweld.compile(fn, backend="eager")
    for _ in range(2):
        assert outcome(compiled, x) == outcome(fn, x)
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    assert (counts["breaks"] == 0) == (fn not in (trace_, indexed_))


def divided_(x):
    n = x.sum().item()
    log.append("before")
    try:
        return 1 / (n - 15)
    except ZeroDivisionError as error:
        log.append(str(error))
        return x + 1


def passed_on_(x):
    log.append("before")
    return 1 / (x.sum().item() - 15)


def divided_after_a_write_(x):
    x.mul_(2)
    n = x.sum().item()
    try:
        return 1 / (n - 30)
    except ZeroDivisionError:
        return x + 1


@pytest.mark.parametrize("fn", [divided_, passed_on_, divided_after_a_write_])
def test_arithmetic_of_numbers_of_the_graph_raises_where_it_stands(fn):
    compiled = torchweld.compile(fn)
    for start in (1.0, 0.0, 2.0):
        seen = []
        for each in (compiled, fn):
            log.clear()
            x = torch.arange(6.0).reshape(2, 3) + start
            try:
                got = repr(each(x))
            except ZeroDivisionError as error:
                got = str(error)
            seen.append((got, x.tolist(), list(log), sys.exc_info()))
        assert seen[0] == seen[1]
    assert torchweld.statistics()["breaks"] == (fn is divided_after_a_write_)


def test_a_division_by_a_number_that_is_known_is_one_graph():
    def step(x, total):
        x.mul_(2)
        try:
            total.append(x.sum().item() / 4)
        except ZeroDivisionError:
            total.append(0.0)
        return x + 1

    totals = []
    torchweld.compile(step, fullgraph=True)(torch.ones(4), totals)
    assert totals == [2.0]
