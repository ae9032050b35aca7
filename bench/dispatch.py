"""What guards and dispatch alone cost for a module with 160 parameters, against torch.compile.

Both get a backend that returns a constant, so that a call is guards and dispatch only. Rounds are
interleaved; the result goes to bench/results/dispatch.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchweld
from torchweld.workbench.machine import describe

ROUNDS, CALLS = 60, 300
RESULT = Path(__file__).resolve().parent / "results" / "dispatch.json"


def main() -> int:
    torch.set_num_threads(2)
    layers: list[torch.nn.Module] = []
    for _ in range(40):
        layers += [torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)]
    module = torch.nn.Sequential(*layers).eval()
    x = torch.randn(4, 8)

    def nothing(gm: Any, inputs: Any) -> Callable[..., Any]:
        return lambda *args: (x,)

    lanes = {
        "torchweld": torchweld.compile(module, backend=nothing),
        "torch.compile": torch.compile(module, backend=nothing),
    }
    times: dict[str, list[float]] = {name: [] for name in lanes}
    with torch.no_grad():
        for call in lanes.values():
            call(x)
        for _ in range(ROUNDS):
            for name, call in lanes.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call(x)
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    rows = {
        name: {"median_us": statistics.median(t), "best_us": min(t), "worst_us": max(t)}
        for name, t in times.items()
    }
    ratio = rows["torch.compile"]["median_us"] / rows["torchweld"]["median_us"]
    found = {"case": "40 x (Linear 8x8, LayerNorm), no_grad, a backend that does nothing",
             "machine": describe(), "rows": rows, "ratio_of_medians": ratio}  # fmt: skip
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1), f"ratio {ratio:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
