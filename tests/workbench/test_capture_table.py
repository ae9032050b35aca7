"""The table of the capture zoo shows where torchweld is worse than its peer."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("capture_table", BENCH / "capture_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(graphs, *breaks, unequal=()):
    return {"graphs": graphs, "breaks": list(breaks), "unequal": list(unequal)}


@pytest.mark.parametrize(("ours", "peer", "shown"), [
    (answer(1), answer(1), "1 / 1"),
    (answer(1), answer(4, "a", "b"), "1 / 4+2"),
    (answer(2, "a"), answer(1), "**2+1 / 1**"),
    (answer(1, unequal=["x"]), answer(1), "**1! / 1**"),
    (answer(3), {"error": "died"}, "3 / error"),
    ({"error": "died"}, answer(1), "**error / 1**"),
    (answer(1), None, "1 / -"),
    (None, answer(1), "**- / 1**"),
    (None, None, ""),
])  # fmt: skip
def test_cell_is_bold_where_ours_is_worse(table, ours, peer, shown):
    assert table.cell(ours, peer) == shown


def test_reasons_are_counted_with_their_architectures(table):
    rows = {"a": {"torchweld": {"forward": answer(1, "W1 x", "W1 x")}},
            "b": {"torchweld": {"forward": answer(1, "W1 x", "W2 y")}}}  # fmt: skip
    lines = table.reasons(rows, "torchweld")
    assert lines[-2:] == ["| 3 | W1 x | a, b |", "| 1 | W2 y | b |"]


def test_page_names_the_days_of_its_figures_and_the_commits_of_ours(table):
    def cell(commit, day):
        return {"forward": {**answer(1), "commit": commit, "date": f"2026-11-{day}"}}

    rows = {"a": {"torchweld": cell("b1", 30), "torch.compile": cell("a0", 28)},
            "b": {"torchweld": cell("b2", 30)}}  # fmt: skip
    assert table.origin({"rows": rows}) == "2026-11-28 to 2026-11-30, commit b1, b2"


def test_cells_of_generate_whose_graphs_grow_with_the_tokens_are_named(table):
    rows = {"a": {"torchweld": {"generate": {**answer(3), "longer": 3}}},
            "b": {"torchweld": {"generate": {**answer(3), "longer": 5}}}}  # fmt: skip
    assert "In 1 of 2 cells" in table.growth(rows)
    assert table.growth(rows).endswith("not in b (generate).")
