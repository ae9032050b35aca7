"""The disk cache under bad weather: torn, foreign, full, shared."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from launch_lists import UNIT

from torchweld.base import events
from torchweld.base.errors import BackendError
from torchweld.runtime import loader, toolchain
from torchweld.runtime.store import Store, seal, unseal

KEY = "ab" * 32


def codes():
    return [e.name for e in events.recent("runtime")]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def test_what_is_put_is_got(store):
    store.put("so", KEY, b"payload")
    assert store.get("so", KEY) == b"payload" and codes() == []


def test_an_absent_entry_is_none(store):
    assert store.get("so", KEY) is None and codes() == []


def test_a_store_without_a_folder_keeps_nothing():
    store = Store(None)
    assert store.put("so", KEY, b"x") is None and store.get("so", KEY) is None
    with store.lock(KEY) as locked:
        assert not locked


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:10],
        lambda b: b[:-1],
        lambda b: b"",
        lambda b: b[:3] + b"X" + b[4:],
        lambda b: b + b"tail",
        lambda b: b[7:],
    ],
)
def test_a_torn_entry_is_refused_recorded_and_removed(store, damage):
    path = store.put("so", KEY, b"a payload of some length")
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("so", KEY) is None
    assert codes() == ["W303"] and not path.exists()


def test_an_entry_of_another_user_is_refused(store):
    path = store.put("so", KEY, b"payload")
    os.chown(path, 12345, -1)
    assert store.get("so", KEY) is None
    assert codes() == ["W303"] and not path.exists()


def test_a_world_writable_entry_is_refused(store):
    path = store.put("so", KEY, b"payload")
    path.chmod(0o666)
    assert store.get("so", KEY) is None and codes() == ["W303"]


def test_a_link_in_place_of_an_entry_is_refused(store, tmp_path):
    other = tmp_path / "elsewhere"
    other.write_bytes(seal(b"not ours"))
    path = store.put("so", KEY, b"payload")
    path.unlink()
    path.symlink_to(other)
    assert store.get("so", KEY) is None
    assert codes() == ["W303"] and other.exists() and not path.is_symlink()


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_a_folder_that_others_can_write_is_not_used(store, depth, how):
    path = store.put("so", KEY, b"payload")
    folder = [store.root, store.root / "v1", store.root / "v1" / "so", path.parent][depth]
    if how == "owner":
        os.chown(folder, 12345, -1)
    else:
        folder.chmod(0o777)
    assert store.get("so", KEY) is None and store.put("so", KEY, b"other") is None
    assert codes() == ["W303"]  # once, though it was met twice
    os.chown(folder, 0, -1)
    folder.chmod(0o700)
    assert store.get("so", KEY) == b"payload"


def test_folders_are_made_for_their_owner_only(store):
    path = store.put("so", KEY, b"payload")
    assert path.parent.stat().st_mode & 0o077 == 0 and path.stat().st_mode & 0o077 == 0


def test_a_cache_folder_that_cannot_be_made_is_recorded_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file")
    assert store.put("so", KEY, b"x") is None and store.put("so", KEY, b"x") is None
    with store.lock(KEY) as locked:
        assert not locked
    assert codes() == ["W304"]


def test_a_failed_write_leaves_no_temporary_file(store, monkeypatch):
    def full(a, b):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert store.put("so", KEY, b"payload") is None
    assert codes() == ["W304"]
    assert [p for p in store.root.rglob("*") if p.is_file()] == []


def test_the_entries_used_longest_ago_go_first(store):
    store.limit = 3000
    keys = [f"{i:02d}" * 32 for i in range(5)]
    for i, key in enumerate(keys):
        path = store.put("so", key, bytes(900))
        os.utime(path, (time.time() - 10_000 + i,) * 2)
    assert store.get("so", keys[0]) is not None  # a use makes it the youngest
    assert store.evict() > 0
    kept = [k for k in keys if store.path("so", k).exists()]
    assert kept == [keys[0], keys[4]]


def test_the_seal_covers_every_byte():
    blob = seal(b"payload")
    assert unseal(blob) == b"payload"
    for i in range(len(blob)):
        assert unseal(blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :]) is None


# ---------------------------------------------------------------- libraries through the cache

FLAGS = toolchain.all_flags(("-O0",))


@pytest.fixture
def unique(request):
    """A unit that no other test compiled in this process."""
    return UNIT.source + f"// {request.node.name}\n"


@pytest.fixture
def forget(monkeypatch):
    """Forget the libraries of this process, as a new process would not have them."""
    monkeypatch.setattr(loader, "_loaded", {})


def compiles():
    return sum(e.name == "compile" for e in events.recent("perf"))


def test_a_unit_is_compiled_once_per_content(store, unique, monkeypatch):
    for _ in range(2):
        monkeypatch.setattr(loader, "_loaded", {})
        loader.load(unique, FLAGS, None, store).address("add1")
    assert compiles() == 1


def test_a_torn_library_is_rebuilt(store, unique, forget, monkeypatch):
    key = loader.load(unique, FLAGS, None, store).key
    path = store.path("so", key)
    torn = path.read_bytes()[:4096]
    path.unlink()  # the old inode stays mapped in this process
    path.write_bytes(torn)
    path.chmod(0o600)
    monkeypatch.setattr(loader, "_loaded", {})
    assert loader.load(unique, FLAGS, None, store).address("add1")
    assert compiles() == 2 and codes() == ["W303"]


def test_an_unusable_cache_still_gives_a_library(tmp_path, unique, forget):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file")
    assert loader.load(unique, FLAGS, None, store).address("add1")
    assert set(codes()) == {"W304"}


def test_a_changed_header_changes_the_key(tmp_path):
    header = tmp_path / "weld_vec.h"
    header.write_text("#define ONE 1\n")
    before = loader.key_of("x", FLAGS, tmp_path)
    header.write_text("#define ONE 2\n\n")
    assert loader.key_of("x", FLAGS, tmp_path) != before


@pytest.mark.parametrize("change", ["source", "flags", "cpu", "compiler", "abi"])
def test_the_key_depends_on(change, monkeypatch):
    before = loader.key_of("x", FLAGS, None)
    source, flags = "x", FLAGS
    if change == "source":
        source = "y"
    elif change == "flags":
        flags = (*FLAGS, "-O3")
    elif change == "cpu":
        monkeypatch.setattr(toolchain, "cpu_fingerprint", lambda: "another machine")
    elif change == "compiler":
        other = toolchain.Compiler(toolchain.find_compiler().command, "g++ 99")
        monkeypatch.setattr(toolchain, "find_compiler", lambda: other)
    else:
        monkeypatch.setattr(loader, "ABI", loader.ABI + 1)
    assert loader.key_of(source, flags, None) != before


def test_two_processes_compile_the_same_unit_once(tmp_path, unique):
    log = tmp_path / "log"
    slow = tmp_path / "slow-g++"
    real = toolchain.find_compiler().command[0]
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} "$@"\n'
        f'echo run >> {log}\nsleep 0.3\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from torchweld.runtime import loader
        from torchweld.runtime.store import Store
        library = loader.load(sys.argv[1], ("-shared", "-fPIC", "-x", "c++"), None,
                              Store(Path(sys.argv[2])))
        sys.exit(0 if library.address("add1") else 1)
        """
    )
    env = {**os.environ, "CXX": str(slow), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, unique, str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, env=env) for _ in range(3)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0, 0]
    assert log.read_text().splitlines() == ["run"]


def test_a_unit_without_the_function_is_a_backend_error(store, unique, forget):
    library = loader.load(unique, FLAGS, None, store)
    with pytest.raises(BackendError, match="does not define nothing_here"):
        library.address("nothing_here")


def test_nothing_here_unpickles():
    folder = Path(loader.__file__).parent
    assert not [p for p in folder.glob("*.py") if "pickle" in p.read_text().replace("unpickle", "")]
