"""Kernels in Triton's interpreter: launch lists of the GPU's kind on CPU tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


ANSWERS = {
    "by_value": "python",
    "rows": "equal",
    "mixed": "equal",
    "index": "index out of range in a compiled kernel (take)",
    "graph": "['triton']",
    "frame": "['triton']",
    "float8": "['triton']",
}


def run(*names, **variables):
    """The answers of interpreted.py's functions, by name."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | variables
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, str(HERE / "interpreted.py"), *names], env=env,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def answers():
    return run(*ANSWERS, TORCHWELD_INTERPRET="1", TORCHWELD_CACHE_DIR="off")


@pytest.mark.parametrize("what", ANSWERS)
def test_interpreted(answers, what):
    assert answers[what] == ANSWERS[what]


def test_a_triton_that_was_imported_before_is_a_clear_error():
    answer = run("late")["late"]
    assert answer.startswith("W302") and "set it in the environment" in answer
