"""The `torchweld` command: run, explain, bench."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

SUITES = ("micro", "models", "demo", "all", "gpu", "gpu-micro", "gpu-models")


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(prog="torchweld", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    told = (
        commands.add_parser("run", help="run a script with torch.compile replaced by torchweld's"),
        commands.add_parser("explain", help="run a script, then say what was compiled"),
    )
    told[1].add_argument("--guards", action="store_true", help="list the guards of each graph")
    for script in told:
        script.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module")
        script.add_argument("script", metavar="SCRIPT")
        script.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    bench = commands.add_parser("bench", help="measure torchweld against its peers")
    bench.add_argument("--suite", choices=SUITES, default="micro")
    bench.add_argument("--only", nargs="+", default=[], metavar="CASE", help="these cases alone")
    bench.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    bench.add_argument("--json", metavar="FILE", help="write the figures there too")
    bench.add_argument("--threads", type=int, default=2, help="threads per compiler (default: 2)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = parser().parse_args(argv)
    # each command imports only what it needs: `torchweld --help` does not import torch
    if given.command == "bench":
        try:
            from torchweld.workbench import bench
        except ModuleNotFoundError as error:
            if error.name != "rich":
                raise
            sys.exit("torchweld bench needs rich: pip install 'torchweld[bench]'")
        return bench.main(given.suite, given.only, given.quick, given.json, given.threads)
    from torchweld.workbench import script

    if given.command == "run":
        script.run(given.script, given.arguments, module=given.module)
    else:
        script.explain(given.script, given.arguments, module=given.module, guards=given.guards)
    return 0


if __name__ == "__main__":
    sys.exit(main())
