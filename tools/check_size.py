"""Fails when a file has more than 600 lines, or a Python function more than 60."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 600
FUNCTION_LINES = 60
FOLDERS = ("src", "tests", "tools", "bench")
SUFFIXES = (".py", ".pyi", ".c", ".h")


def files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


def long_functions(path: Path) -> Iterator[tuple[int, str, int]]:
    """First line, name and length of each function over the limit; decorators do not count."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield node.lineno, node.name, length


def offenders(root: Path) -> Iterator[str]:
    """One line per file or function that is too long."""
    for path in files(root):
        shown = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > FILE_LINES:
            yield f"{shown}: {lines} lines, at most {FILE_LINES}"
        if path.suffix == ".py":
            for line, name, length in long_functions(path):
                yield f"{shown}:{line}: {name} has {length} lines, at most {FUNCTION_LINES}"


def main() -> int:
    found = list(offenders(Path(__file__).resolve().parent.parent))
    print("\n".join(found) if found else "sizes: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
