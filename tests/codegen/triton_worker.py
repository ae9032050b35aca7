"""A process that runs or compiles Triton kernels for the tests: pickled requests, pickled answers.

With TRITON_INTERPRET=1 it interprets, else it compiles: Triton decides that once per process. With
WELD_TILES_ON=cuda it runs the kernels on a GPU.
    ("run", source, name, options, blocks, args, memory)
        args: (type, number of the memory, offset) or (type, bytes)
    ("compile", source, name, options, arch)
        answers the PTX text
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="weld-triton-tests-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ["TRITON_CACHE_DIR"] = str(FOLDER / "cache")

import numpy as np  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

TYPES = {"fp64": tl.float64, "fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16,
         "i64": tl.int64, "i32": tl.int32, "i16": tl.int16, "i8": tl.int8, "u8": tl.uint8,
         "i1": tl.int1}  # fmt: skip
FIXED = {"enable_fp_fusion": False, "sanitize_overflow": False, "enable_reflect_ftz": False}
_modules = {}


def function(source, name):
    if source not in _modules:
        path = FOLDER / f"m{len(_modules)}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        _modules[source] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_modules[source])
    return getattr(_modules[source], name)


def torch_types():
    import torch

    return {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16,
            "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16,
            "i8": torch.int8, "u8": torch.uint8, "i1": torch.bool}  # fmt: skip


def run_on_gpu(source, name, options, blocks, args, memory):
    """The same on a GPU, through Triton's own launcher."""
    import torch

    types = torch_types()

    fn = function(source, name)
    blobs = [torch.frombuffer(bytearray(m), dtype=torch.uint8).cuda() for m in memory]
    given = []
    for kind, *where in args:
        kind = kind.removeprefix("*").partition(":")[0] if kind.startswith("*") else f"={kind}"
        if kind.startswith("="):
            number = torch.frombuffer(bytearray(where[0]), dtype=types[kind[1:]]).item()
            given.append(number)
        else:
            width = types[kind].itemsize
            end = where[1] + (len(memory[where[0]]) - where[1]) // width * width
            given.append(blobs[where[0]][where[1] : end].view(types[kind]))
    options = {k: v for k, v in options if k != "signature"} | FIXED
    options["debug"] = bool(options.get("debug", 0))
    fn[(blocks,)](*given, **options)
    torch.cuda.synchronize()
    return [b.cpu().numpy().tobytes() for b in blobs]


def run(source, name, options, blocks, args, memory):
    if os.environ.get("WELD_TILES_ON") == "cuda":
        return run_on_gpu(source, name, options, blocks, args, memory)
    from triton.runtime import interpreter as it

    fn = function(source, name)
    blobs = [np.frombuffer(bytearray(m), np.uint8) for m in memory]
    given = []
    for kind, *where in args:
        dtype = TYPES[kind.removeprefix("*").partition(":")[0]]
        if kind.startswith("*"):
            at = blobs[where[0]].ctypes.data + where[1]
            assert ":" not in kind or (at - blobs[where[0]].ctypes.data - where[1]) % 16 == 0
            kind = tl.pointer_type(dtype)
            given.append(tl.tensor(it.TensorHandle(np.array([at], np.uint64), kind), kind))
        else:
            data = np.frombuffer(where[0], it._get_np_dtype(dtype))
            given.append(tl.tensor(it.TensorHandle(data, dtype), dtype))
    body = fn.rewrite()
    scope = it._patch_lang(fn.fn)
    it.interpreter_builder.set_grid_dim(blocks, 1, 1)
    try:
        for block in range(blocks):
            it.interpreter_builder.set_grid_idx(block, 0, 0)
            body(*given)
    finally:
        scope.restore() if hasattr(scope, "restore") else None
    return [b.tobytes() for b in blobs]


def compile_kernel(source, name, options, arch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    fn = function(source, name)
    options = dict(options)
    signature, attributes = {}, {}
    kinds = options.pop("signature").split()
    for i, (parameter, kind) in enumerate(zip(fn.arg_names, kinds, strict=True)):
        signature[parameter], _, multiple = kind.partition(":")
        if multiple:
            attributes[(i,)] = [["tt.divisibility", int(multiple)]]
    options["debug"] = bool(options.get("debug", 0))
    made = triton.compile(ASTSource(fn, signature, {}, attributes),
                          target=GPUTarget("cuda", arch, 32), options=options | FIXED)  # fmt: skip
    assert made.asm["cubin"]
    return made.asm["ptx"]


def main():
    warnings.simplefilter("ignore")
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            what, *request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (run if what == "run" else compile_kernel)(*request)
        except Exception as e:
            chain = []
            while e is not None:
                chain.append(f"{type(e).__name__}: {e}")
                e = e.__cause__
            answer = chain
            out.write(pickle.dumps(("error", answer)))
        else:
            out.write(pickle.dumps(("done", answer)))
        out.flush()


if __name__ == "__main__":
    main()
