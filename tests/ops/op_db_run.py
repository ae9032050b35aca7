"""Run the operator database: `python tests/ops/op_db_run.py`; continues where it was stopped.

Results are appended to bench/results/opdb.jsonl as they come, and summed up in opdb.json; with
`--gradients`, which runs a backward of each call too, in opdb_gradients.jsonl and .json. Each shard
is a process; one that crashes is restarted behind the operator that crashed it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import op_db_gradients
import torch
from op_db import DTYPES, Outcome, check, entries

from torchweld.workbench.machine import describe

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
CRASHED = ["crashed: the process died"]
Key = tuple[str, str]


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """The lines of a results file by operator and dtype; the last one counts."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(row["op"], row["dtype"]): row for row in rows}


def key(op: Any, dtype: torch.dtype) -> Key:
    return op.formatted_name, str(dtype).removeprefix("torch.")


def work(given: argparse.Namespace, shard: int) -> None:
    """One shard, in this process. A line {"crashed"} stands until the outcome replaces it."""
    torch.set_num_threads(1)
    mine = entries(given.only, given.device)
    if given.gradients:
        mine = [(op, dtype) for op, dtype in mine if dtype.is_floating_point]
    mine = mine[shard :: given.shards]
    done = read(given.log)
    with given.log.open("a", encoding="utf-8") as log:
        for op, dtype in mine:
            name = key(op, dtype)
            if name in done:
                continue
            started = Outcome(*name, wrong=CRASHED)
            log.write(json.dumps(asdict(started)) + "\n")
            log.flush()
            log.write(json.dumps(asdict(_outcome(op, dtype, given))) + "\n")
            log.flush()


def _outcome(op: Any, dtype: torch.dtype, given: argparse.Namespace) -> Outcome:
    try:
        run_check = op_db_gradients.check if given.gradients else check
        return run_check(op, dtype, given.limit, given.device)
    except Exception as error:
        text = f"harness: {type(error).__name__}: {error}".split("\n")[0][:200]
        return Outcome(*key(op, dtype), reasons={text: 1})


def spawn(given: argparse.Namespace, shard: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--log", str(given.log), "--shards", str(given.shards),
               "--limit", str(given.limit), "--device", given.device,
               "--shard", str(shard)]  # fmt: skip
    command += ["--gradients"] * given.gradients
    return subprocess.Popen(command + (["--only", *given.only] if given.only else []))


def run(given: argparse.Namespace) -> None:
    """All shards at once; a crashed one is started again and skips what it died on.

    What an earlier run died on, or was stopped at, is tried again.
    """
    kept = [row for row in read(given.log).values() if row["wrong"] != CRASHED]
    given.log.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    running = {shard: spawn(given, shard) for shard in range(given.shards)}
    while running:
        for shard, process in list(running.items()):
            try:
                status = process.wait(1)
            except subprocess.TimeoutExpired:
                continue
            del running[shard]
            if status < 0:
                running[shard] = spawn(given, shard)
            elif status:
                sys.exit(f"shard {shard} failed with {status}")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals over all samples and operators, reasons, and every wrong result."""
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(row["reasons"])
    wrong = {f"{r['op']} {r['dtype']}": r["wrong"] for r in rows if r["wrong"]}
    return {
        "machine": describe(),
        "operators": len({r["op"] for r in rows}),
        "entries": len(rows),
        "entries_compiled": sum(bool(r["samples"]) and r["matched"] == r["samples"] for r in rows),
        "samples": sum(r["samples"] for r in rows),
        "matched": sum(r["matched"] for r in rows),
        "generated": sum(r["generated"] for r in rows),
        "fell_back": sum(r["fell_back"] for r in rows),
        "wrong": sum(len(r["wrong"]) for r in rows),
        "dtypes": [str(d).removeprefix("torch.") for d in DTYPES],
        "wrong_results": wrong,
        "reasons": dict(reasons.most_common()),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="+", default=[], help="these operators alone")
    arguments.add_argument("--limit", type=int, default=20, help="samples per operator and dtype")
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--shards", type=int, default=2, help="processes")
    arguments.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--fresh", action="store_true", help="forget earlier results")
    arguments.add_argument("--gradients", action="store_true", help="with a backward of each call")
    arguments.add_argument("--log", type=Path)
    given = arguments.parse_args()
    given.log = given.log or RESULTS / f"opdb{'_gradients' * given.gradients}.jsonl"
    given.log.parent.mkdir(parents=True, exist_ok=True)
    if given.shard is not None:
        work(given, given.shard)
        return 0
    if given.fresh:
        given.log.unlink(missing_ok=True)
    run(given)
    found = summary(list(read(given.log).values()))
    given.log.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    shown = ("operators", "entries", "samples", "matched", "generated", "fell_back", "wrong")
    print(", ".join(f"{name} {found[name]}" for name in shown))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
