"""A kernel's text as a Python module, and the prelude that such texts import.

Triton reads the source of its functions from their file, so a text is a file before it is code.
Without torch and without triton: the text itself imports the latter.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PRELUDE = "weld_triton"


def load_module(path: Path, include_dir: str) -> ModuleType:
    """Run the text at `path`, with the prelude of `include_dir` importable by its name.

    Errors: whatever the text raises.
    """
    prelude = Path(include_dir) / f"{PRELUDE}.py"
    if include_dir and prelude.exists() and not _is_loaded(prelude):
        sys.modules[PRELUDE] = module = _module(PRELUDE, prelude)
        _run(module)
    module = _module(path.stem, path)
    _run(module)
    return module


def _is_loaded(prelude: Path) -> bool:
    known = sys.modules.get(PRELUDE)
    return known is not None and getattr(known, "__file__", None) == str(prelude)


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ImportError(f"{path} is not a Python file")
    return importlib.util.module_from_spec(spec)


def _run(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module)
