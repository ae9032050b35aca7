"""Run an unmodified script with torch.compile replaced by torchweld.compile."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import torchweld
from torchweld import api
from torchweld.base.events import emit
from torchweld.explanation import Explanation
from torchweld.pipeline import listening

# arguments of torch.compile that only tune what torchweld decides itself
_LEFT_OUT = frozenset(("name", "recompile_limit", "isolate_recompiles", "shapes_spec"))
# names of torch.compile's own compiler: a script that asks for them asks for "the compiler"
_OWN = frozenset(("inductor", "cudagraphs"))
# what else is ours while a script runs; torch's own would import torch._dynamo
_SURFACE = (
    "allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable",
    "is_compiling", "nested_compile_region", "reset", "set_stance", "substitute_in_graph",
)  # fmt: skip


def compile_like_torch(model: Any = None, **kwargs: Any) -> Any:
    """torchweld.compile with the arguments that torch.compile takes."""
    for name in sorted(_LEFT_OUT & kwargs.keys()):
        emit("capture", "argument left out", f"torch.compile({name}=...)", argument=name)
        del kwargs[name]
    if kwargs.get("backend") in _OWN:
        del kwargs["backend"]
    return api.compile(model, **kwargs)


def replacements() -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    """What is replaced while a script runs: owner, name, new value."""
    return (
        (torch, "compile", compile_like_torch),
        (torch.compiler, "compile", compile_like_torch),
        *((torch.compiler, name, getattr(torchweld, name)) for name in _SURFACE),
    )


def run(script: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run `script` (a file, or a module's name) as __main__, with `arguments` in sys.argv.

    Errors: whatever the script raises, SystemExit included.
    """
    before = (list(sys.argv), list(sys.path))
    replaced = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements()]
    for owner, name, value in replacements():
        setattr(owner, name, value)
    sys.argv = [script, *arguments]
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path = before
        for owner, name, value in replaced:
            setattr(owner, name, value)


def explain(script: str, arguments: Sequence[str], *, module: bool = False,
            guards: bool = False) -> None:  # fmt: skip
    """Run a script, then print what was compiled and what ran eagerly, and why."""
    with listening() as notes:
        try:
            run(script, arguments, module=module)
        finally:
            counts = ", ".join(f"{v} {k}" for k, v in api.statistics().items())
            print(f"\ntorchweld: {counts}\n{Explanation(notes).text(guards)}")
