"""Triton artifacts -> functions that Triton's interpreter runs on CPU tensors, for tests.

Triton decides when it is imported whether its functions are interpreted, so `prepare` comes first.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchweld.base.errors import BackendError
from torchweld.ir.dtype import FLOAT8
from torchweld.ir.program import Artifact
from torchweld.runtime.calls import TORCH_DTYPE
from torchweld.runtime.triton_loader import job_of
from torchweld.runtime.triton_module import load_module
from torchweld.runtime.triton_version import triton_version

_TOO_LATE = (
    "triton was imported before TRITON_INTERPRET=1 was set:"
    " set it in the environment, or import torchweld first"
)
# Triton's types of numbers -> the names in triton.language, and how numpy holds them there.
_NUMBERS = {
    "fp64": ("float64", "float64"), "fp32": ("float32", "float32"), "fp16": ("float16", "float16"),
    "bf16": ("bfloat16", "uint16"), "i64": ("int64", "int64"), "i32": ("int32", "int32"),
    "i16": ("int16", "int16"), "i8": ("int8", "int8"), "u8": ("uint8", "uint8"),
    "i1": ("int1", "bool"),
}  # fmt: skip

_FLOAT8 = frozenset(TORCH_DTYPE[d] for d in FLOAT8)

_lock = threading.Lock()


def prepare() -> None:
    """Make Triton interpret. Call it before anything imports triton (torch._dynamo does)."""
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"


@dataclass(frozen=True, slots=True)
class Interpreted:
    """One kernel."""

    name: str
    fn: Any
    kinds: tuple[str, ...]
    debug: bool

    def __call__(self, blocks: int, tensors: Sequence[torch.Tensor]) -> None:
        """Run every block, one after the other.

        Errors: AssertionError if the kernel found an index out of range.
        """
        args = [
            codes(t.detach()) if kind.startswith("*") else _number(kind, t)
            for kind, t in zip(self.kinds, tensors, strict=True)
        ]
        builder = _parts()[1].interpreter_builder
        with _lock:  # the interpreter's state belongs to the process
            # as compiled: checks only where they are asked for, integers wrap
            before = builder.options
            builder.options = replace(before, debug=self.debug, sanitize_overflow=False)
            try:
                self.fn[(blocks,)](*args)
            except Exception as error:
                failed = _failed_check(error) if self.debug else None
                if failed is None:
                    raise
                raise failed from None
            finally:
                builder.options = before


def _failed_check(error: BaseException | None) -> AssertionError | None:
    """The failed tl.device_assert behind an error of the interpreter, if there is one."""
    while error is not None and not isinstance(error, AssertionError):
        error = error.__cause__
    return error


@functools.lru_cache(maxsize=1)
def _parts() -> tuple[Any, Any, Any]:
    """triton.language, the interpreter's module and numpy. Errors: BackendError W301, W302."""
    triton_version()
    prepare()
    language = importlib.import_module("triton.language")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    if not isinstance(language.max, interpreter.InterpretedFunction):
        raise BackendError("W302", _TOO_LATE)
    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is not None:
        vars(interpreter)["_patch_lang_tensor"] = functools.partial(_with_ends, patch)
    return language, interpreter, importlib.import_module("numpy")


def _with_ends(patch: Any, tensor: Any, scope: Any) -> None:
    """What the interpreter does to tensors, and a number may end a range: it holds numbers in
    arrays of one element, which numpy from 2.4 on takes for no integers."""
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))


def _number(kind: str, t: torch.Tensor) -> object:
    """A tensor of one element as the argument that a kernel gets by value."""
    language, interpreter, numpy = _parts()
    ours, held = _NUMBERS[kind.partition(":")[0]]
    flat = codes(t.detach()).reshape(1)
    if ours == "bfloat16":
        flat = flat.view(torch.uint16)
    scalar = getattr(language, ours)
    handle = interpreter.TensorHandle(flat.numpy().astype(getattr(numpy, held)), scalar)
    return language.tensor(handle, scalar)


def codes(t: torch.Tensor) -> torch.Tensor:
    """`t` itself, or the same memory as the codes of its 8-bit floats, which kernels take."""
    return t.view(torch.uint8) if t.dtype in _FLOAT8 else t


@functools.lru_cache(maxsize=1)
def _texts() -> tempfile.TemporaryDirectory[str]:
    """Where the texts lie: the interpreter reads them when a kernel first runs."""
    return tempfile.TemporaryDirectory(prefix="torchweld-interpret-")


def kernels(artifacts: Iterable[Artifact], include_dir: Path | None) -> Mapping[str, Interpreted]:
    """Every kernel, ready to run.

    Errors: BackendError W301 without Triton, W302 if a text does not run.
    """
    made = {}
    for artifact in artifacts:
        _parts()
        job = job_of(artifact, 0, include_dir)
        folder = Path(tempfile.mkdtemp(dir=_texts().name))
        job.write(folder)
        try:
            fn = getattr(load_module(folder / f"{job.name}.py", job.include_dir), job.name)
        except Exception as error:  # a text may raise anything
            raise BackendError("W302", f"the kernel {job.name}: {error!r}") from error
        made[job.name] = Interpreted(job.name, fn, job.kinds, job.debug)
    return made
