"""One architecture under one compiler, in this process alone; a JSON line for each variant.

    python -m bench.capture_lane ARCHITECTURE torchweld|torch.compile
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import torchweld
import torchweld.pipeline
from torchweld.workbench.compare import differences
from torchweld.workbench.variants import MORE_TOKENS, Variant, variants

# the code of a frame without tensor operations, which torch.compile does not count either
NOTHING_TO_DO = "W113"
_PLACE = re.compile(r"\S*site-packages/")  # where this machine keeps its libraries


class Graphs:
    """A backend that compiles nothing and counts what it is given."""

    def __init__(self) -> None:
        self.operations: list[int] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
        self.operations.append(len(calls))
        return gm.forward


def ours(variant: Variant, graphs: Graphs) -> tuple[Any, list[str]]:
    """Our result, and the reason of every break; a frame that ran eagerly is one."""
    torchweld.reset()
    got = variant.run(lambda fn: torchweld.compile(fn, backend=graphs))
    refusals = torchweld.pipeline.STATISTICS.refusals
    reasons = [f"{why.code} {_PLACE.sub('', why.why)}" for why in refusals
               if why.code != NOTHING_TO_DO]  # fmt: skip
    broken = torchweld.statistics()["internal_errors"]
    return got, [*reasons, *["W901 internal error"] * broken]


def peers(variant: Variant, graphs: Graphs) -> tuple[Any, list[str]]:
    """torch.compile's result, and its breaks."""
    # the process of a peer measures nothing else; torchweld itself never imports it
    counters = importlib.import_module("torch._dynamo.utils").counters
    torch.compiler.reset()
    counters.clear()
    got = variant.run(lambda fn: torch.compile(fn, backend=graphs))
    breaks: Counter[str] = counters["graph_break"]
    return got, [line.splitlines()[0] for line, n in breaks.items() for _ in range(n)]


LANES = {"torchweld": ours, "torch.compile": peers}


def measure(variant: Variant, lane: str) -> dict[str, Any]:
    """What became of one variant."""
    want = variant.run()
    graphs = Graphs()
    try:
        got, breaks = LANES[lane](variant, graphs)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300], "graphs": len(graphs.operations)}
    answer: dict[str, Any] = {"graphs": len(graphs.operations), "operations": graphs.operations}
    unequal = [str(d)[:200] for d in differences(got, want, scale=10.0)]
    answer |= {"breaks": breaks, "unequal": unequal[:3]}
    if variant.generate and lane == "torchweld":
        answer |= lengthened(variant)
    return answer


def lengthened(variant: Variant) -> dict[str, Any]:
    """Graphs of the same `generate` when it makes more tokens, and where its result differs."""
    tokens = {"max_new_tokens": MORE_TOKENS, "min_new_tokens": MORE_TOKENS}
    longer = replace(variant, generate={**variant.generate, **tokens})
    want, graphs = longer.run(), Graphs()
    got, _ = ours(longer, graphs)
    unequal = [str(d)[:200] for d in differences(got, want, scale=10.0)]
    return {"longer": len(graphs.operations), **({"unequal": unequal[:3]} if unequal else {})}


def main(name: str, lane: str, *only: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for variant in variants(name):
        if only and variant.name not in only:
            continue
        print(json.dumps({"variant": variant.name, **measure(variant, lane)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
