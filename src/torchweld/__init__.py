"""torchweld: a compile stack for PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchweld.api import compile, is_compiling, memory_report, reset, statistics
    from torchweld.capture.marks import (
        cudagraph_mark_step_begin,
        graph_break,
        is_exporting,
        mark_dynamic,
        mark_static,
        mark_static_address,
        mark_unbacked,
        maybe_mark_dynamic,
    )
    from torchweld.explanation import Explanation, explain
    from torchweld.ir.dims import Dim, Shapes
    from torchweld.surface import (
        allow_in_graph,
        assume_constant_result,
        disable,
        nested_compile_region,
        set_stance,
        substitute_in_graph,
    )

__version__ = "0.1.0"
__all__ = [
    "Dim",
    "Explanation",
    "Shapes",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "is_exporting",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "memory_report",
    "nested_compile_region",
    "reset",
    "set_stance",
    "statistics",
    "substitute_in_graph",
]

# where the public names are
_PLACES = {
    "torchweld.api": ("compile", "is_compiling", "memory_report", "reset", "statistics"),
    "torchweld.capture.marks": (
        "cudagraph_mark_step_begin",
        "graph_break",
        "is_exporting",
        "mark_dynamic",
        "mark_static",
        "mark_static_address",
        "mark_unbacked",
        "maybe_mark_dynamic",
    ),
    "torchweld.explanation": ("Explanation", "explain"),
    "torchweld.ir.dims": ("Dim", "Shapes"),
    "torchweld.surface": (
        "allow_in_graph",
        "assume_constant_result",
        "disable",
        "nested_compile_region",
        "set_stance",
        "substitute_in_graph",
    ),
}


def __getattr__(name: str) -> Any:
    """Public names load on first use: `import torchweld` itself costs nearly nothing."""
    for place, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(place), name)
    raise AttributeError(f"module 'torchweld' has no attribute {name!r}")
