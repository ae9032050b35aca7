"""Compiled kernels by content: one compilation per text, process and disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from triton_texts import CRASH, SHIFTED, add, kernel, softmax

from torchweld.base import events
from torchweld.base.config import Config
from torchweld.base.errors import BackendError
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop_parse import parse
from torchweld.ir.program import Artifact
from torchweld.pipeline import INCLUDE
from torchweld.runtime import triton_loader, triton_version
from torchweld.runtime.store import Store
from torchweld.runtime.triton_job import Cubin
from torchweld.runtime.triton_loader import job_of, key_of, load


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    monkeypatch.setattr(triton_loader, "_loaded", {})


class Compiler:
    """Stands in for the compile server: answers at once and counts what it is asked."""

    def __init__(self):
        self.jobs = []

    def compile(self, jobs, workers=0):
        self.jobs += jobs
        return [Cubin(b"image\n of " + j.name.encode(), j.name, 16, j.warps, 4) for j in jobs]


@pytest.fixture
def compiler(monkeypatch):
    made = Compiler()
    monkeypatch.setattr(triton_loader, "SERVICE", made)
    return made


def restart(monkeypatch):
    """Forget what this process has loaded."""
    monkeypatch.setattr(triton_loader, "_loaded", {})


def test_a_text_is_compiled_once_per_process(compiler):
    first = load([softmax()], 90, Store(None), None)
    assert load([softmax()], 90, Store(None), None) == first and len(compiler.jobs) == 1


def test_a_text_is_compiled_once_per_disk(compiler, monkeypatch, tmp_path):
    first = load([softmax(), add()], 90, Store(tmp_path), None)
    restart(monkeypatch)
    assert load([softmax(), add()], 90, Store(tmp_path), None) == first
    assert len(compiler.jobs) == 2


def test_all_kernels_of_a_graph_are_asked_for_together(monkeypatch):
    batches = []

    class Batches(Compiler):
        def compile(self, jobs, workers=0):
            batches.append((len(jobs), workers))
            return super().compile(jobs)

    monkeypatch.setattr(triton_loader, "SERVICE", Batches())
    load([add(f"k{i}") for i in range(20)], 90, Store(None), None, 3)
    assert batches == [(20, 3)]


def test_a_damaged_entry_is_compiled_again(compiler, monkeypatch, tmp_path):
    load([softmax()], 90, Store(tmp_path), None)
    (entry,) = (tmp_path / "v1" / "cubin").glob("*/*")
    blob = bytearray(entry.read_bytes())
    blob[3] ^= 1
    entry.write_bytes(blob)
    restart(monkeypatch)
    load([softmax()], 90, Store(tmp_path), None)
    assert len(compiler.jobs) == 2
    assert [e.name for e in events.recent("runtime")] == ["W303"]


CHANGES = {
    "text": (add("f"), softmax("f"), 90),
    "arch": (softmax(), softmax(), 80),
    "types": (kernel("f", "", "*fp32"), kernel("f", "", "*fp32:16"), 90),
    "warps": (kernel("f", "", "*fp32"), kernel("f", "", "*fp32", num_warps=8), 90),
    "stages": (kernel("f", "", "*fp32"), kernel("f", "", "*fp32", num_stages=3), 90),
    "debug": (kernel("f", "", "*fp32"), kernel("f", "", "*fp32", debug=1), 90),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_the_code_changes_the_key(what):
    one, other, arch = CHANGES[what]
    assert key_of(job_of(one, 90, None), "c", "p") != key_of(job_of(other, arch, None), "c", "p")


def test_a_changed_prelude_compiles_anew(compiler, tmp_path):
    prelude = tmp_path / "weld_triton.py"
    for text in ("ONE = 1\n", "ONE = 2\n"):
        prelude.write_text(text)
        load([softmax()], 90, Store(None), tmp_path)
    assert len(compiler.jobs) == 2


def test_the_prelude_is_importable(tmp_path):
    (tmp_path / "weld_triton.py").write_text(
        "import triton\n\n@triton.jit\ndef twice(v):\n    return v + v\n"
    )
    body = """
import weld_triton as weld

@triton.jit
def NAME(x):
    tl.store(x, weld.twice(tl.load(x)))
"""
    made = load([kernel("double", body, "*fp32")], 90, Store(None), tmp_path)
    assert made["double"].entry == "double"


@pytest.mark.parametrize("arch", [80, 90])
def test_generated_kernels_compile(arch):
    text = re.sub(r"(f32\[[^\n]*?\])", r'\1 on "cuda:0"', SHIFTED, count=3)
    program = generate(fuse(parse(text), Config()))
    (made,) = load(program.artifacts, arch, Store(None), INCLUDE).values()
    assert made.image[:4] == b"\x7fELF"


def test_a_failure_names_the_kernel_and_where_its_text_is(tmp_path):
    with pytest.raises(BackendError) as caught:
        load([add(), kernel("bad", CRASH, "*fp32")], 90, Store(tmp_path), None)
    assert caught.value.code == "W302" and "killed by signal 11" in caught.value.why
    (kept,) = (tmp_path / "failed").glob("bad-*.py")
    assert str(kept) in caught.value.why
    text = kept.read_text()
    assert CRASH in text and "# sm_90 warps 4" in text


def test_what_compiled_beside_a_failure_is_kept(tmp_path):
    with pytest.raises(BackendError):
        load([add(), kernel("bad", CRASH, "*fp32")], 90, Store(tmp_path), None)
    assert len(list((tmp_path / "v1" / "cubin").glob("*/*"))) == 1


SAME = """
import sys
from pathlib import Path
from triton_texts import softmax
from torchweld.base import events
from torchweld.runtime.store import Store
from torchweld.runtime.triton_loader import load
kernels = [softmax(name) for name in sys.argv[2:]]
made = load(kernels, 90, Store(Path(sys.argv[1])), None)
print(sum(e.fields["kernels"] for e in events.recent("perf")), len(made))
"""


def test_processes_that_want_the_same_kernels_compile_them_once(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    orders = (["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"])
    running = [
        subprocess.Popen([sys.executable, "-c", SAME, str(tmp_path), *names], text=True,
                         stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
        for names in orders
    ]  # fmt: skip
    out = [p.communicate()[0].split() for p in running]
    assert sum(int(compiled) for compiled, _ in out) == 3
    assert [n for _, n in out] == ["3"] * 3


def test_no_triton_is_one_message_with_the_command(monkeypatch):
    monkeypatch.setattr(triton_version, "_version", lambda: None)
    with pytest.raises(BackendError, match=r"pip install 'triton>=3\.6'") as caught:
        load([add()], 90, Store(None), None)
    assert caught.value.code == "W301"
    assert "pip install" in caught.value.refusal().why


def test_an_old_triton_is_refused(monkeypatch):
    monkeypatch.setattr(triton_version, "_version", lambda: "3.5.1")
    with pytest.raises(BackendError, match=r"Triton 3\.5\.1 is too old"):
        triton_version.triton_version()


def test_the_version_is_read_without_importing():
    code = """
import sys
from torchweld.runtime.triton_version import triton_version
print(triton_version(), "triton" in sys.modules)
import triton
print(triton.__version__)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    read, imported, version = done.stdout.split()
    assert read == version and imported == "False"


def test_a_program_without_kernels_needs_no_triton(monkeypatch):
    monkeypatch.setattr(triton_version, "_version", lambda: None)
    assert load([], 90, Store(None), None) == {}


def test_a_cubin_survives_packing():
    made = Cubin(b"\x7fELF\n\n\0", "name", 1024, 8, 6)
    assert Cubin.unpack(made.pack()) == made


def test_a_signature_must_be_there():
    with pytest.raises(Exception, match="no option 'signature'"):
        job_of(Artifact("triton", "", ("f",)), 90, None)
