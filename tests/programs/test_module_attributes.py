# The programs are written as users write them.
"""Attributes of modules that a program assigns; sys.stdout, which is redirected."""

import contextlib
import io
import sys

import pytest
import torch
from eager_twin import Twins, outcome

import torchweld

THIS = sys.modules[__name__]
STEP, LAST, OUT = 0, None, io.StringIO()
X = torch.arange(4.0)


def counted(x, n):
    THIS.STEP += n
    THIS.LAST = x.sum()
    return x + STEP, THIS.LAST, THIS.STEP


def redirected(x, n):
    seen = io.StringIO()
    with contextlib.redirect_stdout(seen):
        print("inside", n)
        x = x + 1
        sys.stdout.write("raw")
    print("outside")
    return x * 2, seen.getvalue()


def to_nowhere(x, n):
    with contextlib.redirect_stdout(None):
        print("nobody sees", x)
    print("seen", n)
    return x * 2


def to_a_file(x, n):
    with contextlib.redirect_stdout(OUT):
        print("tensor", x)
        x = x + 1
    print("behind", x)
    return x * 2


def by_hand(x, n):
    old = sys.stdout
    sys.stdout = seen = io.StringIO()
    try:
        print("inside", n)
    finally:
        sys.stdout = old
    return x + 1, seen.getvalue()


def behind_a_print(x, n):
    print("before", n)
    seen = io.StringIO()
    with contextlib.redirect_stdout(seen):
        print("inside", n)
    return x + 1, seen.getvalue()


def broken_inside(x, n):
    seen = io.StringIO()
    with contextlib.redirect_stdout(seen):
        print("inside", n)
        if x.sum() > 3:
            print("large")
    print("after", seen.getvalue())
    return x * 2


def run(fn, n):
    THIS.STEP, THIS.LAST = 1, None
    OUT.seek(0)
    OUT.truncate()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        made = outcome(fn, (X, n))
    return made, shown.getvalue(), OUT.getvalue(), STEP, LAST


PROGRAMS = {counted: True, redirected: True, to_nowhere: True, to_a_file: True, by_hand: True,
            behind_a_print: False, broken_inside: False}  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS)
def test_modules_and_what_is_printed(fn):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager", fullgraph=PROGRAMS[fn])
    for n in (2, 2, 3, 2):
        Twins().equal(run(fn, n), run(compiled, n))
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    assert (counts["breaks"] == 0) == PROGRAMS[fn]
