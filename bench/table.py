"""Draw README's table of results from bench/results/cpu.json, between the two markers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
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


def table(content: dict[str, Any]) -> str:
    """The Markdown table, and one paragraph on how it was measured."""
    machine, means = content["machine"], content["geomeans"]["all"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
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


def main() -> int:
    results = ROOT / "bench" / "results" / "cpu.json"
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = table(json.loads(results.read_text(encoding="utf-8")))
    readme.write_text(f"{before}{BEGIN}\n{drawn}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
