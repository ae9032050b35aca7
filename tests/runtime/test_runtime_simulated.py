"""The CUDA half of the native driver, without a GPU: cases run on a simulated CUDA driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "simulated"


def test_launch_lists_and_graphs_on_a_simulated_driver(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    library = tmp_path / "simulated_cuda.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", str(HERE / "simulated_cuda.c"), "-o",
         str(library)], check=True,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
         *(str(HERE / name) for name in ("cuda_cases.py", "draw_cases.py"))],
        env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
