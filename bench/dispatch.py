"""What guards and dispatch alone cost, against torch.compile: of a module with 160 parameters, and
of an entry with four symbolic sizes over one for fixed sizes.

All get a backend that returns a constant, so that a call is guards and dispatch only. Rounds are
interleaved; the result goes to bench/results/dispatch.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import torchweld
from torchweld.workbench.machine import describe

ROUNDS, CALLS = 60, 300
RESULT = Path(__file__).resolve().parent / "results" / "dispatch.json"
SIZES, OTHER_SIZES = (5, 6, 7, 9), (11, 12, 13, 14)
Call = Callable[[], Any]
Compile = Callable[..., Callable[..., Any]]


def _returns(value: torch.Tensor) -> Callable[[Any, Any], Callable[..., Any]]:
    """A backend whose code returns `value`, whatever it gets."""
    return lambda gm, inputs: lambda *args: (value,)


def _timed(lanes: Mapping[str, Call]) -> dict[str, list[float]]:
    """Microseconds a call, lane after lane in every round."""
    times: dict[str, list[float]] = {name: [] for name in lanes}
    for call in lanes.values():
        call()
    for _ in range(ROUNDS):
        for name, call in lanes.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return times


def _rows(times: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"median_us": statistics.median(t), "best_us": min(t), "worst_us": max(t)}
        for name, t in times.items()
    }


def parameters() -> dict[str, Any]:
    """The guards of 160 parameters."""
    layers: list[torch.nn.Module] = []
    for _ in range(40):
        layers += [torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)]
    module = torch.nn.Sequential(*layers).eval()
    x = torch.randn(4, 8)
    mine = torchweld.compile(module, backend=_returns(x))
    theirs = torch.compile(module, backend=_returns(x))
    rows = _rows(_timed({"torchweld": lambda: mine(x), "torch.compile": lambda: theirs(x)}))
    ratio = rows["torch.compile"]["median_us"] / rows["torchweld"]["median_us"]
    return {"case": "40 x (Linear 8x8, LayerNorm), no_grad, a backend that does nothing",
            "rows": rows, "ratio_of_medians": ratio}  # fmt: skip


def four_sizes(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a.sum() + b.sum() + c.sum() + d.sum()


def _called(compile: Compile, *, varied: bool) -> Call:
    """A call with SIZES. varied: with other sizes before, so that it finds an entry for any size.

    Both kinds are compiled with the same options: dynamic=False costs torch.compile time of its own
    in every call.
    """
    # a code object of its own: torch.compile keeps its entries there
    fn = types.FunctionType(four_sizes.__code__.replace(), globals())
    compiled = compile(fn, backend=_returns(torch.zeros(())))
    inputs = [torch.randn(n, 8) for n in SIZES]
    if varied:
        compiled(*(torch.randn(n, 8) for n in OTHER_SIZES))
    return lambda: compiled(*inputs)


def symbols() -> dict[str, Any]:
    """What four symbolic sizes add to a call: the median of paired rounds."""
    lanes: dict[str, Call] = {}
    for name, compile in (("torchweld", torchweld.compile), ("torch.compile", torch.compile)):
        lanes[f"{name} static"] = _called(compile, varied=False)
        lanes[f"{name} dynamic"] = _called(compile, varied=True)
    times = _timed(lanes)
    over = {
        name: statistics.median(
            b - a for a, b in zip(times[f"{name} static"], times[f"{name} dynamic"], strict=True))
        for name in ("torchweld", "torch.compile")
    }  # fmt: skip
    return {"case": "4 tensors, each with a symbolic size, a backend that does nothing",
            "rows": _rows(times), "over_static_us": over}  # fmt: skip


def main() -> int:
    torch.set_num_threads(2)
    with torch.no_grad():
        found = {"machine": describe(), **parameters(), "symbols": symbols()}
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["rows"], indent=1), f"ratio {found['ratio_of_medians']:.1f}")
    print(json.dumps(found["symbols"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
