"""Program -> Executable: compile what it holds, and choose the driver."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from torchweld.base.config import Config
from torchweld.base.errors import InternalError
from torchweld.base.events import emit
from torchweld.ir.program import Program
from torchweld.runtime import loader, toolchain
from torchweld.runtime.native import Native, build, native
from torchweld.runtime.python_driver import PythonDriver
from torchweld.runtime.store import Store


class Executable(Protocol):
    """What a Program became: call it with its input tensors, get a tuple of its outputs.

    driver: "native" or "python". trim() gives back memory that is kept between calls.
    """

    @property
    def driver(self) -> str: ...

    @property
    def program(self) -> Program: ...

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]: ...

    def trim(self) -> None: ...


@functools.lru_cache(maxsize=8)
def store_for(root: Path | None) -> Store:
    """The one Store of a cache folder, so that what is reported once is reported once."""
    return Store(root)


def functions_of(program: Program, cfg: Config, include_dir: Path | None) -> Mapping[str, int]:
    """Compile and load every artifact; the address of every function that is launched.

    Errors: BackendError W301, W302.
    """
    found: dict[str, int] = {}
    store = store_for(cfg.cache_path())
    asked = program.meta.get("cxx_flags")
    if asked is not None and not isinstance(asked, (tuple, list)):
        raise InternalError(f"meta['cxx_flags'] is {asked!r}, not a tuple of flags")
    flags = toolchain.all_flags(None if asked is None else tuple(str(f) for f in asked))
    for artifact in program.artifacts:
        if artifact.lang != "cpp":
            raise InternalError(f"no loader for {artifact.lang!r} artifacts")
        library = loader.load(artifact.source, flags, include_dir, store)
        found.update((name, library.address(name)) for name in artifact.functions)
    return found


def make_executable(program: Program, cfg: Config, include_dir: Path | None) -> Executable:
    """The Program, ready to be called, on the driver that `cfg.driver` names.

    `include_dir`: where the sources' own headers are; it is part of the cache key by content.
    Errors: BackendError W301, W302.
    """
    functions = functions_of(program, cfg, include_dir)
    if cfg.driver == "native":
        driver = native()
        if isinstance(driver, Native):
            return build(program, functions, driver, cfg.verify)
        report_missing(driver)
    return PythonDriver(program, functions, cfg.verify)


@functools.lru_cache(maxsize=8)
def report_missing(why: str) -> None:
    """Record, once per reason, that launch lists run on the Python driver."""
    emit("runtime", "W305", why, code="W305", why=why)
