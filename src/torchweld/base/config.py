"""One frozen Config: the only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

CHANNELS = (
    "capture",
    "graph_breaks",
    "guards",
    "recompiles",
    "graph",
    "loop",
    "fusion",
    "output_code",
    "perf",
    "runtime",
    "cudagraphs",
)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Each field names its variable, values and effect in its metadata."""

    mode: str = field(
        default="on",
        metadata={
            "env": "TORCHWELD",
            "values": "on, off, strict",
            "effect": "off: run everything eagerly; strict: raise where eager would step in",
        },
    )
    logs: tuple[str, ...] = field(
        default=(),
        metadata={
            "env": "TORCHWELD_LOGS",
            "values": "comma-separated channels, or all",
            "effect": "print these channels to stderr: " + ", ".join(CHANNELS),
        },
    )
    dump: str = field(
        default="",
        metadata={
            "env": "TORCHWELD_DUMP",
            "values": "folder",
            "effect": "write each stage's text form there",
        },
    )
    events: str = field(
        default="",
        metadata={
            "env": "TORCHWELD_EVENTS",
            "values": "file",
            "effect": "append one JSON line per event",
        },
    )
    verify: bool = field(
        default=False,
        metadata={
            "env": "TORCHWELD_VERIFY",
            "values": "0, 1",
            "effect": "verify the IR after each pass, and fill memory that nobody wrote",
        },
    )
    explain: bool = field(
        default=False,
        metadata={
            "env": "TORCHWELD_EXPLAIN",
            "values": "0, 1",
            "effect": "after exit print graph breaks, recompiles and refusals per user line",
        },
    )
    stop: str = field(
        default="",
        metadata={
            "env": "TORCHWELD_STOP",
            "values": "capture, graph, lower, fuse",
            "effect": "compile up to this stage and run the rest through ATen",
        },
    )
    skip: tuple[str, ...] = field(
        default=(),
        metadata={
            "env": "TORCHWELD_SKIP",
            "values": "comma-separated pass names",
            "effect": "leave these passes out",
        },
    )
    cache_dir: str = field(
        default="",
        metadata={
            "env": "TORCHWELD_CACHE_DIR",
            "values": "folder, off",
            "effect": "where compiled programs live",
        },
    )
    threads: int = field(
        default=0,
        metadata={
            "env": "TORCHWELD_THREADS",
            "values": "n",
            "effect": "compile workers; 0 means one per core",
        },
    )
    recompile_limit: int = field(
        default=8,
        metadata={
            "env": "TORCHWELD_RECOMPILE_LIMIT",
            "values": "n",
            "effect": "entries of one function after which it runs eagerly",
        },
    )
    dynamic: bool = field(
        default=True,
        metadata={
            "env": "TORCHWELD_DYNAMIC",
            "values": "0, 1",
            "effect": "sizes that differ between calls become symbols; 0: each is compiled",
        },
    )
    dynamic_sources: str = field(
        default="",
        metadata={
            "env": "TORCHWELD_DYNAMIC_SOURCES",
            "values": "names, comma-separated",
            "effect": "inputs that vary from the first call on, as torch names them: L['x'], "
            "L['self'].scale, L['x']:0 for one dimension, or regular expressions",
        },
    )
    freeze: bool = field(
        default=False,
        metadata={
            "env": "TORCHWELD_FREEZE",
            "values": "0, 1",
            "effect": "parameters and buffers never change: compute what depends on them once",
        },
    )
    memory_budget: float = field(
        default=1.0,
        metadata={
            "env": "TORCHWELD_MEMORY_BUDGET",
            "values": "0 to 1",
            "effect": "how much a graph with gradients may save for its backward: 1: what is "
            "fastest; 0: compute everything again that can be",
        },
    )
    driver: str = field(
        default="native",
        metadata={
            "env": "TORCHWELD_DRIVER",
            "values": "native, python",
            "effect": "python: run launch lists with the readable reference driver",
        },
    )

    cudagraphs: bool = field(
        default=True,
        metadata={
            "env": "TORCHWELD_CUDAGRAPHS",
            "values": "0, 1",
            "effect": "run compiled graphs as CUDA graphs where that is possible and pays",
        },
    )
    graphs_limit: int = field(
        default=64,
        metadata={
            "env": "TORCHWELD_GRAPHS_LIMIT",
            "values": "n",
            "effect": "CUDA graphs of the process; the one not used for longest makes room",
        },
    )
    hot_sizes: int = field(
        default=16,
        metadata={
            "env": "TORCHWELD_HOT_SIZES",
            "values": "n",
            "effect": "of a graph that serves a range of sizes: choices of sizes that keep memory "
            "and CUDA graphs of their own; 0: none",
        },
    )
    fixed_sizes: int = field(
        default=4,
        metadata={
            "env": "TORCHWELD_FIXED_SIZES",
            "values": "n",
            "effect": "of a graph that serves a range of sizes: choices of sizes, among those that "
            "come very often, that are compiled for themselves in the background and kept if their "
            "calls are faster; 0: none",
        },
    )
    cublaslt: bool = field(
        default=True,
        metadata={
            "env": "TORCHWELD_CUBLASLT",
            "values": "0, 1",
            "effect": "compute matrix products of launch lists by cuBLASLt, with plans that are "
            "made once, instead of calling ATen",
        },
    )
    gpu_random: bool = field(
        default=True,
        metadata={
            "env": "TORCHWELD_GPU_RANDOM",
            "values": "0, 1",
            "effect": "draw random numbers in CUDA kernels of our own, from eager's stream, "
            "instead of calling ATen; compared with ATen's at first use of a device",
        },
    )
    interpret: bool = field(
        default=False,
        metadata={
            "env": "TORCHWELD_INTERPRET",
            "values": "0, 1",
            "effect": "treat CPU tensors as CUDA tensors would be, and run the Triton kernels in "
            "Triton's interpreter: slow, for tests of the GPU's code without a GPU",
        },
    )

    def cache_path(self) -> Path | None:
        """The cache folder, or None when caching is off."""
        if self.cache_dir == "off":
            return None
        if self.cache_dir:
            return Path(self.cache_dir)
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return Path(base) / "torchweld"


def _parse(kind: str, text: str) -> object:
    if kind == "bool":
        return text.strip().lower() not in ("", "0", "off", "false", "no")
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text)
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text.strip()


def from_environ(environ: Mapping[str, str] | None = None) -> Config:
    """The Config that the environment asks for.

    Errors: ValueError naming the variable when a value cannot be read.
    """
    env = os.environ if environ is None else environ
    given: dict[str, object] = {}
    for f in fields(Config):
        text = env.get(f.metadata["env"])
        if text is None:
            continue
        try:
            given[f.name] = _parse(str(f.type), text)
        except ValueError as error:
            raise ValueError(f"{f.metadata['env']}={text!r}: {error}") from None
    return replace(Config(), **given)  # type: ignore[arg-type]


_current: Config = from_environ()


def current() -> Config:
    """The Config in force."""
    return _current


@contextmanager
def override(**changes: object) -> Iterator[Config]:
    """Use a changed Config inside the block (tests, tools); not meant for threads."""
    global _current
    before = _current
    _current = replace(before, **changes)  # type: ignore[arg-type]
    try:
        yield _current
    finally:
        _current = before


def table() -> str:
    """The settings as a Markdown table (docs/env.md is generated from it)."""
    rows = ["| variable | values | effect |", "|---|---|---|"]
    rows += [
        f"| {m['env']} | {m['values']} | {m['effect']} |"
        for m in (f.metadata for f in fields(Config))
    ]
    return "\n".join(rows)
