"""The golden fixture: a text must equal a file that somebody read.

`--bless` or BLESS=1 rewrites the files; read the diff.
"""

import difflib
import os
from pathlib import Path

import pytest

from torchweld.base import config

TESTS = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--bless", action="store_true", help="rewrite golden files; read the diff")


@pytest.fixture
def at_once():
    """Graphs that their own effects end are compiled at their first call, as all others are."""
    with config.override(skip=(*config.current().skip, "passing")):
        yield


@pytest.fixture
def golden(request):
    """golden(text, suffix): compares with tests/golden/<folder of the test>/<test>.<suffix>."""
    folder = TESTS / "golden" / request.path.parent.relative_to(TESTS)
    name = request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")

    def check(text: str, suffix: str) -> None:
        path = folder / f"{name}.{suffix}"
        if request.config.getoption("--bless") or os.environ.get("BLESS"):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != old:
            lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "now", "",
                                         "", lineterm="")  # fmt: skip
            pytest.fail("golden text changed (--bless to accept):\n" + "\n".join(lines),
                        pytrace=False)  # fmt: skip

    return check
