"""Guard: one fact that must hold for a compiled entry to be used again."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.source import Source

# kind -> what `expected` is
KINDS: dict[str, str] = {
    "type": "the exact type of the value",
    "is": "the object itself",
    "is_not": "an object that it must not be",
    "equal": "an immutable constant: same type, equal value",
    "length": "len() of a list, tuple, dict, set or str",
    "has_key": "a key that the dict has",
    "lacks_key": "a key that the dict does not have",
    "keys": "the tuple of all keys of the dict, in order",
    "tensor": "the metadata tuple of frame.program.tensor_codes, None where any value passes",
    "same": "the Source of a value that is the same object",
    "distinct": "the Source of a value that is a different object",
    "class_version": "None: no attribute of the class or its bases was assigned since capture",
    "state": "(nullary callable, result): interpreter or torch state",
    "predicate": "a callable of the value that answers true; the last resort",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """`kind` is a row of KINDS. `why`: the user line that made it necessary.

    For kind "state", source is None.
    """

    kind: str
    source: Source | None
    expected: object
    why: Loc = NOWHERE

    def text(self) -> str:
        name = self.source.text() if self.source is not None else "state"
        shown = self.expected.text() if isinstance(self.expected, Source) else repr(self.expected)
        return f"{self.kind:<13} {name}  {shown[:200]}"
