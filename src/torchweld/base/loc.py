"""Where in the user's program something was met."""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loc:
    """One source line: file, 1-based line number."""

    file: str
    line: int

    def text(self) -> str:
        """`file:line: the line itself`, as errors show it."""
        source = linecache.getline(self.file, self.line).strip()
        head = f"{self.file}:{self.line}"
        return f"{head}: {source}" if source else head


NOWHERE = Loc("<unknown>", 0)
