"""Triton artifacts -> compiled kernels: from this process, from the disk cache, or by compiling."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torchweld.base.errors import BackendError, InternalError
from torchweld.base.events import emit, timed
from torchweld.ir.program import Artifact
from torchweld.runtime.store import Store
from torchweld.runtime.triton_job import Cubin, Failed, Job
from torchweld.runtime.triton_module import PRELUDE
from torchweld.runtime.triton_service import SERVICE
from torchweld.runtime.triton_version import compiler_key

__all__ = ["Cubin", "job_of", "key_of", "kinds_of", "load"]

# Part of every key: raise it when what is done to a text changes.
ABI = 1
_KIND = "cubin"

_loaded: dict[str, Cubin] = {}


def kinds_of(artifact: Artifact) -> tuple[str, ...]:
    """Triton's types of the parameters, ":16" behind an aligned pointer."""
    return tuple(str(_option(artifact, "signature")).split())


def _option(artifact: Artifact, name: str, default: int | str | None = None) -> int | str:
    value = dict(artifact.options).get(name, default)
    if value is None:
        raise InternalError(f"the kernel {artifact.functions} has no option {name!r}")
    return value


def job_of(artifact: Artifact, arch: int, include_dir: Path | None) -> Job:
    """The artifact as a question to the compiler."""
    (name,) = artifact.functions
    return Job(
        name, artifact.source, kinds_of(artifact), arch,
        warps=int(_option(artifact, "num_warps", 4)),
        stages=int(_option(artifact, "num_stages", 1)),
        debug=bool(_option(artifact, "debug", 0)), include_dir=str(include_dir or ""),
    )  # fmt: skip


def key_of(job: Job, compiler: str, prelude: str) -> str:
    """The content key: everything that the machine code depends on."""
    h = hashlib.sha256()
    parts = (str(ABI), job.name, job.source, " ".join(job.kinds), str(job.arch), str(job.warps),
             str(job.stages), str(job.debug), compiler, prelude)  # fmt: skip
    for part in parts:
        h.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return h.hexdigest()


def prelude_digest(include_dir: Path | None) -> str:
    """A digest of what kernels import."""
    try:
        text = (include_dir / f"{PRELUDE}.py").read_bytes() if include_dir is not None else b""
    except OSError:
        text = b""
    return hashlib.sha256(text).hexdigest()


def load(
    artifacts: Iterable[Artifact], arch: int, store: Store, include_dir: Path | None,
    workers: int = 0,
) -> dict[str, Cubin]:  # fmt: skip
    """The compiled kernel of every function, each distinct text compiled once per disk.

    arch: compute capability, 90 for 9.0. workers: how many compile at once, 0: one per core.
    Errors: BackendError W301 without Triton, W302 naming the first kernel that does not compile.
    """
    jobs = [job_of(a, arch, include_dir) for a in artifacts]
    if not jobs:
        return {}
    compiler, prelude = compiler_key(), prelude_digest(include_dir)
    keys = {job.name: key_of(job, compiler, prelude) for job in jobs}
    missing = {keys[job.name]: job for job in jobs if not _known(keys[job.name], store)}
    if missing:
        with _locks(missing, store) as locked:
            # Whoever held a lock before us may have compiled it.
            wanted = {k: j for k, j in missing.items() if not (locked and _known(k, store))}
            _build(wanted, store, workers)
    return {name: _loaded[key] for name, key in keys.items()}


def _known(key: str, store: Store) -> bool:
    """Whether the kernel is loaded, or was in the store and now is."""
    if key in _loaded:
        return True
    packed = store.get(_KIND, key)
    if packed is None:
        return False
    _loaded[key] = Cubin.unpack(packed)
    return True


@contextlib.contextmanager
def _locks(keys: Iterable[str], store: Store) -> Iterator[bool]:
    """Hold the locks of all keys; in order, so that two processes never wait for each other."""
    with contextlib.ExitStack() as held:
        stripes = {store.stripe(key): key for key in keys}
        locked = True
        for stripe in sorted(stripes):
            locked &= held.enter_context(store.lock(stripes[stripe]))
        yield locked


def _build(wanted: dict[str, Job], store: Store, workers: int) -> None:
    if not wanted:
        return
    with timed("compile", kernels=len(wanted), bytes=sum(len(j.source) for j in wanted.values())):
        made = SERVICE.compile(list(wanted.values()), workers)
    failed: list[tuple[str, Job, str]] = []
    for (key, job), result in zip(wanted.items(), made, strict=True):
        if isinstance(result, Failed):
            failed.append((key, job, result.why))
        else:
            _loaded[key] = result
            store.put(_KIND, key, result.pack())
    if failed:
        _fail(failed, store)


def _fail(failed: Sequence[tuple[str, Job, str]], store: Store) -> None:
    """Report every kernel that failed, and raise for the first."""
    shown = []
    for key, job, why in failed:
        path = _keep_text(key, job, store)
        shown.append(f"Triton, on the kernel {job.name} ({path}): {why}")
        emit("runtime", "W302", shown[-1], code="W302", kernel=job.name, path=path, why=why)
    raise BackendError("W302", shown[0])


def _keep_text(key: str, job: Job, store: Store) -> str:
    """Where the text of a kernel that failed lies for the reader; one file per text."""
    options = f"# {' '.join(job.kinds)}\n# sm_{job.arch} warps {job.warps} stages {job.stages}\n"
    try:
        if store.root is not None:
            folder = store.root / "failed"
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        else:
            folder = Path(tempfile.mkdtemp(prefix="torchweld-failed-"))
        path = folder / f"{job.name}-{key[:16]}.py"
        path.write_text(options + job.source, encoding="utf-8")
    except OSError as error:
        return f"its text could not be written: {error}"
    return str(path)
