"""What was promised of the sizes of one call, as each of its captures takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchweld.ir.conditions import Condition, Junction, Relation, at_most, equal, junction
from torchweld.ir.expr import Expr, Int, Sym, as_expr, atoms, substitute, terms_of
from torchweld.ir.guard import Guard, Reading
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.source import Source


@dataclass(frozen=True, slots=True)
class Promise:
    """What a size or number is: an expression of sizes by name. None: always the same.

    strict: whether it is an error if one value only fits.
    """

    expr: Expr | None
    strict: bool = True

    @property
    def varies(self) -> bool:
        """Whether it is another one in another call."""
        return self.expr is not None and not isinstance(self.expr, Int)


STAYS = Promise(None)


@dataclass(slots=True, eq=False)
class Promised:
    """What is promised of the arguments of one call.

    tensors: id -> dimension -> what it is, for all dimensions of which something is said. numbers:
    of ints, by where they are found. shared: the names that stand in several places.
    """

    tensors: dict[int, dict[int, list[Promise]]] = field(default_factory=dict)
    numbers: dict[Source, Promise] = field(default_factory=dict)
    assumptions: tuple[Condition, ...] = ()
    shared: set[Expr] = field(default_factory=set)

    def of(self, x: torch.Tensor) -> dict[int, list[Promise]] | None:
        """What is said of the sizes of a tensor; None: nothing, so they vary as usual."""
        return self.tensors.get(id(x))

    def varying(self, x: torch.Tensor) -> set[int] | None:
        """The dimensions of a tensor that vary; None: as usual."""
        said = self.of(x)
        if said is None:
            return None
        return {d for d, all_ in said.items() if any(p.varies for p in all_)}

    def is_strict(self, x: object, at: Reading) -> bool:
        """Whether it was promised without fail that this size of `x`, or number, varies."""
        number = self.numbers.get(at.source)
        said = self.tensors.get(id(x), {}).get(at.dim, ()) if number is None else (number,)
        return any(p.varies and p.strict for p in said)

    def bounds(self, source: Source) -> InRange | None:
        """What is to hold for the number there; None: it has to do with other sizes."""
        e = self.numbers[source].expr
        return InRange(e.lo, e.hi) if isinstance(e, Sym) and e not in self.shared else None

    def is_fixed(self, guard: Guard) -> bool:
        """Whether a guard is for one value of a number that was promised to vary without fail."""
        if guard.kind != "equal" or guard.expected in (0, 1) or guard.source is None:
            return False
        promise = self.numbers.get(guard.source, STAYS)
        return promise.varies and promise.strict

    def late(self) -> frozenset[Source]:
        """Where numbers are found that vary."""
        return frozenset(s for s, p in self.numbers.items() if p.varies)


class InRange:
    """Answers whether a number is within the bounds that were promised."""

    __slots__ = ("hi", "lo")

    def __init__(self, lo: int | None, hi: int | None) -> None:
        self.lo, self.hi = lo, hi

    def __call__(self, x: Any) -> bool:
        return (self.lo is None or x >= self.lo) and (self.hi is None or x <= self.hi)

    def __hash__(self) -> int:
        return hash((self.lo, self.hi))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InRange) and (other.lo, other.hi) == (self.lo, self.hi)

    def __repr__(self) -> str:
        return f"from {self.lo} to {self.hi}"


class Wiring:
    """The symbols of one capture, held to what is promised of them.

    A name is bound to the first size that has it; what is made of names becomes a fact as soon as
    these are bound.
    """

    def __init__(self, env: SizeEnv, promised: Promised) -> None:
        self._env, self._known = env, dict[Expr, Expr]()
        self._waiting: list[tuple[Expr, Expr]] = []
        self._assumed = list(promised.assumptions)

    def bind(self, symbol: Expr, promises: Iterable[Promise]) -> None:
        """Take down what a symbol was promised to be."""
        self._waiting += [(p.expr, symbol) for p in promises if p.expr is not None]
        settled = True
        while settled:
            settled = any(self._settle(pair) for pair in list(self._waiting))
        for c in list(self._assumed):
            if names_in(c) <= self._known.keys():
                self._assumed.remove(c)
                self._env.decide(renamed(c, self._known))

    def _settle(self, pair: tuple[Expr, Expr]) -> bool:
        """Whether an equation says something now: then it is a fact, and done."""
        promise, symbol = pair
        unknown = atoms(promise) - self._known.keys()
        if not unknown:
            self._env.decide(equal(symbol, substitute(promise, self._known)))
        elif (found := solved(promise, symbol, unknown, self._known)) is None:
            return False
        else:
            name, steps, value = found
            self._env.decide(equal(value % steps, 0))
            size = self._known[name] = value // steps
            for low, high in ((name.lo, size), (size, name.hi)):
                if low is not None and high is not None:
                    self._env.decide(at_most(low, high))
        self._waiting.remove(pair)
        return True


def solved(promise: Expr, value: Expr, unknown: set[Expr],
           known: Mapping[Expr, Expr]) -> tuple[Expr, int, Expr] | None:  # fmt: skip
    """(name, n, e), where the promise is that `name` is e / n; None: it cannot be solved."""
    if len(unknown) != 1:
        return None
    (name,) = unknown
    terms = terms_of(substitute(promise, known))
    steps = terms.get((name,), 0)
    rest = sum((_product(m, n) for m, n in terms.items() if m != (name,)), as_expr(0))
    if steps <= 0 or name in atoms(rest):
        return None
    return name, steps, value - rest


def _product(factors: tuple[Expr, ...], n: int) -> Expr:
    out = as_expr(n)
    for f in factors:
        out = out * f
    return out


def names_in(c: Condition) -> set[Expr]:
    """The names of a condition."""
    match c:
        case Relation():
            return atoms(c.expr)
        case Junction():
            return set().union(*map(names_in, c.parts))
    return set()


def renamed(c: Condition, known: Mapping[Expr, Expr]) -> Condition:
    """A condition with names replaced."""
    match c:
        case Relation("=="):
            return equal(substitute(c.expr, known), 0)
        case Relation("<="):
            return at_most(substitute(c.expr, known), 0)
        case Relation():
            left = substitute(c.expr, known)
            return left.n != 0 if isinstance(left, Int) else Relation(c.op, left)
        case Junction():
            return junction(c.every, *(renamed(p, known) for p in c.parts))
    return c


def range_text(name: Expr) -> str:
    """The bounds of a name in words."""
    assert isinstance(name, Sym)
    low = "" if name.lo is None else f"{name.lo} <= "
    return f"{low}{name.text()}" + ("" if name.hi is None else f" <= {name.hi}")
