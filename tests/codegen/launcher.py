"""Compiles Programs with g++ and runs their launch lists through ctypes: no torch, no runtime."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path

import torchweld.codegen
from torchweld.ir.loop_eval import Storage
from torchweld.ir.loop_ops import FAILURES
from torchweld.ir.program import Alloc, Call, Drop, Launch, MakeView
from torchweld.ir.rounding import convert, pack, unpack

INCLUDE = Path(torchweld.codegen.__file__).parent / "include"
_FOLDER = Path(tempfile.mkdtemp(prefix="weld-codegen-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def compile_text(source: str, flags: tuple[str, ...], *extra: str, march: str = "native") -> Path:
    """The shared object (or, with -o among `extra`, whatever that asks for) of a C++ text."""
    name = hashlib.sha256("\0".join((source, march, *flags, *extra)).encode()).hexdigest()[:16]
    cpp, out = _FOLDER / f"{name}.cpp", _FOLDER / f"{name}.so"
    if not out.exists():
        cpp.write_text(source)
        command = ["g++", *flags, f"-march={march}", f"-I{INCLUDE}", *extra, str(cpp)]
        done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr[:3000]}\n{source}"
    return out


def compile_program(program, march: str = "native") -> dict[str, object]:
    """Function name -> callable(tensors, begin, end)."""
    return compile_programs([program], march)[0]


def compile_programs(programs, march: str = "native") -> list[dict[str, object]]:
    """Several Programs as one translation unit, because starting g++ costs the most."""
    parts = []
    for i, p in enumerate(programs):
        for a in p.artifacts:
            parts.append(a.source.replace("WELD_KERNEL(", f"WELD_KERNEL(p{i}_"))
    flags = programs[0].meta["cxx_flags"]
    library = ctypes.CDLL(str(compile_text("\n".join(parts), flags, march=march)))
    tables = []
    for i, p in enumerate(programs):
        table = {}
        for name in (f for a in p.artifacts for f in a.functions):
            f = getattr(library, f"p{i}_{name}")
            f.restype = ctypes.c_int32
            f.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
            table[name] = f
        tables.append(table)
    return tables


class Run:
    """One call of a Program. Every tensor is a ctypes byte buffer, 64-aligned with guard bytes."""

    def __init__(self, program, functions, graph, inputs, externs=None, chunks: int = 3) -> None:
        self.program, self.functions, self.chunks = program, functions, chunks
        self.externs = externs or {}
        self.keep = []
        self.base = [0] * len(program.tensors)
        arena = self._memory(max(program.arena_bytes, 1))
        for n, spec in enumerate(program.tensors):
            if spec.place == "input":
                values = inputs[spec.index]
                data = b"".join(pack(convert(v, spec.dtype), spec.dtype) for v in values)
                self.base[n] = self._memory(max(len(data), 1))
                ctypes.memmove(self.base[n], data, len(data))
            elif spec.place == "arena":
                self.base[n] = arena + spec.index
        for step in program.steps:
            self._step(step)
        for block, start, size in self.keep:
            around = block.raw[:start] + block.raw[start + size :]
            assert not around.strip(b"\xa5"), "a kernel wrote outside of its tensors"
        self.outputs = [None if t is None else self.read(t) for t in program.outputs]
        for b, n in zip(graph.inputs, range(len(graph.inputs)), strict=True):
            spec = program.tensors[n]
            inputs[n][:] = self._elements(n, range(Storage(b, {}).extent), spec.dtype)

    def _memory(self, size: int) -> int:
        block = ctypes.create_string_buffer(b"\xa5" * (size + 192), size + 192)
        at = -(-ctypes.addressof(block) // 64) * 64 + 64
        ctypes.memset(at, 0xFF, size)  # what nobody wrote is NaN, -1, no bool
        self.keep.append((block, at - ctypes.addressof(block), size))
        return at

    def _step(self, step) -> None:
        match step:
            case Alloc():
                spec = self.program.tensors[step.tensor]
                self.base[step.tensor] = self._memory(_extent(spec) * max(spec.dtype.bytes, 1))
            case MakeView():
                self.base[step.tensor] = self.base[step.source]
            case Launch():
                self._launch(step)
            case Call():
                self._call(step)
            case Drop():
                self.base[step.tensor] = 0

    def _launch(self, step: Launch) -> None:
        specs = [self.program.tensors[t] for t in step.args]
        starts = [self.base[t] + s.offset * s.dtype.bytes
                  for t, s in zip(step.args, specs, strict=True)]  # fmt: skip
        pointers = (ctypes.c_void_p * max(len(starts), 1))(*starts)
        cuts = [step.extent * k // self.chunks for k in range(self.chunks + 1)]
        for begin, end in itertools.pairwise(cuts):
            status = self.functions[step.function](pointers, begin, end)
            if status:
                raise FAILURES[status](step.function)

    def _call(self, step: Call) -> None:
        (source,) = (a.tensor for a in step.args)
        (result,) = step.results
        spec = self.program.tensors[result]
        values = self.externs[step.op](_Values(self.read(source)))
        self.base[result] = self._memory(_extent(spec) * max(spec.dtype.bytes, 1))
        for at, v in zip(_places(spec), values, strict=True):
            data = pack(convert(v, spec.dtype), spec.dtype)
            ctypes.memmove(self.base[result] + at * spec.dtype.bytes, data, len(data))

    def read(self, tensor: int) -> list:
        spec = self.program.tensors[tensor]
        return self._elements(tensor, _places(spec), spec.dtype)

    def _elements(self, tensor: int, places, dtype) -> list:
        base, size = self.base[tensor], dtype.bytes
        return [unpack(ctypes.string_at(base + at * size, size), dtype) for at in places]


class _Values:
    def __init__(self, values) -> None:
        self.values = values


def _places(spec) -> list[int]:
    places = [spec.offset]
    for n, s in zip(spec.sizes, spec.strides, strict=True):
        places = [p + i * s for p in places for i in range(n)]
    return places


def _extent(spec) -> int:
    return max(_places(spec), default=0) + 1
