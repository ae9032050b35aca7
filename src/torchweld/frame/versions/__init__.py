"""The table of the running Python: one row per opcode number.

The only place that tests the Python version. An unknown version has no rows: every instruction
then decodes to UNKNOWN, and every frame runs eagerly.
"""

from __future__ import annotations

import dis
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
