"""Launch lists that draw random numbers: the generator is read once per call, and moved on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchweld.ir.dtype import DType
from torchweld.ir.program import Draw, Program, TensorSpec
from torchweld.runtime import draws, python_driver
from torchweld.runtime.python_driver import PythonDriver

HERE = Path(__file__).parent


class Generator:
    """A generator of torch's with 64 bits of seed, as its methods show it."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed, self.offset = seed, offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
def generator(monkeypatch):
    made = Generator((1 << 64) - 5, 8)
    monkeypatch.setattr(draws, "generator_of", lambda device: made)
    return made


def test_a_draw_tells_where_the_generator_stood_and_moves_it(generator):
    assert draws.take("cuda:0", 12) == (-5, 2)
    assert generator.offset == 20 and draws.take("cuda:0", 4) == (-5, 5)


def test_a_program_draws_if_a_step_does():
    empty = Program((), (), (), 0, (), 0)
    assert not draws.draws(empty)
    assert draws.draws(Program((), (), (Draw("cuda:0", 4, 0, 1),), 0, (), 0))


def test_a_call_in_a_capture_of_the_users_runs_in_eager(generator, monkeypatch):
    number = TensorSpec("state", 0, DType.I64, (), (), 0)
    run = PythonDriver(
        Program((), (number, number), (Draw("cuda:0", 4, 0, 1),), 0, (0, 1), 0), {}
    )
    run.eager = lambda: (torch.tensor(1.0),)
    assert [t.item() for t in run()] == [-5, 2]
    monkeypatch.setattr(python_driver, "captured", lambda: True)
    assert [t.item() for t in run()] == [1.0] and generator.offset == 12


def test_what_a_graph_draws_is_what_its_loops_say():
    """In a process of its own, with the kernels in Triton's interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TORCHWELD_INTERPRET": "1", "TORCHWELD_CACHE_DIR": "off"}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, str(HERE / "interpreted_draws.py")], env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["128", "24"]
