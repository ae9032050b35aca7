"""Rules of the repository that no linter states."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import torchweld
import torchweld.ir

ROOT = Path(__file__).resolve().parents[2]
WITH_TORCH = {
    f"torchweld.ir.{name}"
    for name in (
        "control",
        "fake",
        "fake_checks",
        "fake_kernels",
        "fake_memo",
        "graph",
        "launches",
        "hooks",
        "nested",
        "overlaps",
        "predicted",
        "recurrent",
        "quiet",
        "raising",
        "region",
        "size_makers",
        "run_time_float",
        "size_node",
        "size_writer",
        "static_shapes",
        "steps",
        "takes",
        "torch_functions",
    )
}
IR = [
    name
    for _, name, _ in pkgutil.iter_modules(torchweld.ir.__path__, "torchweld.ir.")
    if name not in WITH_TORCH
]
BLOCKER = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "sympy", "numpy"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for _, inner, _ in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        importlib.import_module(inner)
"""


def python(source, *arguments):
    return subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize("names", [
    ["torchweld.base"], ["torchweld.frame"], ["torchweld.fuse"], ["torchweld.codegen"], IR,
], ids=["base", "frame", "fuse", "codegen", "ir"])  # fmt: skip
def test_package_imports_without_torch(names):
    done = python(BLOCKER, *names)
    assert done.returncode == 0, done.stderr


def test_public_names_are_sorted_and_there():
    assert torchweld.__all__ == sorted(torchweld.__all__)
    for name in torchweld.__all__:
        assert getattr(torchweld, name) is not None


def test_importing_torchweld_loads_few_modules_and_no_peer():
    done = python("""
import sys, torch
before = set(sys.modules)
import torchweld
torchweld.compile
fresh = set(sys.modules) - before
print(len([m for m in fresh if m.startswith("torchweld")]))
print([m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor", "torch.onnx"))])
print([m for m in fresh if m.split(".")[0] not in ("torchweld", "torch")])
""")
    assert done.returncode == 0, done.stderr
    own, peers, others = done.stdout.splitlines()
    assert int(own) < 260  # about 1 ms each
    assert peers == "[]"
    assert not {"sympy", "numpy", "rich", "transformers"} & set(eval(others))


def test_a_compilation_on_the_cpu_loads_no_part_that_prints_for_gpus():
    done = python("""
import sys, torch, torchweld
torchweld.compile(lambda x: x.sin() + 1)(torch.ones(4))
print(torchweld.statistics()["kernels"])
own = [m for m in sys.modules if m.startswith("torchweld")]
print(len(own), [m for m in own if m in ("torchweld.codegen.triton_kernel",
                                         "torchweld.codegen.triton_bundle")])
""")
    assert done.returncode == 0, done.stderr
    kernels, loaded = done.stdout.splitlines()
    count, _, gpu = loaded.partition(" ")
    assert (kernels, gpu) == ("1", "[]")
    assert int(count) < 400  # with what the first compilation loads


def test_help_of_the_command_does_not_import_torch():
    source = """
import sys
from torchweld.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
print("torch" in sys.modules)
"""
    assert python(source).stdout.splitlines()[-1] == "False"


def test_modules_that_tests_share_have_unique_names_and_are_found():
    shared = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and path.name != "conftest.py"
    ]
    names = Counter(path.name for path in shared)
    assert [name for name, count in names.items() if count > 1] == []
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings["tool"]["pytest"]["ini_options"]["pythonpath"]
    assert {str(p.parent.relative_to(ROOT)) for p in shared} <= set(listed)


def test_no_test_is_skipped_or_expected_to_fail():
    banned = ("mark.skip", "mark.xfail", "pytest.skip(", "importorskip")
    here = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (ROOT / "tests").rglob("*.py")
        if path != here
        for word in banned
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []
