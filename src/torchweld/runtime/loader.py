"""Source text -> callable functions: from this process, from the disk cache, or by compiling."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from torchweld.base.errors import BackendError, InternalError
from torchweld.base.events import emit, timed
from torchweld.ir.program import Program
from torchweld.runtime import toolchain
from torchweld.runtime.store import Store

# Part of every key: raise it when the meaning of Artifact's function signature changes.
ABI = 1
_KIND = "so"


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared library; it stays mapped until the process ends."""

    handle: ctypes.CDLL
    key: str

    def address(self, name: str) -> int:
        """The address of a function.

        Errors: BackendError W302 if the unit does not define it.
        """
        try:
            return ctypes.cast(getattr(self.handle, name), ctypes.c_void_p).value or 0
        except AttributeError:
            raise BackendError("W302", f"the unit does not define {name}") from None


_loaded: dict[str, Library] = {}
_guard = threading.Lock()


@functools.lru_cache(maxsize=64)
def _digest(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> str:
    h = hashlib.sha256()
    for name, _, _ in stamps:
        h.update(name.encode() + b"\0" + (folder / name).read_bytes() + b"\0")
    return h.hexdigest()


def headers_digest(folder: Path | None) -> str:
    """A digest of every header the unit could include (read again only when one changes)."""
    if folder is None:
        return ""
    stats = [(p.name, p.stat()) for p in sorted(folder.glob("*.h"))]
    return _digest(folder, tuple((name, st.st_size, st.st_mtime_ns) for name, st in stats))


def key_of(source: str, flags: tuple[str, ...], include_dir: Path | None) -> str:
    """The content key: everything that the machine code depends on."""
    compiler = toolchain.find_compiler()
    parts = (
        str(ABI), source, "\0".join(flags), compiler.version, compiler.command[0],
        toolchain.cpu_fingerprint(), headers_digest(include_dir),
    )  # fmt: skip
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "little") + part.encode())
    return h.hexdigest()


def load(source: str, flags: tuple[str, ...], include_dir: Path | None, store: Store) -> Library:
    """The library of a translation unit, compiled at most once per content and machine.

    Errors: BackendError W301, W302.
    """
    key = key_of(source, flags, include_dir)
    library = _loaded.get(key)
    if library is not None:
        return library
    library = _from_store(key, store)
    if library is None:
        with store.lock(key) as locked:
            # Whoever held the lock before us may have compiled it.
            library = _from_store(key, store) if locked else None
            if library is None:
                library = _build(key, source, flags, include_dir, store)
    with _guard:
        return _loaded.setdefault(key, library)


def functions_of(program: Program, include_dir: Path | None, store: Store) -> dict[str, int]:
    """The address of every C++ function of a Program. Errors: BackendError W301, W302."""
    found: dict[str, int] = {}
    asked = program.meta.get("cxx_flags")
    if asked is not None and not isinstance(asked, (tuple, list)):
        raise InternalError(f"meta['cxx_flags'] is {asked!r}, not a tuple of flags")
    flags = toolchain.all_flags(None if asked is None else tuple(str(f) for f in asked))
    for artifact in program.artifacts:
        if artifact.lang == "cpp":
            library = load(artifact.source, flags, include_dir, store)
            found.update((name, library.address(name)) for name in artifact.functions)
        elif artifact.lang != "triton":
            raise InternalError(f"no loader for {artifact.lang!r} artifacts")
    return found


def _from_store(key: str, store: Store) -> Library | None:
    path = store.path(_KIND, key)
    if path is None or store.get(_KIND, key) is None:
        return None
    try:
        return Library(ctypes.CDLL(str(path)), key)
    except OSError as error:  # for instance a folder mounted noexec
        emit("runtime", "W303", str(error), code="W303", path=str(path), why=str(error))
        return None


def _build(
    key: str, source: str, flags: tuple[str, ...], include_dir: Path | None, store: Store
) -> Library:
    """Compile in a private folder, keep a copy in the cache if it takes one, and load."""
    with tempfile.TemporaryDirectory(prefix="torchweld-") as scratch:
        out = Path(scratch) / f"{key[:16]}.so"
        with timed("compile", key=key[:16], bytes=len(source)):
            try:
                toolchain.compile(source, flags, include_dir, out)
            except OSError as error:
                raise BackendError("W302", f"the result could not be written: {error}") from None
        kept = store.put(_KIND, key, out.read_bytes())
        # Mapped pages stay valid after the scratch file is gone.
        for path in (kept, out):
            try:
                if path is not None:
                    return Library(ctypes.CDLL(str(path)), key)
            except OSError as error:
                why = str(error)
        raise BackendError("W302", f"the compiled library does not load: {why}")
