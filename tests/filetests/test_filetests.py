"""Each .loop file holds `# pass: name`, a graph, `# gives`, and the graph that must come out.

The folder names the package whose passes are known; `print` is the pass that changes nothing.
"""

import importlib
from pathlib import Path

import pytest

from torchweld.ir.loop_text import parse, text
from torchweld.ir.loop_verify import verify

ROOT = Path(__file__).parent


def passes_of(package: str):
    made = importlib.import_module(f"torchweld.{package}.run").passes([]) if package != "ir" else ()
    return {"print": lambda g: g, **dict(made)}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.loop")), ids=lambda p: p.stem)
def test_file(path):
    before, after = path.read_text().split("# gives\n")
    names = before.split("# pass:")[1].splitlines()[0].split(",")
    g = parse(before)
    verify(g)
    for name in names:
        g = passes_of(path.parent.name)[name.strip()](g)
        verify(g)
    assert text(g) == text(parse(after))
