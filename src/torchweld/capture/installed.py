"""Which code is installed: what it consists of is not expected to change."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

_INSTALLED = (*(sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")),
              str(Path(__file__).parent), "<")  # fmt: skip


@functools.cache
def of_the_user(filename: str) -> bool:
    """Whether code comes from the user's own files."""
    return not filename.startswith(_INSTALLED) and "site-packages" not in filename
