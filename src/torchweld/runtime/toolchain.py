"""The C++ compiler of this machine: which one, its version, and one call that runs it."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torchweld.base.errors import BackendError
from torchweld.base.events import emit

_NAMES = ("g++", "clang++", "c++")
_TIMEOUT = 600.0
_SHOWN_LINES = 20

# What the loader needs, whatever the code generator asks for. No -fopenmp: threads come from the
# OpenMP runtime that torch loaded, and a second one in the process would oversubscribe the cores.
SHAPE_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-pipe", "-x", "c++")
# Value-safe speed: errno and the trap flags are not observable from a tensor program. Contraction
# stays off, so that a*b+c is fused only where the generated code says so.
DEFAULT_FLAGS = ("-O2", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C++, and the first line of what it says about itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The compiler that CXX names, else the first of g++, clang++ and c++ on the PATH.

    Errors: BackendError W301 naming what was looked for; the event is recorded once per search.
    """
    # CXX and PATH belong to the toolchain, not to torchweld's settings, so Config has no field.
    found = _find(os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    if isinstance(found, str):
        raise BackendError("W301", found)
    return found


@functools.lru_cache(maxsize=16)
def _find(cxx: str, path: str) -> Compiler | str:
    """A Compiler, or why there is none (cached too, so that the search and its event run once)."""
    tried = []
    for command in [tuple(shlex.split(cxx))] if cxx.strip() else [(n,) for n in _NAMES]:
        where = shutil.which(command[0], path=path)
        version = _version((where, *command[1:])) if where else None
        if where and version:
            return Compiler((where, *command[1:]), version)
        tried.append(f"{command[0]} ({'does not run' if where else 'not found'})")
    why = ("CXX names " if cxx.strip() else "looked on PATH for ") + ", ".join(tried)
    emit("runtime", "W301", why, code="W301", why=why)
    return why


def _version(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else None


@functools.lru_cache(maxsize=1)
def cpu_fingerprint() -> str:
    """A digest of what -march=native depends on, so that machines sharing a cache do not mix."""
    parts = [platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    wanted = ("flags", "model name", "vendor_id", "cpu family", "model", "Features", "CPU part")
    seen = set()
    for line in text.splitlines():
        name = line.partition(":")[0].strip()
        if name in wanted and name not in seen:
            seen.add(name)
            parts.append(line)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def native_flags() -> tuple[str, ...]:
    """The flags that make the compiler use this machine's instructions."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i686"):
        return ("-march=native",)
    return ("-mcpu=native",) if machine in ("aarch64", "arm64") else ()


def all_flags(asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The whole flag list: what the Program asked for (else the defaults), in the shape we load."""
    chosen = DEFAULT_FLAGS if asked is None else asked
    native = () if any(f.startswith(("-march", "-mcpu")) for f in chosen) else native_flags()
    return (*SHAPE_FLAGS, *chosen, *native)


def compile(source: str, flags: tuple[str, ...], include_dir: Path | None, out: Path) -> None:
    """Compile a translation unit to the shared library `out`.

    Cost: 0.1 s for an empty unit on the 2-core build machine, nearly all of it g++ and ld.
    Errors: BackendError W301 without a compiler, W302 with the compiler's own words if it fails.
    OSError (disk full, folder not writable) when the result could not be written.
    """
    compiler = find_compiler()
    include = ("-I", str(include_dir)) if include_dir is not None else ()
    with tempfile.TemporaryDirectory(prefix=".cc-", dir=out.parent) as scratch:
        made = Path(scratch) / "unit.so"
        command = [*compiler.command, *flags, *include, "-o", str(made), "-"]
        # The compiler's own temporaries go where the result goes: one disk to run full.
        env = {**os.environ, "TMPDIR": scratch, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                command, input=source, capture_output=True, text=True, timeout=_TIMEOUT,
                check=False, env=env,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BackendError("W302", f"no result after {_TIMEOUT:.0f} s") from None
        if done.returncode != 0:
            _fail(done.returncode, done.stderr, scratch)
        os.replace(made, out)


def _fail(status: int, text: str, folder: str) -> None:
    """Raise what a failed compiler run means: the disk's fault, or the source's."""
    if "No space left on device" in text or shutil.disk_usage(folder).free < 1 << 20:
        raise OSError(28, "No space left on device", folder)
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines()
    shown = "\n       ".join(lines[:_SHOWN_LINES])
    died = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    raise BackendError("W302", f"{died}: {shown}")
