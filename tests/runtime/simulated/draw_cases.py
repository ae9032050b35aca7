"""Random numbers in launch lists and CUDA graphs on the simulated driver."""

from __future__ import annotations

import ctypes

import pytest
from simulated_lists import (
    GRAPHS,
    N,
    build,
    count,
    launch,
    program,
    sim,
    spec,
    stream,
    use,
    x_of,
)

from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Draw
from torchweld.runtime import draws

pytest_plugins = ("simulated_lists",)  # every case starts on a simulated device of its own


class Generator:
    """Torch's generator of the device: the seed, and the words taken so far."""

    seed, offset = (1 << 64) - 7, 40

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        self.offset = offset


@pytest.fixture
def generator(monkeypatch):
    made = Generator()
    monkeypatch.setattr(draws, "generator_of", lambda name: made)
    return made


def drawing():
    """The state that kernels see, plus 1: seed, block, seed, block, ..."""
    number = spec("state", 0, (), (), 0, DType.I64, "cpu")
    return program(
        (spec("input"), number, number, spec("arena"), spec("fresh")),
        (Draw("cuda:0", 12, 1, 2), launch("state", 1, 2, 3), Alloc(4), launch("add1", 3, 4)),
        (4,), 64,
    )  # fmt: skip


@pytest.mark.parametrize("graphs", [False, True])
def test_each_call_draws_from_where_the_generator_stands(generator, graphs):
    ex = build(drawing(), graphs)
    for i in range(6):
        assert ex(x_of(0.0))[0].tolist() == [-6.0, 3.0 * i + 11] * (N // 2)
        assert generator.offset == 40 + 12 * (i + 1)
    generator.seed, generator.offset = 5, 400
    assert ex(x_of(0.0))[0].tolist() == [6.0, 101.0] * (N // 2)
    assert bool(count(GRAPHS)) == graphs


def test_two_frames_at_once_draw_for_themselves(generator):
    ex = build(drawing())
    held = [ex(x_of(0.0))[0] for _ in range(5)]
    assert [y[1].item() for y in held] == [11.0, 14.0, 17.0, 20.0, 23.0]


def test_a_generator_that_cannot_be_read_fails_the_call(generator):
    generator.get_offset = None
    ex = build(drawing())
    with pytest.raises(TypeError, match="not callable"):
        ex(x_of(0.0))


def test_a_call_in_a_capture_of_the_users_runs_in_eager(device, generator):
    ex = build(drawing())
    ex(x_of(0.0))
    ex.eager = lambda x: [x + 3]
    use(device, 2)
    assert sim.cuStreamBeginCapture_v2(ctypes.c_void_p(stream(2)), 1) == 0
    try:
        assert ex(x_of(1.0))[0].tolist() == [4.0] * N and generator.offset == 52
    finally:
        sim.cuStreamEndCapture(ctypes.c_void_p(stream(2)), ctypes.byref(ctypes.c_void_p()))
