"""The compile server: `python -m torchweld.runtime.triton_server FOLDER PARENT ARCH`.

One process imports triton once and forks a child per kernel. It has a single thread, so a fork is
safe; a kernel whose compilation crashes, hangs or leaks takes only its child with it.

Frames on stdin and stdout are JSON behind a length of 4 bytes. First it says {"triton": version},
or {"failed": why} and exits. A request {"id", "folder", "seconds"} names the folder of a job; when
its child has ended, the answer is {"id", "status", "late"}: the exit status as os.waitstatus_to_
exitcode gives it, and whether the child was ended because its seconds were over. {"workers": n}
sets how many children run at once.

It ends when stdin is closed or its parent is another one, and takes its children and FOLDER with
it. It does not end for want of work: its parent would have a zombie until it asked again.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import struct
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchweld.runtime.triton_job import LOG

# How often it looks whether its parent is still there. The kernel's own signal for that, PDEATHSIG,
# comes when the *thread* that started us ends, which may be any thread of the user's.
_LOOK = 2.0
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("<I")


class Frames:
    """Frames out of a stream of bytes."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, some: bytes) -> list[dict[str, Any]]:
        """The frames that are whole now."""
        self._bytes += some
        found = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            found.append(json.loads(self._bytes[_LENGTH.size : end]))
            self._bytes = self._bytes[end:]
        return found


def frame(message: dict[str, object]) -> bytes:
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def send(fd: int, message: dict[str, object]) -> None:
    """Write one frame. Errors: OSError if the other side is gone."""
    rest = frame(message)
    while rest:
        rest = rest[os.write(fd, rest) :]


@dataclass(slots=True)
class Child:
    """A running compilation. alive: reads as closed when the child has ended."""

    number: int
    pid: int
    alive: int
    deadline: float
    late: bool = False


@dataclass(slots=True)
class Server:
    """requests, answers: file descriptors. compiler: the module that compiles."""

    requests: int
    answers: int
    parent: int
    compiler: Any
    workers: int = 1
    waiting: list[dict[str, Any]] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    frames: Frames = field(default_factory=Frames)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def run(self) -> None:
        """Serve until nobody is there."""
        self.selector.register(self.requests, selectors.EVENT_READ, None)
        try:
            while os.getppid() == self.parent:
                for key, _ in self.selector.select(self._patience()):
                    if isinstance(key.data, Child):
                        self._ended(key.data)
                    elif not self._read():
                        return
                self._end_late()
                while self.waiting and len(self.children) < self.workers:
                    self._start(self.waiting.pop(0))
        finally:
            for child in self.children:
                _end(child.pid)

    def _patience(self) -> float:
        first = min((c.deadline for c in self.children), default=time.monotonic() + _LOOK)
        return max(0.0, min(_LOOK, first - time.monotonic()))

    def _read(self) -> bool:
        """Take what was asked; False when stdin is closed."""
        some = os.read(self.requests, 1 << 16)
        for message in self.frames.feed(some):
            if "workers" in message:
                self.workers = max(1, message["workers"])
            else:
                self.waiting.append(message)
        return bool(some)

    def _start(self, request: dict[str, Any]) -> None:
        alive, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(self.compiler, Path(request["folder"]), (self.requests, self.answers, alive))
        os.close(held)
        child = Child(request["id"], pid, alive, time.monotonic() + request["seconds"])
        self.children.append(child)
        self.selector.register(alive, selectors.EVENT_READ, child)

    def _ended(self, child: Child) -> None:
        self.selector.unregister(child.alive)
        os.close(child.alive)
        self.children.remove(child)
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        send(self.answers, {"id": child.number, "status": code, "late": child.late})

    def _end_late(self) -> None:
        for child in self.children:
            if time.monotonic() >= child.deadline:
                child.late = True
                child.deadline = float("inf")
                _end(child.pid)


def _end(pid: int) -> None:
    """Kill a child and what it started (ptxas): it leads a process group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _child(compiler: Any, folder: Path, inherited: tuple[int, ...]) -> None:
    """Compile one job and end. The log takes what compilers print, crash messages included."""
    status = 1
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        for fd in inherited:
            os.close(fd)
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        compiler.answer(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _die_with_parent() -> None:
    """Ask to be killed when the server ends; it has one thread, so its end is the process's."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Serve. stdout carries answers, so whatever prints there goes to stderr instead."""
    folder, parent, arch = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    # Ctrl-C is the parent's to handle: it closes our stdin if it stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        try:
            compiler = importlib.import_module("torchweld.runtime.triton_compile")
            warm = folder / "warm"
            warm.mkdir()
            compiler.warm_up(warm, arch)
        except Exception as error:  # whatever is wrong with this triton is the answer
            send(answers, {"failed": f"{type(error).__name__}: {error}"})
            return 1
        # What exists now is never collected, so that the children's collectors copy no pages.
        gc.freeze()
        send(answers, {"triton": compiler.triton.__version__})
        Server(requests, answers, parent, compiler).run()
    except OSError as error:  # the parent went away in the middle of an answer
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
