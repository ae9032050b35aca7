"""Writes the generated tables of docs/ir.md: `python tools/ir_docs.py`; `--check` only compares.

A table stands between `<!-- name:begin -->` and `<!-- name:end -->`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from torchweld.ir.dtype import DType
from torchweld.ir.loop_ops import OPS
from torchweld.ir.loop_verify import MODES, REDUCTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ir.md"
_KINDS = {"f": "float", "i": "integer", "b": "bool", "q": "8-bit float"}
_RULES = {
    "same": "T, ... -> T", "bool": "T, ... -> bool", "logic": "bool, ... -> bool",
    "select": "bool, T, T -> T", "cast": "any -> the node's dtype", "index": "i64, i64 -> i64",
}  # fmt: skip
_MEANINGS = {
    "sum": "a + b", "prod": "a * b", "max": "the larger, NaN wins", "min": "the smaller, NaN wins",
    "any": "a or b", "all": "a and b",
    "argmax": "i64 row-major position of the largest; the first of equals, the first NaN",
    "argmin": "i64 row-major position of the smallest; the first of equals, the first NaN",
    "scan_sum": "inclusive running sum", "scan_prod": "inclusive running product",
    "scan_max": "inclusive running maximum", "scan_min": "inclusive running minimum",
}  # fmt: skip


def _kinds(letters: str) -> str:
    return ", ".join(_KINDS[k] for k in letters)


def ops() -> list[str]:
    """One row per scalar operator, in the order of the table in loop_ops."""
    rows = ["| operator | arguments | types | meaning |", "|---|---|---|---|"]
    for name, row in OPS.items():
        rows.append(f"| `{name}` | {_RULES[row.rule]} ({row.arity}) | {_kinds(row.kinds)} "
                    f"| {row.doc} |")  # fmt: skip
    return rows


def reductions() -> list[str]:
    rows = ["| kind | types | meaning |", "|---|---|---|"]
    return rows + [f"| `{k}` | {_kinds(v)} | {_MEANINGS[k]} |" for k, v in REDUCTIONS.items()]


def modes() -> list[str]:
    signs = {"set": "=", "add": "+=", "mul": "*=", "max": "max=", "min": "min="}
    rows = ["| mode | text | types |", "|---|---|---|"]
    return rows + [f"| {k} | `{signs[k]}` | {_kinds(v)} |" for k, v in MODES.items()]


def dtypes() -> list[str]:
    rows = ["| dtype | bytes | arithmetic runs in |", "|---|---|---|"]
    for d in DType:
        rows.append(f"| `{d.value}` | {d.bytes or '-'} "
                    f"| {d.compute.value if d.computed else 'externs only'} |")  # fmt: skip
    return rows


TABLES: dict[str, Callable[[], list[str]]] = {
    "ops": ops, "reductions": reductions, "modes": modes, "dtypes": dtypes,
}  # fmt: skip


def filled(page: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = before + "\n".join([begin, *make(), end]) + after
    return page


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    made = filled(page)
    if "--check" in arguments:
        print("docs/ir.md is up to date" if page == made else "run: python tools/ir_docs.py")
        return int(page != made)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
