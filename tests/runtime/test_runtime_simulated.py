"""The CUDA half of the native driver, without a GPU: cases run on a simulated CUDA driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "simulated"


def built(folder: Path, name: str) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    library = folder / f"{name}.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", str(HERE / f"{name}.c"), "-o", str(library),
         "-lm"], check=True,
    )  # fmt: skip
    return str(library)


def run(cases: tuple[str, ...], **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
         *(str(HERE / name) for name in cases)],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_launch_lists_and_graphs_on_a_simulated_driver(tmp_path):
    cases = ("cuda_cases.py", "draw_cases.py", "training_cases.py", "region_cases.py",
             "sized_cases.py")
    run(cases, LD_PRELOAD=built(tmp_path, "simulated_cuda"))


def test_products_by_a_simulated_cublas(tmp_path):
    run(("product_cases.py",), LD_PRELOAD=built(tmp_path, "simulated_cuda"),
        FAKE_CUBLAS=built(tmp_path, "fake_cublas"))  # fmt: skip
