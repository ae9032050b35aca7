# ruff: noqa: UP031
# The programs are written as users write them.
"""print, logging, warnings, globals: what the world sees besides the result."""

import io
import logging
import sys
import warnings

import pytest
import torch
from eager_twin import check, check_made, check_refused

import torchweld

X = torch.arange(4.0)
Y = torch.ones(4)

COUNT = 0
SLOT = None


def printed(fn, *calls):
    """What the calls write to standard output."""
    out, before = io.StringIO(), sys.stdout
    sys.stdout = out
    try:
        for args in calls:
            fn(*args)
    finally:
        sys.stdout = before
    return out.getvalue()


def same_text(program, *calls):
    torchweld.reset()
    want = printed(program, *calls, *calls)
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    assert printed(compiled, *calls, *calls) == want
    assert torchweld.statistics()["breaks"] == 0


def test_print_constants():
    def program(x, n):
        print("start", n, sep=": ")
        y = x + n
        print(y.shape, [n, "a"], end="!\n")
        return y

    same_text(program, (X, 1), (X, 2))


def test_print_of_a_tensor():
    def program(x):
        y = x + 1
        print("y", y, [y], {"k": y})
        return y * 2

    same_text(program, (X,), (Y,))


def test_print_of_a_tensor_shows_its_value_at_that_time():
    def program(x):
        y = x + 1
        print(y)
        y.add_(1)
        print(y)
        return y

    same_text(program, (X,), (Y,))


def test_print_of_a_list_shows_its_state_at_that_time():
    def program(x):
        a = [1]
        print(a)
        a.append(2)
        print(a)
        return x + 1

    same_text(program, (X,))


def test_print_of_formatted_tensor():
    def program(x):
        y = x.sum()
        print(f"sum is {y} of {x.shape[0]:03d}: {y:.2f}")
        print(f"sum is {y}")
        print("sum is %s" % y)
        return y

    same_text(program, (X,), (Y,))


def test_print_of_objects():
    class A:
        def __str__(self):
            return "an A"

    class B:
        def __repr__(self):
            return "a B"

    def program(x):
        print(A(), B(), [B()], ValueError("v"), torch.float32, x.dtype)
        return x + 1

    same_text(program, (X,))


def test_print_inside_loop_and_callee():
    def say(i, x):
        print("step", i)
        return x + i

    def program(x):
        for i in range(3):
            x = say(i, x)
        return x

    same_text(program, (X,))


def test_print_to_a_file():
    def program(x):
        print("err", file=sys.stderr)
        print("flushed", flush=True)
        return x + 1

    same_text(program, (X,))


def test_logging():
    log = logging.getLogger("twin")
    log.setLevel(logging.INFO)

    def program(x):
        log.info("hello %d", 3)
        log.debug("not shown")
        log.warning("shape %s", x.shape)
        if log.isEnabledFor(logging.INFO):
            log.info("enabled")
        return x + 1

    records = []
    handler = logging.Handler()
    handler.emit = lambda r: records.append((r.levelname, r.getMessage()))
    log.addHandler(handler)
    try:
        program(X)
        want = list(records)
        records.clear()
        compiled = torchweld.compile(program, fullgraph=True, backend="eager")
        for _ in range(2):
            records.clear()
            compiled(X)
            assert records == want
    finally:
        log.removeHandler(handler)


def test_module_level_logging():
    def program(x):
        logging.warning("root %s", "a")
        return x + 1

    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), X + 1)


def test_warnings():
    def program(x):
        warnings.warn("careful", UserWarning, stacklevel=2)
        return x + 1

    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for _ in range(2):
        with pytest.warns(UserWarning, match="careful"):
            compiled(X)


def test_global_counter():
    def program(x):
        global COUNT
        COUNT = COUNT + 1
        return x + COUNT

    def make():
        global COUNT
        COUNT = 0
        return program

    torchweld.reset()
    make()
    want = [program(X) for _ in range(3)], COUNT
    make()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    got = [compiled(X) for _ in range(3)], COUNT
    assert got[1] == want[1]
    for a, b in zip(want[0], got[0], strict=True):
        assert torch.equal(a, b)


def test_two_globals_with_one_value():
    def program(x):
        global COUNT, SLOT
        COUNT = SLOT = 5
        return x + 1

    torchweld.compile(program, fullgraph=True, backend="eager")(X)
    assert (COUNT, SLOT) == (5, 5)


def test_global_written_and_read_back():
    def reads():
        return SLOT

    def program(x):
        global SLOT
        SLOT = x * 2
        return reads() + 1

    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), X * 2 + 1)
    assert torch.equal(SLOT, X * 2)


def test_module_attribute_written():
    import math as target

    def program(x):
        target.answer = 42
        return x + target.answer

    try:
        compiled = torchweld.compile(program, backend="eager")
        assert torch.equal(compiled(X), X + 42)
        assert target.answer == 42
    finally:
        del target.answer


def test_environment_read():
    import os

    def program(x):
        return x + (1 if os.environ.get("SURELY_NOT_SET") else 2)

    compiled = torchweld.compile(program, backend="eager")
    assert torch.equal(compiled(X), X + 2)
    os.environ["SURELY_NOT_SET"] = "1"
    try:
        assert torch.equal(compiled(X), X + 1)
    finally:
        del os.environ["SURELY_NOT_SET"]


def test_time_and_random_are_refused():
    import random
    import time

    check_refused(lambda x: (x + 1, time.time() > 0), X, code="W120", says="runs")

    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * random.random(), backend="eager")
    random.seed(0)
    want = X * random.random(), X * random.random()
    random.seed(0)
    got = compiled(X), compiled(X)
    assert torch.equal(want[0], got[0])
    assert torch.equal(want[1], got[1])


def test_effects_keep_their_order_with_writes():
    class Loud:
        def __init__(self):
            self.n = 0

        def bump(self):
            self.n += 1
            print("n is", self.n)

    def make():
        loud = Loud()

        def program(x):
            loud.bump()
            loud.bump()
            return x + 1

        return program, loud

    check_made(make, (X,), graphs=2)


def test_import_inside():
    def program(x):
        import math
        from math import pi

        from torch.nn import functional as F

        return F.relu(x) * math.floor(pi)

    check(program, (X,), (Y,))


@pytest.mark.parametrize("early", [False, True])
def test_what_a_handler_keeps_is_there_when_the_frame_looks(early):
    log = logging.getLogger("twin.kept")
    log.setLevel(logging.INFO)
    kept = []

    class Keeps(logging.Handler):
        def emit(self, record):
            kept.append(record.getMessage())

    def program(x):
        before = len(kept) if early else 0
        y = x + 1
        log.info("first %d", x.shape[0])
        y = y * 2
        return y, list(kept), before

    handler = Keeps()
    log.addHandler(handler)
    try:
        torchweld.reset()
        compiled = torchweld.compile(program, backend="eager")
        found = [compiled(X)[1:] for _ in range(2)]
    finally:
        log.removeHandler(handler)
    assert found == [(["first 4"], 0), (["first 4", "first 4"], int(early))]
    assert torchweld.statistics()["internal_errors"] == 0
