"""The table of the running Python: one row per opcode number.

The only place that tests the Python version. An unknown version has no rows: every instruction
then decodes to UNKNOWN, and every frame runs eagerly.
"""

from __future__ import annotations

import dis
import opcode
import sys

from torchweld.frame import translate as tr
from torchweld.frame.versions import py311, py312, py313

VERSIONS: dict[tuple[int, int], tr.Rows] = {
    (3, 11): py311.ROWS,
    (3, 12): py312.ROWS,
    (3, 13): py313.ROWS,
}

ROWS: tr.Rows = VERSIONS.get(sys.version_info[:2], {})
TABLE: tuple[tr.Row, ...] = tuple(ROWS.get(name, tr.unknown) for name in dis.opname[:256])
OPNAMES: list[str] = dis.opname
EXTENDED_ARG: int = dis.EXTENDED_ARG
SUPPORTED: bool = bool(ROWS)

_cache_entries = opcode._inline_cache_entries  # type: ignore[attr-defined]
CACHES: dict[int, int] = (
    {dis.opmap[name]: n for name, n in _cache_entries.items() if name in dis.opmap}
    if isinstance(_cache_entries, dict)
    else {op: n for op, n in enumerate(_cache_entries) if n}
)
"""Opcode -> how many code units of cache follow it."""

NULL_ABOVE: bool = sys.version_info >= (3, 13)
"""Whether the NULL of a call lies above the callable."""

# What FOR_ITER jumps to and skips when its iterator ends.
_LOOP_ENDS: dict[tuple[int, int], tuple[str, ...]] = {
    (3, 12): ("END_FOR",),
    (3, 13): ("END_FOR", "POP_TOP"),
}
LOOP_END: tuple[str, ...] = _LOOP_ENDS.get(sys.version_info[:2], ())
