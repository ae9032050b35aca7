"""Every case of the benchmark by its name, and the suites."""

from __future__ import annotations

from torchweld.workbench.gpu_suites import GPU_CASES
from torchweld.workbench.suites import CASES, SUITES, Case

_BY_NAME = {case.name: case for case in (*CASES, *GPU_CASES)}

ALL_SUITES: dict[str, tuple[str, ...]] = {
    **SUITES,
    "gpu": tuple(c.name for c in GPU_CASES),
    "gpu-micro": tuple(c.name for c in GPU_CASES if c.group not in ("models", "compile")),
    "gpu-models": tuple(c.name for c in GPU_CASES if c.group in ("models", "compile")),
}


def case_named(name: str) -> Case:
    """The case. Errors: KeyError if there is none."""
    return _BY_NAME[name]
