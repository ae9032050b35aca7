"""docs/ir.md: every example is a valid graph in its own text form; the tables are up to date."""

import importlib.util
import re
from pathlib import Path

import pytest

from torchweld.ir import loop_text, plan_text
from torchweld.ir.loop_verify import verify

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ir.md").read_text()


def tool():
    spec = importlib.util.spec_from_file_location("ir_docs", ROOT / "tools" / "ir_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", re.findall(r"```loop\n(.*?)```", PAGE, re.DOTALL))
def test_an_example_is_a_valid_graph_as_it_is_printed(source):
    g = loop_text.parse(source)
    verify(g)
    assert loop_text.text(g) == source


@pytest.mark.parametrize("source", re.findall(r"```plan\n(.*?)```", PAGE, re.DOTALL))
def test_an_example_plan_reads_back(source):
    plan = plan_text.parse(source)
    assert plan_text.parse(plan_text.text(plan)) == plan


def test_the_generated_tables_are_up_to_date():
    assert tool().filled(PAGE) == PAGE, "run: python tools/ir_docs.py"
