"""The disk cache: bytes by content key, safe against other processes, torn writes and strangers.

One entry is one file: the payload, then a 48-byte trailer (magic, length, sha256). A shared library
keeps loading with bytes after its end, so code and checksum are renamed into place together.
Nothing read from here is ever unpickled or executed before owner, mode and checksum were checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchweld.base.events import emit

LAYOUT = "v1"
LIMIT_BYTES = 2 << 30
_MAGIC = b"weldsum1"
_TRAILER = struct.Struct("<8sQ32s")
_LOCK_SECONDS = 600.0
_LOCKS = "torchweld.runtime.store_lock"  # loaded when something is compiled
_EVICT_EVERY = 64
_TOUCH_AFTER = 3600.0


def seal(payload: bytes) -> bytes:
    """The payload with its trailer."""
    return payload + _TRAILER.pack(_MAGIC, len(payload), hashlib.sha256(payload).digest())


def unseal(blob: bytes) -> bytes | None:
    """The payload, or None if the bytes are not exactly what `seal` wrote."""
    if len(blob) < _TRAILER.size:
        return None
    magic, length, digest = _TRAILER.unpack(blob[-_TRAILER.size :])
    payload = blob[: -_TRAILER.size]
    whole = magic == _MAGIC and length == len(payload)
    return payload if whole and hashlib.sha256(payload).digest() == digest else None


def damaged(path: Path, why: str) -> None:
    emit("runtime", "W303", f"{path}: {why}", code="W303", path=str(path), why=why)


def unwritable(path: Path, why: str) -> None:
    emit("runtime", "W304", f"{path}: {why}", code="W304", path=str(path), why=why)


def stranger(st: os.stat_result) -> str:
    """Why a file or folder must not be trusted, or the empty string."""
    if st.st_uid != os.geteuid():
        return f"owned by user {st.st_uid}, not by {os.geteuid()}"
    return "writable by everybody" if st.st_mode & stat.S_IWOTH else ""


@dataclass(slots=True)
class Store:
    """A cache folder. `root` None: nothing is kept. All methods answer, none raises OSError."""

    root: Path | None
    limit: int = LIMIT_BYTES
    _puts: int = 0
    _reported: set[str] = field(default_factory=set)

    def path(self, kind: str, key: str) -> Path | None:
        """Where the entry lives (it need not exist)."""
        return None if self.root is None else self.root / LAYOUT / kind / key[:2] / key

    def folder(self, kind: str, key: str) -> Path | None:
        """The entry's folder, made if needed; None if it cannot be used (recorded once)."""
        path = self.path(kind, key)
        if path is None or self.root is None:
            return None
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self._once(unwritable, self.root, str(error))
            return None
        return path.parent if self._ours(path.parent) else None

    def get(self, kind: str, key: str) -> bytes | None:
        """The bytes put under the key, or None. A damaged or foreign entry is removed."""
        path = self.path(kind, key)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if path.is_symlink():
                self._discard(path, f"not a plain file ({error.strerror})")
            return None
        with os.fdopen(fd, "rb") as file:
            if not self._ours(path.parent):
                return None
            st = os.fstat(fd)
            why = stranger(st) if stat.S_ISREG(st.st_mode) else "not a plain file"
            payload = None if why else unseal(file.read())
        if payload is None:
            self._discard(path, why or "checksum does not match")
            return None
        if time.time() - st.st_mtime > _TOUCH_AFTER:
            with contextlib.suppress(OSError):
                os.utime(path)  # the eviction order is by last use
        return payload

    def put(self, kind: str, key: str, payload: bytes) -> Path | None:
        """Store the bytes; the entry's path, or None if it could not be written (recorded)."""
        folder = self.folder(kind, key)
        if folder is None:
            return None
        temporary = ""
        try:
            fd, temporary = tempfile.mkstemp(prefix=".put-", dir=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(seal(payload))
            os.replace(temporary, folder / key)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            self._once(unwritable, folder, str(error))
            return None
        self._puts += 1
        if self._puts % _EVICT_EVERY == 1:
            self.evict()
        return folder / key

    @staticmethod
    def stripe(key: str) -> str:
        """Keys of one stripe share a lock: who holds several takes each stripe once, in order."""
        return key[:2]

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Hold the key's lock across processes; gives False if there is no lock to be had.

        Locks are striped over 256 files, because a lock file can never be removed safely.
        """
        lock = None
        if self.root is not None:
            folder = self.root / LAYOUT / "locks"
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if self._ours(folder):
                    path = folder / self.stripe(key)
                    lock = importlib.import_module(_LOCKS).acquired(path, _LOCK_SECONDS)
            except (OSError, NotImplementedError) as error:
                lock = None
                self._once(unwritable, self.root, str(error))
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def evict(self) -> int:
        """Remove the entries used longest ago until 80% of the limit is kept; bytes removed."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        freed = 0
        if total > self.limit:
            for _, size, path in entries:
                if total - freed <= self.limit * 0.8:
                    break
                with contextlib.suppress(OSError):
                    path.unlink()
                    freed += size
        return freed

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        if self.root is None:
            return
        for path in (self.root / LAYOUT).glob("*/??/*"):
            with contextlib.suppress(OSError):
                st = path.lstat()
                yield st.st_mtime, st.st_size, path

    def _ours(self, folder: Path) -> bool:
        """Whether every folder from the root to here belongs to us alone (recorded if not)."""
        chain = [folder]
        while chain[-1] != self.root and chain[-1] != chain[-1].parent:
            chain.append(chain[-1].parent)
        for part in chain:
            try:
                # The root itself may be a link that the user set up; what is inside may not.
                st = part.stat() if part == self.root else part.lstat()
            except OSError as error:
                self._once(unwritable, part, str(error))
                return False
            why = stranger(st) if stat.S_ISDIR(st.st_mode) else "not a folder"
            if why:
                self._once(damaged, part, why)
                return False
        return True

    def _discard(self, path: Path, why: str) -> None:
        damaged(path, why)
        with contextlib.suppress(OSError):
            path.unlink()

    def _once(self, report: Callable[[Path, str], None], path: Path, why: str) -> None:
        """One event per folder and kind: a broken cache must not flood the log."""
        known = f"{path}|{report.__name__}"
        if known not in self._reported:
            self._reported.add(known)
            report(path, why)
