"""The checks of tools/ find what they are for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def tool(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """check_docs over a small tree of its own."""
    module = tool("check_docs")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "src" / "torchweld").mkdir(parents=True)
    (tmp_path / "Makefile").write_text("demo: ## x\n")
    (tmp_path / "src/torchweld/cli.py").write_text('commands.add_parser("bench")\n')
    return module


def test_long_file_and_long_function_are_found(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "long.py").write_text("x = 1\n" * 601)
    (tmp_path / "src" / "deep.py").write_text("def f():\n" + "    x = 1\n" * 60)
    found = list(tool("check_size").offenders(tmp_path))
    assert found == [
        "src/deep.py:1: f has 61 lines, at most 60",
        "src/long.py: 601 lines, at most 600",
    ]


def test_stale_generated_page_is_found(docs, tmp_path):
    (tmp_path / "docs" / "errors.md").write_text("old")
    (tmp_path / "docs" / "env.md").write_text(docs.env_page())
    assert list(docs.stale()) == ["docs/errors.md: stale; `make bless` regenerates it"]


def test_unknown_variable_is_found(docs, tmp_path):
    (tmp_path / "README.md").write_text("set TORCHWELD_LOGS and TORCHWELD_NOPE\n")
    (found,) = docs.undocumented()
    assert "TORCHWELD_NOPE" in found


def test_command_that_does_not_exist_is_found(docs, tmp_path):
    (tmp_path / "README.md").write_text("```sh\nmake demo\nmake tea\ntorchweld fly\n```\n")
    assert len(list(docs.missing_commands())) == 2


def test_broken_link_is_found(docs, tmp_path):
    (tmp_path / "README.md").write_text("[a](docs/none.md) [b](https://pytorch.org)\n")
    assert list(docs.broken_links()) == ["README.md: docs/none.md does not exist"]
