"""Who looks at the frames of an error finds frames: pytest, loggers of errors, debuggers."""

import traceback

import pytest
import torch

import torchweld


def fails(x):
    raise ValueError(f"no {x.shape}")


def closure(scale):
    def fn(a, b):
        y = a * b
        torchweld.graph_break()
        if scale:
            fails(y * scale)
        return y

    return fn


def given_by_cell(a, b):
    y = a + b
    grow = lambda: y * 2
    torchweld.graph_break()
    return fails(grow())


def generator(a, b):
    def each(n):
        for i in range(n):
            torchweld.graph_break()
            yield a * i
        fails(a)

    return [x + b for x in each(2)]


@pytest.mark.parametrize("fn", [closure(2), given_by_cell, generator])
def test_the_variables_of_all_frames_of_a_traceback_can_be_read(fn):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for _ in range(2):
        with pytest.raises(ValueError, match="no torch") as caught:
            compiled(torch.ones(3), torch.ones(3))
        frames = [f for f, _ in traceback.walk_tb(caught.value.__traceback__)]
        assert all(isinstance(dict(f.f_locals), dict) for f in frames)
        assert frames[-1].f_code.co_name == "fails"
        assert traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
