"""Many threads compile and run at once: python -X dev -m tests.stress.threads_run --rounds 50.

Prints what failed. Exit status 1 if anything did.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import traceback

import torch
from tests.stress.works import SECONDS, WORKS

import torchweld


def run(seed: int, threads: int, rounds: int) -> list[str]:
    """What went wrong while `threads` threads did `rounds` random works each."""
    failed: list[str] = []
    barrier = threading.Barrier(threads)

    def loop(k: int) -> None:
        dice = random.Random(seed * 1000 + k)
        barrier.wait(SECONDS)
        for i in range(rounds):
            work = dice.choice(WORKS)
            try:
                work(dice)
            except BaseException:
                failed.append(f"thread {k}, round {i}, {work.__name__}: {traceback.format_exc()}")

    torchweld.reset()
    started = [threading.Thread(target=loop, args=(k,)) for k in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(SECONDS)
        if thread.is_alive():
            failed.append(f"{thread.name} does not end")
    if torchweld.statistics()["internal_errors"]:
        failed.append(f"internal errors: {torchweld.statistics()}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for seed in range(options.first, options.first + options.count):
        failed = run(seed, options.threads, options.rounds)
        bad += bool(failed)
        print(seed, torchweld.statistics(), *failed, sep="\n", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
