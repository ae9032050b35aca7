"""Context variables: read, set and reset in a compiled function."""

import contextvars

import pytest
import torch
from break_twin import opaque
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
program = PROGRAMS.program
X = torch.arange(4.0)


@program()
def set_and_reset():
    scale = contextvars.ContextVar("scale", default=2)

    def run(x, y, n):
        before = scale.get()
        token = scale.set(n)
        inner = scale.set(n + 1)
        z = x * scale.get()
        scale.reset(inner)
        z = z + scale.get()
        scale.reset(token)
        return z, before, scale.get()

    return run


@program()
def in_a_block():
    depth = contextvars.ContextVar("depth", default=0)

    class Deeper:
        def __enter__(self):
            self.token = depth.set(depth.get() + 1)

        def __exit__(self, *exc):
            depth.reset(self.token)

    def run(x, y, n):
        with Deeper():
            return x + depth.get()

    return run


@program(2)
def broken_between():
    scale = contextvars.ContextVar("scale", default=2)

    def run(x, y, n):
        token = scale.set(5)
        z = opaque(x + 1) * scale.get()
        scale.reset(token)
        return z, scale.get()

    return run


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_what_is_set_stays_set():
    scale = contextvars.ContextVar("scale", default=2)

    def f(x, n):
        scale.set(n)
        return x * scale.get()

    torchweld.reset()
    compiled = torchweld.compile(f, fullgraph=True, backend="eager")
    for n in (3, 4, 3):
        assert torch.equal(compiled(X, n), X * n)
        assert scale.get() == n


def test_a_reset_with_a_token_from_elsewhere_is_a_break():
    scale = contextvars.ContextVar("scale", default=2)

    def f(x, token):
        scale.reset(token)
        return x * scale.get()

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    assert torch.equal(compiled(X, scale.set(7)), X * 2)
