"""Graphs and breaks of forty architectures under torchweld and under torch.compile, side by side.

Writes bench/results/capture.json and docs/capture-zoo.md, after every answer. What `--lanes`,
`--only` or `--variants` leave out keeps its earlier figures, and the commit and day they are of.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import capture_table

from torchweld.workbench.architectures import ARCHITECTURES
from torchweld.workbench.machine import describe
from torchweld.workbench.variants import VARIANTS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "capture.json"
PAGE = ROOT / "docs" / "capture-zoo.md"
LANES = ("torchweld", "torch.compile")
Answers = tuple[str, str, dict[str, Any]]  # of an architecture, under a compiler


def lane(name: str, compiler: str, only: list[str], limit: float) -> dict[str, Any]:
    """A process of its own; variants that it did not reach are missing from the answer."""
    command = [sys.executable, "-m", "bench.capture_lane", name, compiler, *only]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:  # fmt: skip
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            errors = f"no answer within {limit:.0f} s"
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found = {answer.pop("variant"): answer for answer in answers}
    if process.returncode:
        found["process"] = {"error": (errors.splitlines() or ["died"])[-1][:300]}
    return found


def measure(given: argparse.Namespace) -> Iterator[Answers]:
    """What each process found, as it comes; `given.jobs` of them at a time."""
    asked = itertools.product(given.only or ARCHITECTURES, given.lanes)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        waiting = {pool.submit(lane, name, compiler, given.variants, given.limit): (name, compiler)
                   for name, compiler in asked}  # fmt: skip
        for done in concurrent.futures.as_completed(waiting):
            yield (*waiting[done], done.result())


def write(content: dict[str, Any]) -> str:
    """Both files; answers the page."""
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    page = capture_table.page(content)
    PAGE.write_text(page, encoding="utf-8")
    return page


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="+", choices=tuple(ARCHITECTURES), default=[])
    arguments.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
    arguments.add_argument("--variants", nargs="+", choices=VARIANTS, default=[])
    arguments.add_argument("--jobs", type=int, default=2, help="processes at a time")
    arguments.add_argument("--limit", type=float, default=300.0, help="seconds for each process")
    given = arguments.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else {}
    machine = describe()
    made = {"commit": machine.pop("commit"), "date": datetime.date.today().isoformat()}
    rows: dict[str, Any] = {name: kept.get(name, {}) for name in ARCHITECTURES}
    content = {"machine": machine, "rows": rows}
    for name, compiler, found in measure(given):
        print(f"{name}, {compiler}: {capture_table.summary(found)}", flush=True)
        cells = rows[name].setdefault(compiler, {})
        if not given.variants:
            cells.clear()
        cells |= {variant: {**answer, **made} for variant, answer in found.items()}
        write(content)
    print("\n" + write(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
