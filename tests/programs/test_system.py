# ruff: noqa: UP031
# The programs are written as users write them.
"""What programs ask the system: the time, the process, files, Python's own frames."""

import datetime
import inspect
import os
import sys
import time

import pytest
import torch
from eager_twin import check, check_refused

import torchweld

X = torch.arange(4.0)
NAMES = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
CLOCKS = [getattr(time, name + end) for end in ("", "_ns") for name in NAMES]


@pytest.mark.parametrize("clock", CLOCKS, ids=lambda c: c.__name__)
def test_a_time_is_read_before_and_after_the_graph(clock):
    def program(x):
        start = clock()
        y = torch.relu(x * 2)
        return y, start, clock() - start, f"{clock() - start:.3f} s"

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    before = clock()
    seen = []
    for _ in range(3):
        y, start, passed, text = compiled(X)
        assert torch.equal(y, torch.relu(X * 2))
        assert before <= start <= clock()
        assert 0 <= passed <= clock() - start
        assert text.endswith(" s")
        seen.append(start)
    assert seen == sorted(seen)
    assert torchweld.statistics()["graphs"] == 1


def test_times_that_are_added_up():
    class Meter:
        def __init__(self):
            self.seconds, self.calls = 0.0, 0

    meter = Meter()

    def program(x):
        start = time.perf_counter()
        y = x * 2
        meter.seconds += time.perf_counter() - start
        meter.calls += 1
        return y

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    found = []
    for _ in range(4):
        compiled(X)
        found.append(meter.seconds)
    assert found == sorted(set(found))
    assert meter.calls == 4
    assert torchweld.statistics()["graphs"] <= 2


def test_a_time_that_an_operator_gets_is_read_before_the_graph():
    def program(x):
        now = time.time()
        return x * 0 + now

    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    before = time.time()
    assert before <= float(compiled(X.double())[0]) <= time.time()


def test_a_time_that_decides_breaks_the_graph():
    check_refused(lambda x: (x + 1, time.time() > 0), X, code="W120", says="runs")


def test_a_time_after_an_operator_cannot_go_into_the_graph():
    def program(x):
        y = x + 1
        return y * 0 + (time.time() > 0) + 0 * time.time()

    check_refused(program, X, code="W120", says="runs")


def test_the_process_and_its_files():
    check(
        lambda x: (
            x + 1,
            os.getpid(),
            os.getcwd(),
            os.cpu_count(),
            os.path.exists("/"),
            os.path.isfile("/"),
        ),
        (X,),
    )


def test_a_file_that_comes_is_seen(tmp_path):
    path = str(tmp_path / "flag")
    torchweld.reset()
    compiled = torchweld.compile(
        lambda x: x + 1 if os.path.exists(path) else x + 2, fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(X), X + 2)
    with open(path, "w"):
        assert torch.equal(compiled(X), X + 1)


def test_names_of_the_frames_of_the_program():
    def inner():
        here = inspect.currentframe()
        return here.f_code.co_name, here.f_back.f_code.co_name, sys._getframe(1).f_lineno

    def program(x):
        y = x + 1
        name = sys._getframe().f_code.co_name
        return y, name, inner(), sorted(sys._getframe().f_locals)

    check(program, (X,))


def test_what_else_is_looked_at_of_a_frame_runs_eagerly():
    def program(x):
        return x + 1, sys._getframe().f_lasti > 0

    check_refused(program, X, code="W122", says="frame")


def test_the_text_of_a_tensor_is_returned():
    check(lambda x: (x + 1, str(x * 2), [f"{x.sum()!r}!"], "%s" % x), (X,))


def test_dates_are_read_and_computed_with():
    def program(x):
        start = datetime.datetime.now()
        y = x * 2
        passed = datetime.datetime.now() - start
        print(f"{start:%Y-%m} {start.year} {(start + datetime.timedelta(hours=1)).date()}")
        today = datetime.date.today().isoformat()
        return y, start, passed, passed.total_seconds(), start.strftime("%d"), today

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    last = datetime.datetime.now()
    for _ in range(3):
        y, start, passed, seconds, day, today = compiled(X)
        assert torch.equal(y, X * 2)
        assert last <= start <= start + passed <= datetime.datetime.now()
        assert (seconds, day) == (passed.total_seconds(), start.strftime("%d"))
        assert datetime.date.fromisoformat(today) >= start.date()
        last = start + passed
    assert torchweld.statistics()["graphs"] == 1
