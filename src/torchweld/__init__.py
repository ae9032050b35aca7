"""torchweld: a compile stack for PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchweld.api import (
        Explanation,
        allow_in_graph,
        assume_constant_result,
        compile,
        cudagraph_mark_step_begin,
        disable,
        explain,
        graph_break,
        is_compiling,
        is_exporting,
        mark_dynamic,
        mark_static,
        mark_static_address,
        mark_unbacked,
        maybe_mark_dynamic,
        memory_report,
        nested_compile_region,
        reset,
        set_stance,
        statistics,
        substitute_in_graph,
    )

__version__ = "0.1.0"
__all__ = [
    "Explanation",
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


def __getattr__(name: str) -> Any:
    """Public names load on first use: `import torchweld` itself costs nearly nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'torchweld' has no attribute {name!r}")
    from torchweld import api

    return getattr(api, name)
