# The programs are written as users write them.
"""Settings of torch that a program changes: what operators see, and what is left behind."""

import contextlib

import pytest
import torch
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
program, stateless = PROGRAMS.program, PROGRAMS.stateless


def settings():
    flags = torch.backends.cudnn
    return (flags.enabled, flags.benchmark, flags.deterministic, torch.get_num_threads(),
            torch.get_float32_matmul_precision(), torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled())  # fmt: skip


@stateless()
def flags_(x, y, n):
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        seen = settings()
        x = x + y
    return x, seen, settings()


@stateless()
def assigned_(x, y, n):
    old = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not old
    x = x * y
    seen = settings()
    torch.backends.cudnn.benchmark = old
    return x, seen


@stateless()
def precision_(x, y, n):
    torch.set_float32_matmul_precision("high")
    x = x @ y
    torch.set_float32_matmul_precision("highest")
    return x


@stateless()
def seeded_(x, y, n):
    torch.manual_seed(n)
    torch.use_deterministic_algorithms(True, warn_only=True)
    x, seen = x + torch.rand(4), settings()
    torch.use_deterministic_algorithms(False)
    return x, seen


@stateless()
def threads_(x, y, n):
    old = torch.get_num_threads()
    torch.set_num_threads(1)
    x = x * n
    torch.set_num_threads(old)
    return x, settings()


@stateless()
def default_dtype_(x, y, n):
    torch.set_default_dtype(torch.float64)
    made = torch.ones(4)
    torch.set_default_dtype(torch.float32)
    return x + made, torch.zeros(2), settings()


@stateless()
def behind_an_operator_(x, y, n):
    x = x * 2
    torch.set_num_threads(torch.get_num_threads())
    return x


@stateless(1)
def between_operators_(x, y, n):
    x = x * 2
    torch.set_num_threads(1)
    x = x + y
    torch.set_num_threads(2)
    return x


@program()
def failing_():
    places = torch.tensor([9])

    def f(x, y, n):
        try:
            with torch.backends.cudnn.flags(enabled=False):
                x = x[places]
        except IndexError:
            x = x + 1
        return x, settings()

    return f


@pytest.fixture
def free_flags(monkeypatch):
    """Flags may be assigned, also where torch's own tests, which forbid it, were imported."""
    where = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(where, "__allow_nonbracketed_mutation_flag", True)


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_settings(make, breaks, free_flags):
    old = torch.get_num_threads()
    try:
        check(make, breaks)
    finally:
        torch.set_num_threads(old)


FAILING = Programs()


@FAILING.stateless()
def in_a_mode_(x, y, n):
    try:
        with torch.no_grad():
            x = x[torch.tensor([n + 9])]
    except IndexError:
        x = x + 1
    return x


@FAILING.stateless()
def in_nothing_(x, y, n):
    try:
        with contextlib.nullcontext(), torch.autocast("cpu"):
            x = x[torch.tensor([n + 9])]
    except (KeyError, IndexError):
        x = x + 1
    return x


@FAILING.stateless(2)
def with_a_written_argument_(x, y, n):
    y.add_(1)
    with contextlib.suppress(IndexError), torch.no_grad():
        x = x[torch.tensor([n + 9])]
    return x


@pytest.mark.parametrize(("make", "breaks"), FAILING.rows)
def test_an_error_is_caught_around_a_mode(make, breaks):
    check(make, breaks)


def test_anomaly_detection_that_stays_as_it_is():
    def program(x):
        with torch.autograd.set_detect_anomaly(False):
            return x * 2 + torch.is_anomaly_enabled()

    torchweld.reset()
    compiled, x = torchweld.compile(program, backend="eager"), torch.ones(3)
    assert torch.equal(compiled(x), program(x))
    assert torchweld.statistics()["breaks"] == 0
    with torch.autograd.set_detect_anomaly(True):
        assert torch.equal(compiled(x), program(x))
    assert torchweld.statistics()["breaks"] > 0


def breaks_inside(x, y, n):
    x = x * 2
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        torchweld.graph_break()
        seen = settings()
        y = x + y
    return y * 3, seen, settings()


def test_a_break_inside_of_flags_is_one_break():
    torchweld.reset()
    before = settings()
    found = torchweld.explain(breaks_inside)(torch.ones(3), torch.ones(3), 1)
    assert (len(found.graphs), len(found.breaks)) == (2, 1)
    compiled = torchweld.compile(breaks_inside)
    got, *seen = compiled(torch.ones(3), torch.ones(3), 1)
    want, *eager = breaks_inside(torch.ones(3), torch.ones(3), 1)
    assert got.tolist() == want.tolist() and seen == eager and settings() == before
