"""A Program for one choice of sizes, out of what one for a range was made of (ADR 0031).

    LoopGraph for a range -> LoopGraph for one choice -> fuse -> codegen

None of that needs torch, so it runs in a process of its own, and this one's interpreter is free:
`python -P -m torchweld.fixing` reads a question from stdin, compiles what is C++ into the cache on
disk, and writes the Program to stdout.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from torchweld.base.config import Config, current, override
from torchweld.base.errors import BackendError, Unsupported, WeldError
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.fuse.tidy import checked_before_writes
from torchweld.ir.fixed import fixed
from torchweld.ir.lengthen import Origin, lengthen
from torchweld.ir.loop import written_inputs
from torchweld.ir.loop_verify import verify
from torchweld.ir.program import Program
from torchweld.runtime import loader
from torchweld.runtime.store import Store

SECONDS = 300.0
NICE = 19

_running: set[subprocess.Popen[bytes]] = set()
os.register_at_fork(after_in_child=_running.clear)


@dataclass(frozen=True, slots=True)
class Question:
    """The Program of which sizes is wanted. compile: the C++ in it, into the cache on disk."""

    origin: Origin
    values: tuple[int, ...]
    cfg: Config
    include_dir: Path
    compile: bool = True


def program_of(origin: Origin, values: tuple[int, ...], cfg: Config) -> Program:
    """The Program of one choice of sizes.

    Errors: WeldError, for instance InternalError where a part of the graph is empty for them.
    """
    loop = fixed(origin.loop, values)
    verify(loop)
    plan = fuse(loop, cfg)
    program = generate(plan)
    program.meta["mutated"] = written_inputs(loop)
    program.meta["checks_first"] = checked_before_writes(plan)
    if origin.inputs is None:
        return program
    long = lengthen(program, origin.inputs)
    if isinstance(long, str):
        raise Unsupported("W201", long)
    return long


def answer(question: Question) -> Program:
    """What the process does. Errors: WeldError."""
    with override(**{n: getattr(question.cfg, n) for n in Config.__slots__}):
        made = program_of(question.origin, question.values, question.cfg)
        root = question.cfg.cache_path()
        if question.compile and root is not None:
            loader.functions_of(made, question.include_dir, Store(root))
    return made


def in_another_process(question: Question) -> Program:
    """As `answer`. Cost: seconds, in a process of the lowest priority.

    Errors: BackendError W302 if it ends without an answer; what it says went wrong.
    """
    path = (*filter(None, sys.path), str(Path(__file__).parents[1]))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        # -P: a file named like a module of ours in the user's folder must not be imported.
        popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "torchweld.fixing"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
        )  # fmt: skip
    except OSError as error:
        raise BackendError("W302", f"no process to compile in: {error}") from None
    _running.add(popen)
    try:
        said, _ = popen.communicate(pickle.dumps(question), SECONDS)
    except subprocess.TimeoutExpired:
        raise BackendError("W302", f"no result after {SECONDS:.0f} s") from None
    finally:
        popen.kill()
        popen.wait()
        _running.discard(popen)
    if popen.returncode != 0:
        raise BackendError("W302", f"the process that compiles ended: {popen.returncode}")
    made = pickle.loads(said)
    if isinstance(made, Program):
        return made
    raise BackendError("W302", str(made))


@atexit.register
def _end_all() -> None:
    """Nobody wants an answer any more."""
    for popen in list(_running):
        with contextlib.suppress(OSError):
            popen.kill()


def ask(origin: Origin, include_dir: Path, values: tuple[int, ...]) -> Program:
    """The Program for these sizes, made in another process. Errors: BackendError."""
    cfg = replace(current(), logs=(), dump="", events="", explain=False)
    return in_another_process(Question(origin, values, cfg, include_dir))


def serve(given: BinaryIO, said: BinaryIO) -> None:
    """Answer one question: a Program, or in words why there is none."""
    question: Question = pickle.load(given)
    try:
        found: Program | str = answer(question)
    except WeldError as error:
        found = error.refusal().why
    pickle.dump(found, said)
    said.flush()


def main() -> None:
    """The process."""
    os.nice(NICE)
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may get between
    serve(sys.stdin.buffer, said)


if __name__ == "__main__":
    main()
