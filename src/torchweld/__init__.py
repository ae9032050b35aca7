"""torchweld: a compile stack for PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchweld.api import (
        Explanation,
        compile,
        disable,
        explain,
        is_compiling,
        memory_report,
        reset,
        statistics,
    )

__version__ = "0.1.0"
__all__ = [
    "Explanation",
    "compile",
    "disable",
    "explain",
    "is_compiling",
    "memory_report",
    "reset",
    "statistics",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use: `import torchweld` itself costs nearly nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'torchweld' has no attribute {name!r}")
    from torchweld import api

    return getattr(api, name)
