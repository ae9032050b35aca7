"""Guard: one fact that must hold for a compiled entry to be used again."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.conditions import Fact
from torchweld.ir.expr import Expr, Sym, atoms
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
    "lacks_tensor": "the Source of a tensor that is no key of the dict",
    "keys": "the tuple of all keys of the dict, in order",
    "tensor": "the metadata tuple of frame.program.tensor_codes, None where any value passes",
    "same": "the Source of a value that is the same object",
    "distinct": "the Source of a value that is a different object",
    "class_version": "a ClassState: nothing was assigned in the class or its bases since capture",
    "state": "(nullary callable, result): interpreter or torch state",
    "sizes": "a SizeRelation; source is None",
    "predicate": "a callable of the value that answers true; the last resort",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the value of a symbol is found: a "size" or "stride" of the tensor at `source`, in
    dimension `dim`, or the "number" there."""

    symbol: Sym
    source: Source
    kind: str
    dim: int = 0

    def name(self, place: str) -> str:
        """As the user would write it. place: what the source is called."""
        shown = {"size": f"{place}.shape[{self.dim}]", "stride": f"{place}.stride({self.dim})"}
        return shown.get(self.kind, place)


@dataclass(frozen=True, slots=True)
class SizeRelation:
    """A fact about sizes, and where those that are in it are found."""

    fact: Fact
    readings: tuple[Reading, ...]

    def text(self) -> str:
        return self.fact.text({r.symbol: r.name(r.source.text()) for r in self.readings})


def relation_of(fact: Fact, readings: dict[Expr, Reading]) -> SizeRelation:
    """A fact with the readings that it needs."""
    needed = sorted(atoms(fact.left) | atoms(fact.right), key=Expr.text)
    return SizeRelation(fact, tuple(readings[s] for s in needed))


@dataclass(frozen=True, slots=True)
class Guard:
    """`kind` is a row of KINDS. `why`: the user line that made it necessary.

    For kinds "state" and "sizes", source is None.
    """

    kind: str
    source: Source | None
    expected: object
    why: Loc = NOWHERE

    def text(self) -> str:
        if isinstance(self.expected, SizeRelation):
            return f"{self.kind:<13} {self.expected.text()}"
        name = self.source.text() if self.source is not None else "state"
        shown = self.expected.text() if isinstance(self.expected, Source) else repr(self.expected)
        return f"{self.kind:<13} {name}  {shown[:200]}"
