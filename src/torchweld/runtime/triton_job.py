"""What is asked of Triton's compiler, and where question and answer lie on disk.

The compile server, its children and the client share this module: it imports nothing heavy.
A job's folder holds the question, kernel.json and <name>.py, and the child's answer: image.cubin
and, written last, answer.json. log is what the child printed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

QUESTION, ANSWER, IMAGE, LOG = "kernel.json", "answer.json", "image.cubin", "log"


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to compile. kinds: Triton's types of its parameters, ":16" behind an aligned one.

    arch: compute capability, 90 for 9.0. include_dir: where the prelude is, or "".
    """

    name: str
    source: str
    kinds: tuple[str, ...]
    arch: int
    warps: int = 4
    stages: int = 1
    debug: bool = False
    include_dir: str = ""

    def write(self, folder: Path) -> None:
        """Put the question there."""
        question = asdict(self)
        (folder / f"{self.name}.py").write_text(question.pop("source"), encoding="utf-8")
        (folder / QUESTION).write_text(json.dumps(question), encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Job:
        """The question that `write` put there."""
        question = json.loads((folder / QUESTION).read_text(encoding="utf-8"))
        source = (folder / f"{question['name']}.py").read_text(encoding="utf-8")
        return Job(**{**question, "kinds": tuple(question["kinds"])}, source=source)


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel. entry: its symbol; shared: bytes of dynamic shared memory; warps: per
    block; params: pointers and numbers that the kernel takes, which is at least one per argument
    of the launch: Triton adds pointers to scratch memory, which are null.
    """

    image: bytes
    entry: str
    shared: int
    warps: int
    params: int

    def pack(self) -> bytes:
        """One string of bytes: the header as a line of JSON, then the image."""
        return json.dumps([self.entry, self.shared, self.warps, self.params]).encode() + (
            b"\n" + self.image
        )

    @staticmethod
    def unpack(packed: bytes) -> Cubin:
        header, _, image = packed.partition(b"\n")
        entry, shared, warps, params = json.loads(header)
        return Cubin(image, entry, shared, warps, params)


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a kernel did not compile."""

    why: str


def write_answer(folder: Path, answer: Cubin | Failed) -> None:
    """Put the answer there; whoever sees answer.json sees a whole answer."""
    if isinstance(answer, Cubin):
        (folder / IMAGE).write_bytes(answer.image)
    shown = {f.name: getattr(answer, f.name) for f in fields(answer) if f.name != "image"}
    (folder / ".answer").write_text(json.dumps(shown), encoding="utf-8")
    os.replace(folder / ".answer", folder / ANSWER)


def read_answer(folder: Path) -> Cubin | Failed | None:
    """The answer, or None if the child left none."""
    try:
        shown = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if "why" in shown:
        return Failed(**shown)
    return Cubin(image=(folder / IMAGE).read_bytes(), **shown)


def log_tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, or the empty string."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])
