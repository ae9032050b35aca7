"""Every case of the benchmark by its name, and the suites."""

from __future__ import annotations

from torchweld.workbench.break_suites import BREAK_CASES
from torchweld.workbench.dynamic_suites import DYNAMIC_CASES, GPU_DYNAMIC_CASES
from torchweld.workbench.gpu_suites import GPU_CASES
from torchweld.workbench.suites import CASES, SUITES, Case
from torchweld.workbench.training_suites import GPU_TRAINING_CASES, TRAINING_CASES

_CASES = (*CASES, *TRAINING_CASES, *BREAK_CASES, *DYNAMIC_CASES, *GPU_CASES, *GPU_TRAINING_CASES,
          *GPU_DYNAMIC_CASES)  # fmt: skip
_BY_NAME = {case.name: case for case in _CASES}

ALL_SUITES: dict[str, tuple[str, ...]] = {
    **SUITES,
    "training": tuple(c.name for c in TRAINING_CASES),
    "breaks": tuple(c.name for c in BREAK_CASES),
    "dynamic": tuple(c.name for c in DYNAMIC_CASES),
    "gpu": tuple(c.name for c in GPU_CASES),
    "gpu-micro": tuple(c.name for c in GPU_CASES if c.group not in ("models", "compile")),
    "gpu-training": tuple(c.name for c in GPU_TRAINING_CASES),
    "gpu-dynamic": tuple(c.name for c in GPU_DYNAMIC_CASES),
    "gpu-models": tuple(c.name for c in GPU_CASES if c.group in ("models", "compile")),
}


def case_named(name: str) -> Case:
    """The case. Errors: KeyError if there is none."""
    return _BY_NAME[name]
