"""Compare random tensor programs with eager: python -m tests.fuzz.tensor_run --first 0 --count 100.

In one process; prints each seed that differs and its program. Exit status 1 if any.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from tests.fuzz.tensor_inputs import Traits
from tests.fuzz.tensor_maker import GLOBALS, make_program
from tests.fuzz.tensor_outcome import difference, outcome

import torchweld

# a program that is computed in f64 says nothing about other floats
WIDER = {"torch.float32": "torch.float64", "torch.bfloat16": "torch.float64",
         "torch.float16": "torch.float64", ".float()": ".double()", ".half()": ".double()",
         ".bfloat16()": ".double()",
         "torch.autocast('cpu', dtype=torch.float64)": "if True"}  # fmt: skip


def function(source: str, name: str = "f") -> Callable[..., Any]:
    namespace = dict(GLOBALS)
    exec(compile(source, f"<tensors {hash(source)}>", "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def widened(source: str) -> str:
    for narrow, wide in WIDER.items():
        source = source.replace(narrow, wide).replace("with if True", "if True")
    return source


def check(seed: int, varying: bool | None = None, backend: str = "torchweld",
          wide: bool = False, rare: bool = False) -> str:  # fmt: skip
    """How the compiled program of a seed differs from eager, or ""."""
    torchweld.reset()
    traits = Traits.drawn(seed, varying, wide, rare)
    return check_source(make_program(seed, traits), seed, traits, backend)


def check_source(source: str, seed: int, traits: Traits, backend: str = "torchweld") -> str:
    """The same of a given program, with the arguments of a seed."""
    fn, wide = function(source), function(widened(source))
    compiled = torchweld.compile(function(source), backend=backend)
    for call in range(len(traits.sizes)):
        want = outcome(fn, seed, call, traits)
        got = outcome(compiled, seed, call, traits)
        found = difference(got, want, lambda: outcome(wide, seed, call, traits, wide=True))
        if found:
            said = f" ({got['said']})" if "said" in got else ""
            return f"call {call}: {found}{said}"
    if torchweld.statistics()["internal_errors"]:
        return "an internal error"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--backend", default="torchweld")
    parser.add_argument("--varying", action="store_true", default=None)
    parser.add_argument("--wide", action="store_true", help="more kinds of lines")
    parser.add_argument("--rare", action="store_true", help="of what programs rarely do, too")
    options = parser.parse_args()
    wide = options.wide or options.rare
    torch.set_num_threads(1)
    bad, totals = 0, Counter[str]()
    for seed in range(options.first, options.first + options.count):
        print(f"{seed} ", end="", file=sys.stderr, flush=True)
        found = check(seed, options.varying, options.backend, wide, options.rare)
        counts = torchweld.statistics()
        totals.update({k: int(counts[k]) for k in ("graphs", "breaks")})
        if found:
            bad += 1
            traits = Traits.drawn(seed, options.varying, wide, options.rare)
            print(f"--- {seed}: {found}\n{traits}\n{make_program(seed, traits)}", flush=True)
    print(f"{options.count} programs, {bad} differ; {totals['graphs']} graphs, "
          f"{totals['breaks']} breaks")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
