"""Worker processes that take turns: one lane per compiler, with caches of its own."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CACHES = ("TORCHWELD_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Lane:
    """One worker process: it starts at once, `ready` waits for it, `ask` sends it a request.

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

    def ready(self) -> None:
        """Wait until the case is built."""
        self._read(600.0)

    def _log(self) -> int:
        self._log_path = Path(self._caches) / "stderr"
        return os.open(self._log_path, os.O_CREAT | os.O_WRONLY)

    def ask(self, do: str, timeout: float = 900.0, **fields: Any) -> dict[str, Any]:
        """The worker's answer; once a lane has failed it answers with that error."""
        self.send(do, **fields)
        return self.receive(timeout)

    def send(self, do: str, **fields: Any) -> None:
        """A request whose answer `receive` gives."""
        if self.error is not None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._fail("the worker died")

    def receive(self, timeout: float = 900.0) -> dict[str, Any]:
        return {"error": self.error} if self.error is not None else self._read(timeout)

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

    def end(self) -> None:
        """Tell the worker that nothing more is wanted."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def close(self) -> None:
        """End the worker and wait for it."""
        self.end()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._caches, ignore_errors=True)


def close(lanes: Sequence[Lane]) -> None:
    """End all lanes at once."""
    for lane in lanes:
        lane.end()
    for lane in lanes:
        lane.close()
