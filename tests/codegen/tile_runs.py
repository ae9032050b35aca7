"""Programs with Triton kernels: run in the interpreter, compiled for a GPU that is not there."""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import subprocess
import sys
from pathlib import Path

from tests.codegen.launcher import INCLUDE, Run

from torchweld.ir.program import GridLaunch

WORKER = Path(__file__).parent / "triton_worker.py"
_processes = {}


def ask(interpret: bool, *request):
    """The answer of the worker that interprets, or of the one that compiles."""
    if interpret not in _processes:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
        env["PYTHONPATH"] = os.pathsep.join([str(INCLUDE), *filter(None, sys.path)])
        on_gpu = interpret and env.get("WELD_TILES_ON") == "cuda"
        env |= {} if on_gpu or not interpret else {"TRITON_INTERPRET": "1"}
        p = subprocess.Popen([sys.executable, str(WORKER)], env=env, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)  # fmt: skip
        atexit.register(p.stdin.close)
        _processes[interpret] = p
    p = _processes[interpret]
    pickle.dump(request, p.stdin)
    p.stdin.flush()
    status, answer = pickle.load(p.stdout)
    if status == "error":
        if any("device-side assert" in line for line in answer):
            del _processes[interpret]  # its GPU context is lost
            raise IndexError(answer)
        for name, error in (("BadIndex", IndexError), ("BadBound", RuntimeError)):
            if any(line.startswith(name) for line in answer):
                raise error(answer)
        raise AssertionError("\n".join([*answer, request[1]]))
    return answer


def ptx_of(artifact, arch=90) -> str:
    """The PTX text of a kernel; ptxas has made a cubin of it."""
    options = tuple(artifact.options)
    return ask(False, "compile", artifact.source, artifact.functions[0], options, arch)


class TileRun(Run):
    """One call of a Program whose Triton kernels are interpreted, on copies of their memory."""

    def __init__(self, program, graph, inputs, externs=None, functions=()) -> None:
        self.artifacts = {f: a for a in program.artifacts for f in a.functions}
        super().__init__(program, dict(functions), graph, inputs, externs)

    def _step(self, step) -> None:
        if not isinstance(step, GridLaunch):
            super()._step(step)
            return
        artifact = self.artifacts[step.function]
        kinds = dict(artifact.options)["signature"].split()
        args, blocks = [], []
        for t, kind in zip(step.args, kinds, strict=True):
            spec = self.program.tensors[t]
            at = self.base[t] + spec.offset * spec.dtype.bytes
            if not kind.startswith("*"):
                args.append((kind, ctypes.string_at(at, spec.dtype.bytes)))
                continue
            (n,) = (i for i, (block, start, size) in enumerate(self.keep)
                    if 0 <= at - ctypes.addressof(block) - start <= size)  # fmt: skip
            if n not in blocks:
                blocks.append(n)
            args.append((kind, blocks.index(n), at - ctypes.addressof(self.keep[n][0])))
        memory = [self.keep[n][0].raw for n in blocks]
        made = ask(True, "run", artifact.source, step.function, artifact.options, step.blocks,
                   args, memory)  # fmt: skip
        for n, data in zip(blocks, made, strict=True):
            ctypes.memmove(self.keep[n][0], data, len(data))
