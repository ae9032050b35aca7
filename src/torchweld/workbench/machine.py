"""What a measurement was made on: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "triton", "numpy", "torchweld")


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that this file is in, with a + if files differ from it."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head, changed = (
            subprocess.run(("git", "-C", str(root), *args), capture_output=True, text=True,
                           check=True).stdout.strip()
            for args in (("rev-parse", "--short", "HEAD"),
                         ("status", "--porcelain", "-uno"))
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def describe() -> dict[str, Any]:
    """Machine and versions, ready for JSON."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": {name: _version(name) for name in PACKAGES if _version(name)},
        "commit": _commit(),
    }
