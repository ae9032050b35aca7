"""Steps: a captured graph in pieces, where the data decides sizes in the middle (ADR 0028)."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Graph

from torchweld.ir.conditions import Relation
from torchweld.ir.expr import Expr
from torchweld.ir.graph import Cause


@dataclass(frozen=True, slots=True)
class Found:
    """Where a symbol is read: kind "size" or "stride" of the tensor at a place, in dimension `dim`,
    or "number"."""

    symbol: Expr
    kind: str
    place: int
    dim: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What must hold of the symbols. message: of a check of the user's, else None."""

    relations: tuple[Relation, ...]
    message: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One piece. Values have places: those of the graph's inputs, then those that steps make.

    graph: torch-level, its placeholders in the order of `takes`. makes: whether it is run as it is,
    since it has operators that make sizes. takes: places, and symbols. gives: the places of its
    outputs. found, asked: what is read and asked behind it. layouts: sizes and strides that outputs
    are expected to have, by their places. drops: places that nobody looks at any more.
    causes: what makes sizes in it.
    """

    graph: Graph
    makes: bool
    takes: tuple[int | Expr, ...]
    gives: tuple[int, ...]
    found: tuple[Found, ...] = ()
    asked: tuple[Asked, ...] = ()
    layouts: tuple[tuple[int, tuple[Expr, ...], tuple[Expr, ...]], ...] = ()
    drops: tuple[int, ...] = ()
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """A graph in steps. found: what is read of the inputs. places: how many there are. outputs:
    the places of the graph's outputs."""

    steps: tuple[Step, ...]
    found: tuple[Found, ...]
    places: int
    outputs: tuple[int, ...]

    @property
    def compiled(self) -> int:
        """How many pieces are compiled."""
        return sum(not s.makes for s in self.steps)

    @property
    def gaps(self) -> tuple[tuple[Cause, ...], ...]:
        """What makes sizes, gap by gap."""
        return tuple(s.causes for s in self.steps if s.causes)
