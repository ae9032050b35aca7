"""Compilers that are missing, broken or out of disk, and drivers that are not there."""

from __future__ import annotations

import pytest
import torch
from launch_lists import UNIT, add_one

from torchweld.base import events
from torchweld.base.config import override
from torchweld.base.errors import BackendError
from torchweld.runtime import executable, native, toolchain


@pytest.fixture(autouse=True)
def search_anew():
    toolchain._find.cache_clear()
    executable.report_missing.cache_clear()
    yield
    toolchain._find.cache_clear()


def runtime_events():
    return [e.name for e in events.recent("runtime")]


VERSION = '[ "$1" = --version ] && exec echo fake 1\n'


def fake(path, body):
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


def make(program, cache="off", **changes):
    with override(cache_dir=str(cache), **changes) as cfg:
        return executable.make_executable(program, cfg, None)


def test_no_compiler_is_one_event_that_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(BackendError) as caught:
            make(add_one(5))
    assert caught.value.code == "W301"
    for text in ("g++ (not found)", "clang++ (not found)", "apt-get install g++"):
        assert text in str(caught.value)
    assert runtime_events() == ["W301"]


def test_a_cxx_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    with pytest.raises(BackendError, match="CXX names /nonexistent") as caught:
        make(add_one(6))
    assert caught.value.code == "W301"


def test_cxx_comes_first_and_may_hold_arguments(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", fake(tmp_path / "cc", 'exec g++ "$@"') + " -DMARK=1")
    found = toolchain.find_compiler()
    assert found.command == (str(tmp_path / "cc"), "-DMARK=1") and found.version


def test_a_compiler_that_does_not_run_is_passed_over(monkeypatch, tmp_path):
    fake(tmp_path / "g++", "exit 1")
    fake(tmp_path / "clang++", "echo a compiler 1.0")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert toolchain.find_compiler().version == "a compiler 1.0"


def test_an_error_in_the_source_is_shown(tmp_path):
    with pytest.raises(BackendError, match="no_such_name") as caught:
        toolchain.compile("int f() { return no_such_name; }", toolchain.all_flags(None), None,
                          tmp_path / "a.so")  # fmt: skip
    assert caught.value.code == "W302"
    assert list(tmp_path.iterdir()) == []


def test_a_crash_of_the_compiler_is_w302(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", fake(tmp_path / "cc", VERSION + "kill -SEGV $$"))
    with pytest.raises(BackendError, match="signal 11") as caught:
        make(add_one(7))
    assert caught.value.code == "W302"


def test_a_full_disk_is_reported_as_such(monkeypatch, tmp_path):
    body = VERSION + 'echo "error: No space left on device" >&2; exit 1'
    monkeypatch.setenv("CXX", fake(tmp_path / "cc", body))
    with pytest.raises(BackendError, match="could not be written"):
        make(add_one(8))


def test_the_program_chooses_its_flags(tmp_path):
    flags = toolchain.all_flags(("-O1", "-march=x86-64"))
    assert "-O1" in flags and "-march=native" not in flags and "-O2" not in flags


def test_no_flag_brings_a_second_openmp_or_fast_math():
    flags = " ".join(toolchain.all_flags(None))
    assert "openmp" not in flags and "fast-math" not in flags and "-std=c++17" in flags


def test_headers_are_found_in_the_include_folder(tmp_path):
    (tmp_path / "weld_vec.h").write_text("inline int one() { return 1; }\n")
    source = '#include "weld_vec.h"\nextern "C" int f() { return one(); }\n'
    toolchain.compile(source, toolchain.all_flags(None), tmp_path, tmp_path / "a.so")
    assert (tmp_path / "a.so").stat().st_size > 0


def test_a_native_driver_that_fails_its_test_is_replaced(monkeypatch):
    monkeypatch.setattr(executable, "native", lambda: "self-test: something differs")
    for _ in range(2):
        made = make(add_one(4))
        assert made.driver == "python" and made(torch.zeros(4))[0].tolist() == [1.0] * 4
    assert runtime_events() == ["W305"]


def test_the_self_test_notices_a_tensor_read_wrongly(monkeypatch):
    real = native._driver.describe
    monkeypatch.setattr(native._driver, "describe", lambda t: (0, *real(t)[1:]))
    native.native.cache_clear()
    try:
        assert "self-test" in str(native.native())
    finally:
        monkeypatch.undo()
        native.native.cache_clear()
        assert isinstance(native.native(), native.Native)


def test_a_missing_extension_says_so(monkeypatch):
    monkeypatch.setattr(native, "_driver", None)
    monkeypatch.setattr(native, "_why_missing", "no such file", raising=False)
    native.native.cache_clear()
    try:
        assert native.native() == "the extension is not built: no such file"
    finally:
        native.native.cache_clear()


def test_the_python_driver_is_used_when_asked_for():
    assert make(add_one(), driver="python").driver == "python" and runtime_events() == []


def test_no_compiler_runs_when_the_library_is_loaded(monkeypatch, tmp_path):
    make(add_one(4), tmp_path)
    before = len(events.recent("perf"))
    make(add_one(9), tmp_path)
    assert len(events.recent("perf")) == before and UNIT.functions
