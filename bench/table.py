"""Draw README's tables of results from bench/results, between the markers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GPU_HEAD = """\
| work | eager us | torchweld us | speedup | torch.compile reduce-overhead \
| GPU us: eager / torchweld | of copy bandwidth | first call s (torch.compile) |
|---|---|---|---|---|---|---|---|"""
TRAINING_HEAD = """\
| training step | eager us | torchweld us | speedup | torch.compile | reduce-overhead \
| GPU us: eager / torchweld / torch.compile | peak MB: torchweld / torch.compile \
| first step s (torch.compile) |
|---|---|---|---|---|---|---|---|---|"""
HEAD = """\
| work | eager us | torchweld us | spread | speedup | torch.compile | torch.jit.trace | of copy \
bandwidth | first call s (torch.compile) | largest difference |
|---|---|---|---|---|---|---|---|---|---|"""


def number(value: Any, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def times(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}x"


def line(row: dict[str, Any]) -> str:
    """One Markdown row."""
    results = row["results"]
    eager, mine = results.get("eager", {}), results.get("torchweld", {})
    peer, trace = results.get("torch.compile", {}), results.get("torch.jit.trace", {})
    share = mine.get("of_copy")
    cells = (
        row["title"],
        number(eager.get("us")),
        number(mine.get("us")),
        "-" if mine.get("spread") is None else f"{mine['spread']:.0%}",
        times(mine.get("speedup")),
        times(peer.get("speedup")),
        times(trace.get("speedup")),
        "" if share is None else f"{share:.0%}",
        f"{number(mine.get('first_s'), '.2f')} ({number(peer.get('first_s'), '.1f')})",
        number(mine.get("difference"), ".0e"),
    )
    return "| " + " | ".join(cells) + " |"


def installed(machine: dict[str, Any]) -> str:
    """The versions that were measured."""
    return ", ".join(f"{k} {v}" for k, v in machine["versions"].items())


def table(content: dict[str, Any]) -> str:
    """The Markdown table, and one paragraph on how it was measured."""
    machine, means = content["machine"], content["geomeans"]["all"]
    versions = installed(machine)
    note = (
        f"{machine['gpu'] or machine['cpu']}, {content['threads']} threads, f32, no_grad; "
        f"Python {machine['python']}, {versions}; {content['date']}, commit {machine['commit']}. "
        f"Medians of {content['rounds']} interleaved rounds; speedups are against eager; first "
        f"calls are in fresh processes with empty caches. Geometric means: "
        f"{times(means['against_eager'])} eager, {times(means['against_torch_compile'])} "
        f"torch.compile; first call {number(means['first_call_of_torch_compile'], '.1f')} times "
        f"sooner than torch.compile's. `import torchweld` on top of `import torch`: "
        f"{content['import']['bare_seconds'] * 1e3:.0f} ms, with the compiler loaded "
        f"{content['import']['seconds'] * 1e3:.0f} ms."
    )
    return "\n".join((HEAD, *map(line, content["rows"]), "", note))


def gpu_line(row: dict[str, Any]) -> str:
    """One Markdown row of the GPU's table."""
    results = row["results"]
    eager, mine = results.get("eager", {}), results.get("torchweld", {})
    peer = results.get("torch.compile reduce-overhead", {})
    cold = results.get("torch.compile", peer)
    share = mine.get("of_copy")
    cells = (
        row["title"],
        number(eager.get("us"), ",.1f"),
        number(mine.get("us"), ",.1f"),
        times(mine.get("speedup")),
        times(peer.get("speedup")),
        f"{number(eager.get('gpu_us'))} / {number(mine.get('gpu_us'))}",
        "" if share is None else f"{share:.0%}",
        f"{number(mine.get('first_s'), '.2f')} ({number(cold.get('first_s'), '.1f')})",
    )
    return "| " + " | ".join(cells) + " |"


def gpu_table(content: dict[str, Any]) -> str:
    """The GPU's Markdown table, and one paragraph on how it was measured."""
    machine = content["machine"]
    versions = installed(machine)
    note = (
        f"{machine['gpu']}, bf16 unless said, no_grad, default mode; Python {machine['python']}, "
        f"{versions}; {content['date']}. Medians of at least {content['rounds']} interleaved "
        f"rounds, wall clock; speedups are against eager."
    )
    return "\n".join((GPU_HEAD, *map(gpu_line, content["rows"]), "", note))


def peak(result: dict[str, Any]) -> str:
    """Megabytes that were held at most: of the GPU's memory where there is one, else the host's."""
    value = result.get("device_bytes") or result.get("peak_bytes")
    return number(None if value is None else value / (1 << 20))


def training_line(row: dict[str, Any]) -> str:
    """One Markdown row of the tables of training steps."""
    results = row["results"]
    eager, mine = results.get("eager", {}), results.get("torchweld", {})
    default, graphs = results.get("torch.compile", {}), results.get(
        "torch.compile reduce-overhead", {})  # fmt: skip
    peer = default or graphs
    busy = " / ".join(number(r.get("gpu_us")) for r in (eager, mine, peer))
    cells = (
        row["title"], number(eager.get("us")), number(mine.get("us")), times(mine.get("speedup")),
        times(default.get("speedup")), times(graphs.get("speedup")),
        busy if mine.get("gpu_us") is not None else "-",
        f"{peak(mine)} / {peak(peer)}", f"{first_steps(mine)} ({first_steps(peer)})",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def first_steps(result: dict[str, Any]) -> str:
    """Seconds of the first step; of a step with an optimizer those of the second one too."""
    each = result.get("first_each_s") or [result.get("first_s")]
    return " + ".join(number(s, ".1f") for s in each)


def training_table(content: dict[str, Any]) -> str:
    """The Markdown table of training steps, and how they were measured."""
    machine = content["machine"]
    versions = installed(machine)
    where = machine["gpu"] or f"{machine['cpu']}, {content['threads']} threads"
    note = (
        f"{where}, {'bf16' if machine['gpu'] else 'f32'}, default mode; Python "
        f"{machine['python']}, {versions}; {content['date']}. Forward and backward; medians of "
        f"{content['rounds']} interleaved rounds, wall clock; speedups are against eager."
    )
    return "\n".join((TRAINING_HEAD, *map(training_line, content["rows"]), "", note))


def drawn(text: str, name: str, table: str) -> str:
    """The text with what is between the markers of `name` replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}" if found else text


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, file, draw in (
        ("bench", "cpu", table), ("bench-gpu", "gpu", gpu_table),
        ("bench-training", "training", training_table),
        ("bench-gpu-training", "gpu-training", training_table),
    ):  # fmt: skip
        path = ROOT / "bench" / "results" / f"{file}.json"
        text = drawn(text, name, draw(json.loads(path.read_text(encoding="utf-8"))))
    readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
