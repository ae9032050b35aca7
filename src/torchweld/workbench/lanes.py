"""Worker processes that take turns: one lane per compiler, with caches of its own."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CACHES = ("TORCHWELD_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Lane:
    """One worker process. `ask` sends a request and waits for its answer.

    Errors: an answer {"error": ...} when the worker failed, died, or took longer than `timeout`.
    """

    def __init__(self, case: str, compiler: str, device: str, threads: int) -> None:
        self.compiler = compiler
        self.error: str | None = None
        self._caches = tempfile.mkdtemp(prefix="torchweld-bench-")
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        env.update({name: os.path.join(self._caches, name.lower()) for name in CACHES})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchweld.workbench.worker",
             case, compiler, device, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log(), env=env, text=True,
        )  # fmt: skip
        self._read(600.0)

    def _log(self) -> int:
        self._log_path = Path(self._caches) / "stderr"
        return os.open(self._log_path, os.O_CREAT | os.O_WRONLY)

    def ask(self, do: str, timeout: float = 900.0, **fields: Any) -> dict[str, Any]:
        """The worker's answer; once a lane has failed it answers with that error."""
        if self.error is not None:
            return {"error": self.error}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError:
            return self._fail("the worker died")
        return self._read(timeout)

    def _read(self, timeout: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], timeout)
        if not ready:
            return self._fail(f"no answer within {timeout:.0f} s")
        line = out.readline()
        if not line:
            return self._fail("the worker died: " + self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.error = str(answer["error"])
        return answer

    def _last_words(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    def _fail(self, why: str) -> dict[str, Any]:
        self.error = why
        return {"error": why}

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._caches, ignore_errors=True)
