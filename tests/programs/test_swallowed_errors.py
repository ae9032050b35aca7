# The programs are written as users write them.
"""Managers of `with` that swallow what an operator raises because of its data, or pass it on."""

import contextlib

import pytest
import torch

import torchweld

seen = []


class Quiet:
    def __enter__(self):
        seen.append("in")
        return self

    def __exit__(self, kind, error, trace):
        seen.append("out")
        return kind is not None and issubclass(kind, Exception)


class Above:
    def __exit__(self, kind, error, trace):
        return True


class Below(Above):
    def __enter__(self):
        return self

    def __exit__(self, *given):
        return super().__exit__(*given)


@contextlib.contextmanager
def handles():
    try:
        yield
    except (IndexError, RuntimeError) as error:
        seen.append(type(error).__name__)


@contextlib.contextmanager
def cleans():
    seen.append("begin")
    try:
        yield
    finally:
        seen.append("end")


OUTER = Quiet()


def pick(x, at):
    x.mul_(2).add_(x.relu().exp()).clamp_(max=50)
    return x.gather(1, at)


def class_(x, at):
    got = None
    with Quiet(), torch.no_grad():
        try:
            got = pick(x, at)
        finally:
            seen.append("last")
    return x - 1 if got is None else got


def generator_(x, at):
    got = None
    with handles():
        got = pick(x, at)
    return x - 1 if got is None else got


def stack_(x, at):
    got = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(Quiet())
        got = pick(x, at)
    return x - 1 if got is None else got


def outer_(x, at):
    got = None
    with OUTER:
        got = pick(x, at)
    return x - 1 if got is None else got


def inlined_(x, at):
    def inner():
        with cleans():
            return pick(x, at)

    got = None
    with Below():
        got = inner()
    return x - 1 if got is None else got


def nested_(x, at):
    got = None
    with handles(), cleans():
        got = pick(x, at)
    return x - 1 if got is None else got


def suppressed_(x, at):
    with contextlib.suppress(IndexError, RuntimeError), contextlib.ExitStack() as stack:
        stack.callback(seen.append, "called")
        return pick(x, at)
    return x - 1


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def outcome(fn, index):
    seen.clear()
    x, at = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), index)
    return fn(x, at).tolist(), x.tolist(), list(seen)


@pytest.mark.parametrize("fn", [class_, generator_, stack_, outer_, inlined_, nested_, suppressed_])
def test_an_operators_error_ends_in_a_manager_that_swallows_it(fn):
    compiled = torchweld.compile(fn)
    for index in (1, 7, 0):
        assert outcome(compiled, index) == outcome(fn, index)
    assert torchweld.statistics()["graphs"] > 0
    assert torchweld.statistics()["internal_errors"] == 0


def passed_on_(x, at):
    with cleans():
        return pick(x, at)


def test_a_manager_that_only_cleans_up_leaves_one_graph():
    compiled = torchweld.compile(passed_on_, fullgraph=True)
    assert outcome(compiled, 1) == outcome(passed_on_, 1)
    assert torchweld.statistics()["graphs"] == 1
