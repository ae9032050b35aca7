"""Measure every case against its peers and keep the figures: bench/results/<name>.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchweld.workbench import bench
from torchweld.workbench.suites import SUITES

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--name", default="cpu", help="name of the file of results")
    arguments.add_argument("--suite", choices=tuple(SUITES), default="all")
    arguments.add_argument("--only", nargs="+", default=[])
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    path = str(RESULTS / f"{given.name}.json")
    return bench.main(given.suite, given.only, given.quick, path, given.threads)


if __name__ == "__main__":
    sys.exit(main())
