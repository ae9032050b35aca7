"""README's example prints what README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_example_prints_what_the_readme_shows(tmp_path):
    source = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    shown = re.search(r"prints\n\n```text\n(.*?)```", README, re.DOTALL).group(1)
    (tmp_path / "example.py").write_text(source)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "example.py"], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace(f"{tmp_path}/", "") == shown
