"""Compare many random programs with eager: python -m tests.fuzz.run --first 0 --count 20000.

One worker process per core; prints each seed that differs and its program. Exit status 1 if any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter

import torch
from tests.fuzz.outcome import arguments, difference, function, outcome
from tests.fuzz.programs import make

import torchweld

CALLS = 3


def check(seed: int, backend: str = "eager") -> str:
    """How the compiled program of a seed differs from eager, or ""."""
    torchweld.reset()
    source = make(seed)
    fn, log = function(source)
    other, other_log = function(source)
    compiled = torchweld.compile(other, backend=backend)
    for call in range(CALLS):
        if call == CALLS - 1:
            torch.set_grad_enabled(False)
        try:
            want = outcome(fn, log, arguments(seed, call))
            got = outcome(compiled, other_log, arguments(seed, call))
        finally:
            torch.set_grad_enabled(True)
        found = difference(got, want)
        if found:
            return f"call {call}: {found}"
        if sys.exc_info()[0] is not None:
            return f"call {call}: it leaves an exception that is being handled"
    if torchweld.statistics()["internal_errors"]:
        return "an internal error"
    return ""


def _check(seed: int) -> tuple[int, str, dict[str, int]]:
    try:
        found = check(seed)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    counts = torchweld.statistics()
    return seed, found, {k: int(counts[k]) for k in ("graphs", "breaks")}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    bad, totals, whole = 0, Counter[str](), 0
    seeds = range(options.first, options.first + options.count)
    with multiprocessing.Pool(options.jobs, torch.set_num_threads, (1,), 500) as pool:
        for seed, found, counts in pool.imap_unordered(_check, seeds, 20):
            totals.update(counts)
            whole += counts["breaks"] == 0 and counts["graphs"] > 0
            if found:
                bad += 1
                print(f"--- {seed}: {found}\n{make(seed)}", flush=True)
    print(f"{options.count} programs, {bad} differ; {whole} without a break, {totals['graphs']} "
          f"graphs, {totals['breaks']} breaks")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
