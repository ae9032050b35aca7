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


def picks(x, at, norm):
    y = norm(x.relu() + 1) * 2
    return y + torch.nn.functional.embedding(at, x)


@pytest.mark.parametrize("norm", [torch.nn.Identity(), torch.nn.BatchNorm1d(3)])
def test_an_index_out_of_bounds_in_a_kernel_raises_eagers_error_and_names_the_line(norm):
    """Also where the graph has written what eager writes before (averages of the norm)."""
    torchweld.reset()
    compiled = torchweld.compile(picks, fullgraph=True)
    compiled(torch.ones(4, 3), torch.arange(4), norm)
    with pytest.raises(IndexError) as want:
        picks(torch.ones(4, 3), torch.full((4,), 9), norm)
    with pytest.raises(IndexError) as got:
        compiled(torch.ones(4, 3), torch.full((4,), 9), norm)
    assert str(got.value) == str(want.value)
    (note,) = got.value.__notes__
    assert "test_tracebacks.py" in note and "functional.embedding(at, x)" in note
    assert torchweld.statistics()["kernels"] > 0
