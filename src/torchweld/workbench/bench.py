"""torchweld against its peers, side by side in one run: times, first calls, memory, differences."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from torchweld.workbench import table
from torchweld.workbench.cases import ALL_SUITES, case_named
from torchweld.workbench.lanes import Lane, close
from torchweld.workbench.machine import describe
from torchweld.workbench.suites import Case
from torchweld.workbench.worker import copy_elements

COMPILERS = ("eager", "torchweld", "torch.compile", "torch.jit.trace")
TRAINING = COMPILERS[:-1]
ON_GPU = ("eager", "torchweld", "torch.compile", "torch.compile reduce-overhead", "bare graph")
ON_GPU_TRAINING = ON_GPU[:-1]
BREAKS = ("eager", "torchweld", "torchweld unbroken", "torch.compile", "torch.compile unbroken")
FROZEN = ("eager", "torchweld", "torchweld frozen", "torch.compile", "torch.compile frozen")
DYNAMIC = ("eager", "torchweld", "torchweld static", "torch.compile", "torch.compile static")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds of `seconds` each per compiler, after `warm` seconds."""

    rounds: int = 15
    seconds: float = 0.25
    warm: float = 0.5


QUICK = Effort(rounds=5, seconds=0.1, warm=0.1)


def start(case: Case, compilers: Sequence[str], device: str, threads: int) -> list[Lane]:
    """Each compiler in a process of its own; on a few cores one after the other."""
    lanes: list[Lane] = []
    for name in (*compilers, *(("copy",) if case.nbytes else ())):
        lanes.append(Lane(case.name, name, device, threads))
        if device == "cpu":
            lanes[-1].ready()
    return lanes


def measure(case: Case, lanes: Sequence[Lane], device: str, effort: Effort) -> Row:
    """One row, timed in turns."""
    try:
        if device != "cpu":
            for lane in lanes:
                lane.ready()
        # one after the other: a first call may use every core
        results: dict[str, Row] = {lane.compiler: _first(lane) for lane in lanes}
        _check(case, lanes, results)
        _rounds(lanes, results, effort)
        if device != "cpu":
            _gpu_times(lanes, results)
        for lane in lanes:
            results[lane.compiler] |= _closing(lane)
    finally:
        close(lanes)
    return _row(case, results)


def _gpu_times(lanes: Sequence[Lane], results: dict[str, Row]) -> None:
    """What the GPU works per call. The profiler takes seconds to start: in all lanes at once."""
    for lane in lanes:
        lane.send("profile")
    for lane in lanes:
        lane.receive()
    for lane in lanes:
        answer = lane.ask("gpu")
        results[lane.compiler] |= {k: v for k, v in answer.items() if k != "error"}


def _first(lane: Lane) -> Row:
    answer = lane.ask("first")
    return {"first_s": answer.get("seconds"), "first_each_s": answer.get("each")}


def _check(case: Case, lanes: Iterable[Lane], results: dict[str, Row]) -> None:
    """The largest difference of each compiler's result from eager's.

    torch.compile draws random numbers from a stream of its own: nothing to compare.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "eager.pt")
        for lane in lanes:
            if lane.compiler == "eager":
                lane.ask("save", path=path)
            elif lane.compiler == "copy" or (case.random and lane.compiler == "torch.compile"):
                continue
            elif os.path.exists(path):
                answer = lane.ask("check", path=path)
                results[lane.compiler]["difference"] = answer.get("difference")
                results[lane.compiler]["magnitude"] = answer.get("magnitude")


def _rounds(lanes: Sequence[Lane], results: dict[str, Row], effort: Effort) -> None:
    """Interleaved rounds: A B C, A B C, ..., so that drift of the machine hits all alike."""
    for lane in lanes:
        lane.ask("warm", seconds=effort.warm)
    for _ in range(effort.rounds):
        for lane in lanes:
            us = lane.ask("round", seconds=effort.seconds).get("us")
            if us is not None:
                results[lane.compiler].setdefault("rounds_us", []).append(us)


def _closing(lane: Lane) -> Row:
    memory = lane.ask("memory")
    found: Row = {"peak_bytes": memory.get("host"), "device_bytes": memory.get("device"),
                  "call_bytes": memory.get("call")}  # fmt: skip
    if lane.compiler != "copy":
        found |= lane.ask("count")
    if lane.error is not None:
        found["error"] = lane.error
    return found


def _row(case: Case, results: dict[str, Row]) -> Row:
    """Medians, spreads, and ratios paired round by round."""
    for result in results.values():
        rounds = result.get("rounds_us")
        if rounds:
            result["us"] = statistics.median(rounds)
            result["spread"] = _spread(rounds)
    for name, result in results.items():
        if name in ("eager", "copy"):
            continue
        result["speedup"] = _ratio(results.get("eager", {}), result)
    row: Row = {"case": case.name, "title": case.title, "group": case.group,
                "random": case.random, "results": results}  # fmt: skip
    if "torch.compile" in results and "torchweld" in results:
        row["against_torch_compile"] = _ratio(results["torch.compile"], results["torchweld"])
    if "torch.compile reduce-overhead" in results and "torchweld" in results:
        row["against_reduce_overhead"] = _ratio(
            results["torch.compile reduce-overhead"], results["torchweld"])  # fmt: skip
    if "bare graph" in results and "torchweld" in results:
        row["of_bare_graph"] = _ratio(results["torchweld"], results["bare graph"])
    mine = results.get("torchweld", {})
    if mine.get("gpu_us") and mine.get("us"):
        row["of_gpu_time"] = mine["us"] / mine["gpu_us"]
    if "torch.compile frozen" in results and "torchweld frozen" in results:
        row["frozen_against_torch_compile"] = _ratio(
            results["torch.compile frozen"], results["torchweld frozen"])  # fmt: skip
    for name in ("torchweld", "torch.compile"):
        if name in results:
            results[name] |= _against_itself(results[name], name, results)
    if case.nbytes:
        _bandwidth(case, results)
    return row


def _against_itself(mine: Row, name: str, results: dict[str, Row]) -> Row:
    """One compiler next to itself in an easier place: speeds of its unbroken model, times of a
    compilation for one size."""
    found: Row = {}
    if f"{name} unbroken" in results:
        found["of_unbroken"] = _ratio(results[f"{name} unbroken"], mine)
    static = results.get(f"{name} static", {})
    if static:
        found["of_static"] = _ratio(mine, static)
    if static.get("gpu_us") and mine.get("gpu_us"):
        found["gpu_of_static"] = mine["gpu_us"] / static["gpu_us"]
    return found


def _ratio(slow: Row, fast: Row) -> float | None:
    """Median over the rounds of slow's time over fast's time in the same round."""
    pairs = list(zip(slow.get("rounds_us", ()), fast.get("rounds_us", ()), strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else None


def _spread(rounds: Sequence[float]) -> float:
    """Half the distance between the quartiles, relative to the median."""
    if len(rounds) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(rounds, n=4)
    return (high - low) / 2 / middle


def _bandwidth(case: Case, results: dict[str, Row]) -> None:
    copied = 2 * copy_elements(case.device or "cpu") * 4
    for name, result in results.items():
        if "us" not in result:
            continue
        nbytes = copied if name == "copy" else case.nbytes
        result["gb_per_s"] = nbytes / result["us"] / 1e3
        rounds = results["copy"].get("rounds_us", ())
        pairs = zip(rounds, result["rounds_us"], strict=False)
        of_copy = [(nbytes / mine) / (copied / copy) for copy, mine in pairs]
        if of_copy:
            result["of_copy"] = statistics.median(of_copy)


def geomean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that there are."""
    logs = [math.log(v) for v in values if v]
    return math.exp(sum(logs) / len(logs)) if logs else None


_IMPORT = """
import sys, time, torch
start = time.perf_counter()
import torchweld
bare = time.perf_counter() - start
torchweld.compile
peers = sum(name.startswith(("torch._dynamo", "torch._inductor")) for name in sys.modules)
print(bare, time.perf_counter() - start, peers)
"""


def import_seconds(times: int = 5) -> Row:
    """Seconds of `import torchweld` once torch is imported, without and with its compiler.

    peer_modules: how many modules of torch._dynamo and torch._inductor that loads.
    """
    bare, seconds, peers = [], [], 0
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
        )
        first, second, third = done.stdout.split()
        bare.append(float(first))
        seconds.append(float(second))
        peers = max(peers, int(third))
    return {
        "bare_seconds": statistics.median(bare),
        "seconds": statistics.median(seconds),
        "peer_modules": peers,
    }


def run(
    cases: Sequence[str], *, compilers: Sequence[str] = COMPILERS, effort: Effort = Effort(),
    threads: int = 2, device: str | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Measure the named cases; yields each row as it is done.

    On a GPU machine, which has many cores, the processes of the next case start meanwhile.
    """
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = [case_named(name) for name in cases]
    where = [case.device or found for case in chosen]
    ahead: list[Lane] = []
    try:
        for i, case in enumerate(chosen):
            lanes = ahead or start(case, compilers, where[i], threads)
            ahead = []
            if i + 1 < len(chosen) and where[i + 1] != "cpu":
                ahead = start(chosen[i + 1], compilers, where[i + 1], threads)
            yield measure(case, lanes, where[i], effort)
    finally:
        close(ahead)


def document(rows: Sequence[Row], setting: Row) -> Row:
    """What is written to the JSON file: the rows, geometric means, machine and versions."""
    groups: dict[str, Row] = {}
    for group in (*sorted({r["group"] for r in rows}), "all"):
        mine = [r for r in rows if group in (r["group"], "all")]
        groups[group] = {
            "against_torch_compile": geomean(r.get("against_torch_compile") for r in mine),
            "against_reduce_overhead": geomean(r.get("against_reduce_overhead") for r in mine),
            "against_eager": geomean(r["results"].get("torchweld", {}).get("speedup")
                                     for r in mine),
            "first_call_of_torch_compile": geomean(_first_ratio(r) for r in mine),
        }  # fmt: skip
    return {
        **setting,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": describe(),
        "geomeans": groups,
        "rows": list(rows),
    }


def _first_ratio(row: Row) -> float | None:
    """torch.compile's cold first call over torchweld's."""
    mine = row["results"].get("torchweld", {}).get("first_s")
    theirs = row["results"].get("torch.compile", {}).get("first_s")
    return theirs / mine if mine and theirs else None


def write(path: Path, content: Row) -> None:
    """The JSON file, replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


_PEERS = {"training": TRAINING, "breaks": BREAKS, "dynamic": DYNAMIC,
          "gpu-training": ON_GPU_TRAINING, "gpu-dynamic": DYNAMIC}  # fmt: skip


def _peers(suite: str) -> Sequence[str]:
    if suite in _PEERS:
        return _PEERS[suite]
    return ON_GPU if suite.startswith("gpu") else COMPILERS


def main(suite: str, only: Sequence[str], quick: bool, json_path: str | None, threads: int,
         compilers: Sequence[str] = ()) -> int:  # fmt: skip
    """`torchweld bench`: measure, print the table, write the JSON if asked."""
    compilers = compilers or _peers(suite)
    chosen = [n for n in ALL_SUITES[suite] if not only or n in only]
    effort = QUICK if quick else Effort()
    setting = {"suite": suite, "threads": threads, "rounds": effort.rounds}
    setting |= {"import": import_seconds()}
    rows: list[Row] = []
    for row in run(chosen, compilers=compilers, effort=effort, threads=threads):
        table.progress(row)
        rows.append(row)
        if json_path:  # after each row, so that an interrupted run is not lost
            write(Path(json_path), document(rows, setting))
    table.show(document(rows, setting))
    return 0
