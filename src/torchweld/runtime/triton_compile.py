"""Job -> Cubin: one kernel through Triton's compiler, in this process.

Importing this module imports triton (0.2 s) but not torch. The server's children call it; the
client does only if it cannot have a server.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import cache
from triton.runtime.jit import JITFunction

from torchweld.runtime.triton_job import Cubin, Failed, Job, write_answer
from torchweld.runtime.triton_module import load_module

_ENTRY = re.compile(r"\.visible \.entry \w+\s*\((.*?)\)", re.DOTALL)
_SHOWN_LINES = 20

# A kernel that uses what all kernels use: compiling it fills what Triton sets up on first use.
_WARM = """
import triton
import triton.language as tl

@triton.jit
def warm(x, y):
    i = tl.arange(0, 256)
    v = tl.load(x + tl.program_id(0) * 256 + i).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + tl.program_id(0) * 256 + i, (e / tl.sum(e, 0)).to(tl.bfloat16))
"""


def compile_kernel(job: Job, folder: Path) -> Cubin | Failed:
    """What Triton makes of the job. `folder` is the job's own and holds its text.

    Errors: none; a compiler that crashes takes the process with it.
    """
    try:
        with triton.knobs.cache.scope():  # no trace in the user's own cache
            triton.knobs.cache.dir = str(folder / "cache")
            return _compile(job, folder)
    except Exception as error:  # Triton's errors have no common base
        return Failed(_shown(error))


def _compile(job: Job, folder: Path) -> Cubin:
    module = load_module(folder / f"{job.name}.py", job.include_dir)
    fn = getattr(module, job.name, None)
    if not isinstance(fn, JITFunction):
        raise TypeError(
            f"{job.name} is {type(fn).__name__}, not a compiled triton.jit function"
            " (is TRITON_INTERPRET set?)"
        )
    if len(fn.arg_names) != len(job.kinds):
        raise TypeError(f"{job.name} takes {len(fn.arg_names)} arguments, not {len(job.kinds)}")
    signature, attributes = {}, {}
    for i, (name, kind) in enumerate(zip(fn.arg_names, job.kinds, strict=True)):
        signature[name], _, multiple = kind.partition(":")
        if multiple:
            attributes[(i,)] = [["tt.divisibility", int(multiple)]]
    made = triton.compile(
        ASTSource(fn=fn, signature=signature, constexprs={}, attrs=attributes),
        target=GPUTarget("cuda", job.arch, 32),
        # Contraction would round a * b + c once where eager rounds twice; integers wrap;
        # subnormals are numbers.
        options={
            "num_warps": job.warps, "num_stages": job.stages, "debug": job.debug,
            "enable_fp_fusion": False, "enable_reflect_ftz": False, "sanitize_overflow": False,
        },
    )  # fmt: skip
    scratch = made.metadata.global_scratch_size or 0
    if scratch:
        raise ValueError(f"{job.name} needs {scratch} bytes of scratch memory per block")
    return Cubin(
        made.asm["cubin"], made.metadata.name, made.metadata.shared, made.metadata.num_warps,
        count_params(made.asm["ptx"]),
    )  # fmt: skip


def count_params(ptx: str) -> int:
    """How many parameters the kernel of a PTX text takes."""
    found = _ENTRY.search(ptx)
    if found is None:
        raise ValueError("the PTX text has no kernel")
    return found.group(1).count(".param")


def _shown(error: Exception) -> str:
    lines = [
        line
        for part in traceback.format_exception_only(error)
        for line in part.rstrip().splitlines()
    ]
    if not lines[0].partition(":")[2].strip() and error.__cause__ is not None:
        lines += [str(error.__cause__)]
    return "\n       ".join(lines[:_SHOWN_LINES])


def warm_up(folder: Path, arch: int) -> None:
    """Make the first compilation as fast as the others (0.5 s without, on the 2-core machine)."""
    _forget_own_hash()
    job = Job("warm", _WARM, ("*bf16:16", "*bf16:16"), arch)
    job.write(folder)
    compile_kernel(job, folder)


def _forget_own_hash() -> None:
    """Triton hashes its whole installation (0.3 s) to name entries of its own cache. The server's
    cache is a scratch folder that nobody else reads, so any name will do."""
    if hasattr(cache, "triton_key"):
        cache.triton_key = lambda: triton.__version__


def answer(folder: Path) -> None:
    """Compile the job of a folder and put the answer there."""
    write_answer(folder, compile_kernel(Job.read(folder), folder))


