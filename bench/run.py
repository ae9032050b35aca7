"""Measure every case against its peers and keep the figures: bench/results/<name>.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchweld.workbench import bench
from torchweld.workbench.cases import ALL_SUITES

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--name", default="cpu", help="name of the file of results")
    arguments.add_argument("--suite", choices=tuple(ALL_SUITES), default="all")
    arguments.add_argument("--only", nargs="+", default=[])
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--frozen", action="store_true",
                           help="with the weights frozen, against torch.compile's freezing")
    arguments.add_argument("--compilers", nargs="+", default=[], help="these compilers alone")
    given = arguments.parse_args()
    path = str(RESULTS / f"{given.name}.json")
    compilers = given.compilers or (bench.FROZEN if given.frozen else ())
    return bench.main(given.suite, given.only, given.quick, path, given.threads, compilers)


if __name__ == "__main__":
    sys.exit(main())
