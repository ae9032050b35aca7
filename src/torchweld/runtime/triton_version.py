"""Which Triton is installed, without importing it, and what else its code depends on."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path

from torchweld.base.errors import BackendError

OLDEST = (3, 6)
# What of the user's environment reaches the compiler: tools of their own.
TOOLS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBDEVICE_PATH")
_INSTALL = "pip install 'triton>=3.6'"


def triton_version() -> str:
    """The version of the Triton that `import triton` would find.

    Errors: BackendError W301 if there is none or it is too old, with the command that helps.
    """
    version = _version()
    if version is None:
        raise BackendError("W301", f"Triton is not installed: {_INSTALL}", fix=_INSTALL)
    if _numbers(version) < OLDEST:
        raise BackendError("W301", f"Triton {version} is too old: {_INSTALL}", fix=_INSTALL)
    return version


@functools.lru_cache(maxsize=1)
def _version() -> str | None:
    """None: not installed. Reads the text, because importing triton takes 0.2 s."""
    try:
        spec = importlib.util.find_spec("triton")
        text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    except (ImportError, ValueError, OSError):
        return None
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)['\"]", text)
    return found.group(1) if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


def compiler_key() -> str:
    """What a compiled kernel depends on besides its text and options: Triton and its tools.

    Errors: BackendError W301.
    """
    return "\0".join([triton_version(), *map(_tool, TOOLS)])


def _tool(name: str) -> str:
    path = os.environ.get(name, "")
    if not path:
        return ""
    try:
        st = os.stat(path)
    except OSError:
        return path
    return f"{path} {st.st_size} {st.st_mtime_ns}"
