"""The compile server: kernels that crash or hang, servers that are killed, parents that go."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from triton_texts import CRASH, EXIT, HANG, add, checked, kernel, softmax

from torchweld.base.errors import BackendError
from torchweld.runtime import triton_service
from torchweld.runtime.triton_job import Cubin, Failed
from torchweld.runtime.triton_loader import job_of
from torchweld.runtime.triton_service import Service
from torchweld.runtime.triton_version import compiler_key


@pytest.fixture(scope="module")
def service():
    made = Service()
    yield made
    made.stop()


@pytest.fixture
def own():
    """A service that no other test uses."""
    made = Service()
    yield made
    made.stop()


def job(artifact, arch=90):
    return job_of(artifact, arch, None)


def bad(body):
    return job(kernel("bad", body, ""))


def children(pid):
    """Processes whose parent is `pid`, zombies included."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(p) for p in text.split()]


def gone(pid, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("arch", [80, 90])
def test_a_kernel_becomes_a_cubin(service, arch):
    (made,) = service.compile([job(softmax(), arch)])
    assert isinstance(made, Cubin)
    assert made.image[:4] == b"\x7fELF" and made.entry == "softmax" and made.warps == 4
    assert made.params >= 2 and made.shared > 0


def test_results_come_in_the_order_of_the_jobs(service):
    jobs = [job(add(f"a{i}") if i % 2 else softmax(f"a{i}")) for i in range(6)]
    assert [m.entry for m in service.compile(jobs, workers=3)] == [j.name for j in jobs]


def test_parameters_by_value_count(service):
    (made,) = service.compile([job(add())])
    assert made.params >= 3


def test_an_alignment_promise_reaches_the_compiler(service):
    text = """
@triton.jit
def NAME(x, y):
    i = tl.arange(0, 512)
    tl.store(y + i, tl.load(x + i))
"""
    plain, wide = service.compile([
        job(kernel("copy", text, "*fp32 *fp32")), job(kernel("copy", text, "*fp32:16 *fp32:16")),
    ])  # fmt: skip
    assert plain.image != wide.image


def test_indices_are_checked_where_the_kernel_asks_for_it(service):
    plain = dataclasses.replace(job(checked()), debug=False)
    with_checks, without = service.compile([job(checked()), plain])
    assert b"__assertfail" in with_checks.image and b"__assertfail" not in without.image


def test_an_error_in_the_text_is_shown_with_its_line(service):
    body = "\n@triton.jit\ndef NAME(x):\n    tl.store(x, no_such_name)\n"
    (made,) = service.compile([job(kernel("wrong", body, "*fp32"))])
    assert isinstance(made, Failed) and "no_such_name" in made.why


def test_a_text_without_the_function_is_refused(service):
    (made,) = service.compile([job(kernel("absent", "other = 1\n", ""))])
    assert isinstance(made, Failed) and "absent" in made.why


def test_a_crash_ends_one_kernel_only(service):
    made = service.compile([bad(CRASH), job(add())])
    assert isinstance(made[1], Cubin)
    assert made[0] == Failed("killed by signal 11: a last word")


def test_a_text_that_ends_the_process_is_a_failure(service):
    assert service.compile([bad(EXIT)]) == [Failed("exit status 3")]


def test_a_kernel_that_hangs_is_ended_in_time(service):
    made = service.compile([bad(HANG), job(add())], workers=2, seconds=5.0)
    assert made[0] == Failed("no result after 5 s") and isinstance(made[1], Cubin)


def test_no_child_and_no_zombie_is_left(service):
    service.compile([bad(CRASH), job(add())])
    assert children(service.pid) == []


def test_no_file_is_left(service):
    service.compile([bad(CRASH), job(add())])
    root = service._process.root
    assert [p for p in root.iterdir() if p.name not in ("log", "warm")] == []


def test_more_jobs_than_fit_the_pipes(service, monkeypatch):
    monkeypatch.setattr(triton_service, "_WINDOW", 2)
    made = service.compile([bad(EXIT) for _ in range(9)])
    assert made == [Failed("exit status 3")] * 9


def test_a_killed_server_is_replaced(own):
    own.compile([job(add())])
    first = own.pid
    os.kill(first, signal.SIGKILL)
    assert isinstance(own.compile([job(add())])[0], Cubin)
    assert own.pid != first and gone(first)


KILL_SERVER = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"


def test_a_server_that_dies_twice_in_the_middle_is_an_error(own):
    with pytest.raises(BackendError) as caught:
        own.compile([bad(KILL_SERVER)])
    assert caught.value.code == "W302" and own.pid is None


def test_children_die_with_the_server(own, tmp_path):
    note = tmp_path / "pid"
    text = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n" + HANG
    code = """
import sys
from triton_texts import kernel
from torchweld.runtime.triton_loader import job_of
from torchweld.runtime.triton_service import SERVICE
SERVICE.compile([job_of(kernel("bad", sys.argv[1], ""), 90, None)])
"""
    parent = start(code, text)
    while not note.exists() or not note.read_text():
        time.sleep(0.02)
    child = int(note.read_text())
    server = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    folder = Path(os.readlink(f"/proc/{server}/fd/1")).parent
    parent.kill()
    parent.wait()
    assert gone(server) and gone(child)
    assert not folder.exists()


def start(code, *arguments):
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen([sys.executable, "-c", code, *arguments],
                            env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
                            text=True)  # fmt: skip


def test_the_server_ends_when_the_program_does():
    code = """
from torchweld.runtime.triton_service import SERVICE
SERVICE.warm()
print(SERVICE.pid, SERVICE._process.root)
"""
    out, _ = start(code).communicate()
    pid, folder = out.split()
    assert gone(int(pid)) and not Path(folder).exists()


def test_a_forked_process_has_a_server_of_its_own(own):
    own.warm()
    os.register_at_fork(after_in_child=own.forget)
    pid = os.fork()
    if pid == 0:
        good = own.pid is None and isinstance(own.compile([job(add())])[0], Cubin)
        own.stop()
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert isinstance(own.compile([job(add())])[0], Cubin)


def test_the_server_does_not_import_torch():
    code = """
import sys
import torchweld.runtime.triton_compile, torchweld.runtime.triton_server
print("torch" in sys.modules)
"""
    assert start(code).communicate()[0].strip() == "False"


def test_settings_of_the_user_do_not_reach_the_compiler(monkeypatch, own):
    for name in ("TRITON_INTERPRET", "DISABLE_LLVM_OPT", "TRITON_KERNEL_DUMP"):
        monkeypatch.setenv(name, "1")
    assert isinstance(own.compile([job(add())])[0], Cubin)


def test_tools_of_the_user_reach_the_compiler_and_the_key(monkeypatch, tmp_path):
    before = compiler_key()
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path))
    assert triton_service.environment(tmp_path)["TRITON_PTXAS_PATH"] == str(tmp_path)
    assert compiler_key() != before


def test_a_module_in_the_users_folder_is_not_imported(monkeypatch, own, tmp_path):
    (tmp_path / "triton.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *filter(None, sys.path)])
    assert isinstance(own.compile([job(add())])[0], Cubin)


def test_without_a_server_this_process_compiles(monkeypatch):
    code = """
import sys
from triton_texts import add, kernel
from torchweld.runtime.triton_loader import job_of
from torchweld.runtime.triton_service import SERVICE
sys.executable = sys.argv[1]
jobs = [job_of(a, 90, None) for a in (add(), kernel("bad", "1 / 0", ""))]
print(*(type(m).__name__ for m in SERVICE.compile(jobs)), SERVICE.pid)
"""
    for executable in ("", "/nonexistent", "/bin/false"):
        out, _ = start(code, executable).communicate()
        assert out.split() == ["Cubin", "Failed", "None"]
