"""The benchmark's table on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
_console = Console(width=150 if not Console().is_terminal else None)
COLUMNS = ("us", "spread", "speedup", "GB/s", "kernels", "first call s", "peak MB", "call MB",
           "GPU us", "difference")  # fmt: skip


def _number(value: Any, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)


def cells(name: str, result: Row) -> list[str]:
    """One compiler's figures as text, in the order of COLUMNS."""
    speedup = 1.0 if name == "eager" else result.get("speedup")
    return [
        _number(result.get("us"), ",.1f" if (result.get("us") or 0) < 100 else ",.0f"),
        _number(result.get("spread"), ".0%"),
        "-" if speedup is None else f"{speedup:.2f}x",
        _number(result.get("gb_per_s"), ".1f"),
        _number(result.get("kernels"), ".0f"),
        _number(result.get("first_s"), ".2f"),
        _number(result.get("device_bytes") or result.get("peak_bytes"), ",.0f", 1 / 2**20),
        _number(result.get("call_bytes"), ",.0f", 1 / 2**20),
        _number(result.get("gpu_us"), ",.0f"),
        _number(result.get("difference"), ".1e"),
    ]


def varying(result: Row) -> str:
    """A row of several sizes: what it took to compile them, and what one entry for all costs."""
    on_gpu = result.get("gpu_of_static")
    return (
        f"compiles {_number(result.get('compilations'), '.0f')} graphs, all first calls take "
        f"{_number(result.get('first_s'), '.1f')} s; at the last size {result['of_static']:.2f} "
        "of the time of its entry for that size alone"
        + (f", {on_gpu:.2f} of its time on the GPU" if on_gpu else "")
    )


def progress(row: Row) -> None:
    """One line as soon as a case is done."""
    speed = row["results"].get("torchweld", {}).get("speedup")
    _console.print(f"{row['title']}: torchweld {_number(speed, '.2f')}x eager", highlight=False)


def show(content: Row) -> None:
    """The whole table, its means, and what it was measured on."""
    machine = content["machine"]
    caption = (
        f"{machine['gpu'] or machine['cpu']}, {content['threads']} threads, "
        f"torch {machine['versions'].get('torch')}, Python {machine['python']}, "
        f"medians of {content['rounds']} interleaved rounds; first calls with empty caches"
    )
    table = Table(caption=caption)
    table.add_column("case")
    table.add_column("compiler")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in content["rows"]:
        title = row["title"]
        for name, result in row["results"].items():
            table.add_row(title, name, *cells(name, result))
            title = ""
        table.add_section()
    _console.print(table)
    for row in content["rows"]:
        for name, result in row["results"].items():
            if "error" in result:
                _console.print(f"{row['title']}: {name} failed: {result['error']}",
                               highlight=False, markup=False)  # fmt: skip
    for row in content["rows"]:
        for name, result in row["results"].items():
            if result.get("of_unbroken"):
                _console.print(f"{row['title']}: {name} at {result['of_unbroken']:.2f} of its "
                               "unbroken speed", highlight=False)  # fmt: skip
            if result.get("of_static"):
                _console.print(f"{row['title']}: {name} {varying(result)}", highlight=False)
    for group, means in content["geomeans"].items():
        _console.print(
            f"geomean {group}: {_number(means['against_eager'], '.2f')}x eager, "
            f"{_number(means['against_torch_compile'], '.2f')}x torch.compile, first call "
            f"{_number(means['first_call_of_torch_compile'], '.1f')} times sooner",
            highlight=False,
        )
    taken = content["import"]
    _console.print(
        f"import torchweld on top of torch: {taken['bare_seconds'] * 1e3:.0f} ms, with its "
        f"compiler {taken['seconds'] * 1e3:.0f} ms, which loads {taken['peer_modules']} modules "
        "of torch._dynamo and torch._inductor",
        highlight=False,
    )
