"""The client of the compile server: starts it early, asks it for kernels, outlives its deaths.

The server is a process of its own, because importing and running Triton's compiler here would
hold the interpreter, and because a compiler that crashes must not take the user's process along.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchweld.base.config import Config
from torchweld.base.errors import BackendError
from torchweld.base.events import emit
from torchweld.runtime.triton_job import LOG, Cubin, Failed, Job, log_tail, read_answer
from torchweld.runtime.triton_server import Frames, send
from torchweld.runtime.triton_version import TOOLS, triton_version

SECONDS = 180.0  # for one kernel
_START_SECONDS = 120.0
_SLACK_SECONDS = 30.0
# Requests on the way: so few that neither pipe can fill up.
_WINDOW = 64
# What of the environment may change how a kernel is compiled: only TOOLS does, which keys hold.
_FOREIGN = ("TRITON_", "MLIR_", "LLVM_", "NVPTX_", "PTXAS_", "AMDGCN_", "DISABLE_", "USE_IR_LOC")


class _Dead(Exception):
    """The server ended; the argument is what it left in its log."""


class _Unstarted(Exception):
    """There can be no server here."""


@dataclass(slots=True)
class _Process:
    """A running server."""

    popen: subprocess.Popen[bytes]
    root: Path
    frames: Frames = field(default_factory=Frames)
    greeted: bool = False
    asked: int = 0

    def tell(self, message: dict[str, object]) -> None:
        assert self.popen.stdin is not None
        try:
            send(self.popen.stdin.fileno(), message)
        except OSError:
            raise _Dead(log_tail(self.root / LOG)) from None

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        """What the server says next; the empty list when it says nothing for so long."""
        assert self.popen.stdout is not None
        fd = self.popen.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if poll.poll(left * 1e3):
                some = os.read(fd, 1 << 16)
                if not some:
                    raise _Dead(log_tail(self.root / LOG))
                if found := self.frames.feed(some):
                    return found
        return []

    def greet(self) -> None:
        """Wait until it is ready. Errors: _Unstarted, _Dead."""
        if self.greeted:
            return
        try:
            heard = self.hear(_START_SECONDS)
        except _Dead as error:
            if self.popen.wait() < 0:  # a signal: in this process it would have hit the user
                raise
            raise _Unstarted(str(error)) from None
        if not heard or "failed" in heard[0]:
            why = heard[0]["failed"] if heard else f"no word in {_START_SECONDS:.0f} s"
            raise _Unstarted(why)
        self.greeted = True

    def end(self) -> None:
        """Kill it and remove its folder."""
        self.let_go()
        with contextlib.suppress(OSError):
            self.popen.kill()
        self.popen.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def let_go(self) -> None:
        """Close the pipes; it ends when nobody else has them either."""
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Service:
    """Compiles kernels in the server's children, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def warm(self, arch: int = 90) -> None:
        """Start the server, if it does not run, without waiting for it. Errors: none."""
        if self._lock.acquire(blocking=False):  # whoever holds it has a server, or ends it
            try:
                self._running(arch)
            except _Unstarted:
                pass  # whoever needs a kernel will be told
            finally:
                self._lock.release()

    def stop(self) -> None:
        """End the server, if it runs."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In a process that was forked: the server is the parent's, and so is the lock."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.let_go()
            self._process.popen.returncode = 0  # not our child: nothing to wait for
            self._process = None

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if it does not run."""
        return self._process.popen.pid if self._process is not None else None

    def compile(
        self, jobs: Sequence[Job], workers: int = 0, seconds: float = SECONDS
    ) -> list[Cubin | Failed]:
        """What each job became, in order; workers: how many at once, 0 means one per core.

        Errors: BackendError W302 if the server ends twice in the middle.
        """
        if not jobs:
            return []
        with self._lock:
            for last in (False, True):
                try:
                    return self._ask(jobs, workers or _cores(), seconds)
                except _Unstarted as error:
                    self._end()
                    return _compile_here(jobs, str(error))
                except _Dead as error:
                    self._end()
                    if last:
                        raise BackendError("W302", f"Triton's server ended: {error}") from None
                except BaseException:
                    self._end()  # answers of this batch must not reach the next one
                    raise
        raise AssertionError("unreachable")

    def _running(self, arch: int) -> _Process:
        known = self._process
        if known is not None and known.popen.poll() is None:
            return known
        self._end()
        self._process = _start(arch)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, jobs: Sequence[Job], workers: int, seconds: float) -> list[Cubin | Failed]:
        process = self._running(jobs[0].arch)
        process.greet()
        process.tell({"workers": workers})
        # The longest first: the last to end is then a short one.
        order = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].source))
        batch = process.asked
        process.asked += len(jobs)
        done: dict[int, Cubin | Failed] = {}
        sent = 0
        while len(done) < len(jobs):
            while sent < len(jobs) and sent - len(done) < _WINDOW:
                folder = process.root / str(batch + order[sent])
                folder.mkdir()
                jobs[order[sent]].write(folder)
                process.tell({"id": order[sent], "folder": str(folder), "seconds": seconds})
                sent += 1
            answers = process.hear(seconds + _SLACK_SECONDS)
            if not answers:
                raise _Dead("it does not answer")
            for a in answers:
                done[a["id"]] = _collect(process.root / str(batch + a["id"]), a, seconds)
        return [done[i] for i in range(len(jobs))]


def _collect(folder: Path, answer: dict[str, Any], seconds: float) -> Cubin | Failed:
    """What a child that has ended left in its folder, which goes."""
    made = read_answer(folder) if answer["status"] == 0 else None
    if made is None:
        made = Failed(f"no result after {seconds:g} s" if answer["late"] else
                      _died(answer["status"], log_tail(folder / LOG)))  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    return made


def _died(status: int, log: str) -> str:
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}: {log}" if log else how


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def environment(folder: Path) -> dict[str, str]:
    """The server's environment: compilation must not depend on debug settings of the user's."""
    env = {
        name: value
        for name, value in os.environ.items()
        if (name in TOOLS and value) or not name.startswith(_FOREIGN)
    }
    env.update(
        PYTHONPATH=os.pathsep.join(_search_path()),
        PYTHONDONTWRITEBYTECODE="1",
        TMPDIR=str(folder),
        TRITON_CACHE_DIR=str(folder / "cache"),
        TRITON_HOME=str(folder),
        # Kernel files are gone when anybody could look at their lines, and ptxas is faster without.
        TRITON_DISABLE_LINE_INFO="1",
    )
    return env


def _search_path() -> Iterable[str]:
    """Where we found our modules, and ourselves."""
    return (*filter(None, sys.path), str(Path(__file__).parents[2]))


def _start(arch: int) -> _Process:
    """Errors: _Unstarted."""
    if not sys.executable:
        raise _Unstarted("this program does not name its Python interpreter")
    root = None
    try:
        root = Path(tempfile.mkdtemp(prefix="torchweld-triton-"))
        # -P: a file named like a module of ours in the user's folder must not be imported.
        command = [sys.executable, "-P", "-m", "torchweld.runtime.triton_server",
                   str(root), str(os.getpid()), str(arch)]  # fmt: skip
        with open(root / LOG, "wb") as log:
            popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=environment(root), bufsize=0,
            )  # fmt: skip
    except (OSError, ValueError) as error:
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)
        raise _Unstarted(str(error)) from None
    return _Process(popen, root)


def _compile_here(jobs: Sequence[Job], why: str) -> list[Cubin | Failed]:
    """One after the other in this process, because there is no server."""
    emit("runtime", "triton server", why, why=why)
    try:
        compiler = importlib.import_module("torchweld.runtime.triton_compile")
    except Exception as error:  # a broken installation may raise anything
        raise BackendError("W302", f"triton cannot be imported: {error}") from None
    made: list[Cubin | Failed] = []
    for job in jobs:
        with tempfile.TemporaryDirectory(prefix="torchweld-") as folder:
            job.write(Path(folder))
            made.append(compiler.compile_kernel(job, Path(folder)))
    return made


SERVICE = Service()
atexit.register(SERVICE.stop)
os.register_at_fork(after_in_child=SERVICE.forget)


def warm(cfg: Config, arch: int = 90) -> None:
    """Start the compile server in the background, as soon as a CUDA tensor was seen.

    Errors: none; without Triton nothing is started, and whoever needs a kernel is told.
    """
    with contextlib.suppress(BackendError):
        if not cfg.interpret and triton_version():
            SERVICE.warm(arch)
