"""Guard: one fact that must hold for a compiled entry to be used again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.conditions import Fact
from torchweld.ir.expr import Expr, Sym, atoms
from torchweld.ir.size_values import Rounded, symbols_of
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
    "same_value": "the Source of a tensor on the CPU that holds the same, bit for bit",
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
    """A fact about sizes, and where those that are in it are found.

    computed: symbols that are computed of others, these before them.
    """

    fact: Fact
    readings: tuple[Reading, ...]
    computed: tuple[tuple[Expr, Rounded], ...] = ()

    def text(self) -> str:
        return self.fact.text(self.names(lambda r: r.name(r.source.text())))

    def names(self, name: Callable[[Reading], str]) -> dict[Expr, str]:
        """What the symbols are called, by the names of those that are read."""
        names: dict[Expr, str] = {r.symbol: name(r) for r in self.readings}
        for symbol, made in self.computed:
            names[symbol] = made.text(names)
        return names

    def values(self, read: Callable[[Reading], int]) -> dict[Expr, int]:
        """The symbols' values. Errors: those of arithmetic."""
        values: dict[Expr, int] = {r.symbol: read(r) for r in self.readings}
        for symbol, made in self.computed:
            values[symbol] = made.now(values)
        return values


def relation_of(fact: Fact, readings: Mapping[Expr, Reading],
                computed: Mapping[Expr, Rounded]) -> SizeRelation:  # fmt: skip
    """A fact with the readings that it needs."""
    needed, made = {*atoms(fact.left), *atoms(fact.right)}, dict[Expr, Rounded]()
    for symbol, how in reversed(list(computed.items())):
        if symbol in needed:
            needed.remove(symbol)
            needed |= symbols_of(how.value)
            made = {symbol: how, **made}
    found = tuple(readings[s] for s in sorted(needed, key=Expr.text))
    return SizeRelation(fact, found, tuple(made.items()))


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
