"""`torchweld run` and `torchweld explain` on scripts that know nothing of torchweld."""

from __future__ import annotations

import subprocess
import sys

import torch

from torchweld.workbench import script

PROGRAM = """
import sys, torch

@torch.compile(mode="default")
def f(x):
    return torch.relu(x) * 2 + 1

@torch.compile
def g(x):
    return x + 1 if x.sum() > 0 else x - 1

x = torch.randn(4, 4)
with torch.no_grad():
    assert torch.equal(f(x), torch.relu(x) * 2 + 1)
    g(x)
print(type(f).__name__, "torch._dynamo" in sys.modules, *sys.argv[1:])
"""


def torchweld(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "torchweld", *arguments], capture_output=True, text=True
    )


def test_run_compiles_with_torchweld_and_passes_arguments_on(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = torchweld("run", str(path), "--fast", "3")
    assert done.returncode == 0, done.stderr
    kind, *rest = done.stdout.split()
    assert kind == "Dispatcher"
    assert rest[1:] == ["--fast", "3"]


def test_explain_names_the_break_and_its_line(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = torchweld("explain", str(path))
    assert done.returncode == 0, done.stderr
    assert "W101" in done.stdout
    assert "program.py:10" in done.stdout


def test_exit_status_of_the_script_is_the_commands(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys; sys.exit(7)")
    assert torchweld("run", str(path)).returncode == 7


def test_torch_is_put_back_after_the_script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import torch; torch.compile(lambda x: x)")
    before = torch.compile, list(sys.argv)
    script.run(str(path), [])
    assert (torch.compile, sys.argv) == before


def test_arguments_that_only_torch_has_are_left_out():
    compiled = script.compile_like_torch(lambda x: x + 1, name="f", backend="inductor")
    with torch.no_grad():
        assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
