"""What the compiler did while somebody listened: frames captured, breaks, recompilations.

`explain` prints it. Nothing is kept while nobody listens.
"""

from __future__ import annotations

import operator
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchweld.base.errors import Refusal
from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.graph import VAL
from torchweld.ir.guard import Guard
from torchweld.misses import Miss

# attribute of a function of torchweld's: the user's function that it calls
STANDS_FOR = "_torchweld_stands_for"
# of each kind of note, the oldest are kept
_KEEP = 10_000


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph. runs: what became of it, in words; empty with a backend of the user's."""

    of: Named
    graph: GraphModule
    guards: tuple[Guard, ...]
    runs: str

    def operators(self) -> Counter[str]:
        """How often each operator is called in the graph."""
        nodes = [n for n in self.graph.graph.nodes if n.op.startswith("call")]
        return Counter(operator_name(n) for n in nodes if not _is_getitem(n))


@dataclass(frozen=True, slots=True)
class Eager:
    """A frame, or the part of it that `why` names, that runs eagerly."""

    of: Named
    why: Refusal


@dataclass(frozen=True, slots=True)
class Recompiled:
    """A function that was captured again. count: entries that it had before."""

    of: Named
    count: int
    why: tuple[Miss, ...]

    def text(self) -> str:
        """A line for each reason: `recompiled model.py:12: scale was 0.5, is 0.7; ...`."""
        begin = f"{self.of.at.file}:{self.of.at.line}"
        reasons = [m.text() if m.at is not NOWHERE else f"{begin}: {m.text()}" for m in self.why]
        return "\n".join(f"recompiled {r}" for r in reasons)


@dataclass(slots=True, eq=False)
class Notes:
    """What happened, in order."""

    captured: list[Captured] = field(default_factory=list)
    eager: list[Eager] = field(default_factory=list)
    recompiled: list[Recompiled] = field(default_factory=list)

    def add(self, note: Captured | Eager | Recompiled) -> None:
        kept: list[object] = getattr(self, type(note).__name__.lower())
        if len(kept) < _KEEP:
            kept.append(note)


_listeners: list[Notes] = []


def listen() -> Notes:
    """Notes of what any thread compiles from now on."""
    made = Notes()
    _listeners.append(made)
    return made


@contextmanager
def listening() -> Iterator[Notes]:
    """Notes of what any thread compiles inside the block."""
    made = listen()
    try:
        yield made
    finally:
        _listeners.remove(made)


def wanted() -> bool:
    """Whether somebody listens."""
    return bool(_listeners)


def note(event: Captured | Eager | Recompiled) -> None:
    """Tell whoever listens."""
    for listener in list(_listeners):
        listener.add(event)


@dataclass(frozen=True, slots=True)
class Named:
    """What the user calls a function, and where it begins."""

    name: str
    at: Loc


def named(fn: Any) -> Named:
    """The user's function behind `fn`: torchweld's own that call one say which."""
    shown = getattr(fn, STANDS_FOR, fn)
    shown = shown if isinstance(shown, types.FunctionType) else fn
    code = shown.__code__
    return Named(shown.__qualname__, Loc(code.co_filename, code.co_firstlineno))


def _is_getitem(node: Node) -> bool:
    """Taking one of several results is no operator."""
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return False
    return not isinstance(node.args[0].meta.get(VAL), torch.Tensor)


def operator_name(node: Node) -> str:
    """What a node calls, as the user knows it."""
    if isinstance(node.target, str):
        return node.target
    return str(getattr(node.target, "__name__", node.target))
