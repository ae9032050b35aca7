"""Inputs that vary because somebody has listed their names, or what they are in the first call.

TORCHWELD_DYNAMIC_SOURCES, and torch's own `torch.compiler.config.dynamic_sources`,
`unbacked_sources` and `dynamic_values`. Names are written as torch writes them: `L['x']` is an
argument, `L['self'].scale` an attribute of one, `G['table']` a global; an entry is a name or a
regular expression, with `:1` behind it for one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from torchweld.base import config
from torchweld.ir.source import (
    Attr,
    CellContents,
    ClosureCell,
    InstanceDict,
    Item,
    Local,
    Pinned,
    Source,
)

_DIM = re.compile(r"(.*):(\d+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Listed:
    """What is listed. entries: (name or regular expression, dimension; None: all). called: names of
    arguments that are found at other places."""

    entries: tuple[tuple[str, int | None], ...]
    values: frozenset[int]
    called: Mapping[Source, str]

    def dims(self, x: torch.Tensor, source: Source) -> set[int]:
        """The dimensions of a tensor that vary."""
        out = {d for d in range(x.dim()) if int(x.shape[d]) in self.values}
        for dim in self._found(name_of(source, self.called)):
            out |= set(range(x.dim())) if dim is None else {dim} & set(range(x.dim()))
        return out

    def varies(self, number: object, source: Source) -> bool:
        """Whether a number varies."""
        if type(number) is int and number in self.values:
            return True
        return next(self._found(name_of(source, self.called)), 0) != 0

    def _found(self, name: str | None) -> Iterator[int | None]:
        for pattern, dim in self.entries if name is not None else ():
            if pattern == name or _matches(pattern, name):  # type: ignore[arg-type]
                yield dim


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False


def listed(called: Callable[[], Mapping[Source, str]] = dict) -> Listed | None:
    """What is listed now; None: nothing, as usual. called: see Listed."""
    theirs = torch.compiler.config
    text = ",".join((config.current().dynamic_sources, theirs.dynamic_sources,
                     getattr(theirs, "unbacked_sources", "")))  # fmt: skip
    values = getattr(theirs, "dynamic_values", "")
    if not values and len(text) == text.count(","):
        return None
    entries = (e for e in text.replace(" ", "").split(",") if e)
    numbers = frozenset(int(v) for v in values.replace(" ", "").split(",") if v)
    return Listed(tuple(_entry(e) for e in entries), numbers, called())


def _entry(text: str) -> tuple[str, int | None]:
    found = _DIM.match(text)
    return (found.group(1), int(found.group(2))) if found else (text, None)


def _item(s: Item, called: Mapping[Source, str]) -> str | None:
    if isinstance(s.base, InstanceDict):
        base = name_of(s.base.base, called)
        return base and f"{base}.{s.key}"
    if isinstance(s.base, Pinned) and s.base.label.startswith("globals"):
        return f"G[{s.key!r}]"
    base = name_of(s.base, called)
    return base and f"{base}[{s.key!r}]"


def _attr(s: Attr, called: Mapping[Source, str]) -> str | None:
    base = name_of(s.base, called)
    return base and f"{base}.{s.name}"


_NAMES: dict[type[Source], Callable[..., str | None]] = {
    Local: lambda s, called: f"L[{s.name!r}]",
    ClosureCell: lambda s, called: f"L[{s.name!r}]",
    CellContents: lambda s, called: name_of(s.base, called),
    Item: _item,
    Attr: _attr,
}  # fmt: skip


def name_of(source: Source, called: Mapping[Source, str]) -> str | None:
    """What torch calls an input; None if it has no name for such a place."""
    if source in called:
        return f"L[{called[source]!r}]"
    how = _NAMES.get(type(source))
    return None if how is None else how(source, called)
